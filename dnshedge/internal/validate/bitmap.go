package validate

import "github.com/miekg/dns"

// A typeBitmap is the Type Bit Maps field of an NSEC or NSEC3 record. It lists the record types at the owner name of
// the record (RFC 4034 §4.1.2).
type typeBitmap []byte

// isWellFormed reports whether the window blocks are in ascending order and have 1 to 32 bytes each. Trailing zero
// bytes in a block are accepted.
func (b typeBitmap) isWellFormed() bool {
	for last := -1; len(b) > 0; {
		if len(b) < 2 || int(b[0]) <= last || b[1] < 1 || b[1] > 32 || len(b) < 2+int(b[1]) {
			return false
		}
		last, b = int(b[0]), b[2+int(b[1]):]
	}
	return true
}

// hasType reports whether the bitmap contains a type. The bitmap must be well-formed.
func (b typeBitmap) hasType(typ uint16) bool {
	for ; len(b) > 0; b = b[2+int(b[1]):] {
		if int(b[0]) == int(typ>>8) {
			i := int(typ & 0xff)
			return i/8 < int(b[1]) && b[2+i/8]>>(7-i%8)&1 != 0
		}
	}
	return false
}

// deniesType reports whether the bitmap shows that the owner name has no records of a type: the bitmap has neither the
// type nor CNAME. For ANY, it is true if the bitmap has only RRSIG, NSEC and NXNAME.
func (b typeBitmap) deniesType(typ uint16) bool {
	if typ == dns.TypeANY {
		return !b.hasOrdinaryType()
	}
	return !b.hasType(typ) && !b.hasType(dns.TypeCNAME)
}

// hasOrdinaryType reports whether the bitmap contains a type other than RRSIG, NSEC and NXNAME. It is false for a name
// that does not exist in a compact denial of existence (RFC 9824 §3.4).
func (b typeBitmap) hasOrdinaryType() bool {
	for ; len(b) > 0; b = b[2+int(b[1]):] {
		for i := range 8 * int(b[1]) {
			typ := uint16(b[0])<<8 | uint16(i)
			if b[2+i/8]>>(7-i%8)&1 != 0 && typ != dns.TypeRRSIG && typ != dns.TypeNSEC && typ != dns.TypeNXNAME {
				return true
			}
		}
	}
	return false
}

// isDelegation reports whether the record with this bitmap is from the parent side of a zone cut. The bitmap then has
// NS, because the owner name is a zone cut. It has no SOA, because the record is not from the child zone.
func (b typeBitmap) isDelegation() bool { return b.hasType(dns.TypeNS) && !b.hasType(dns.TypeSOA) }

// isDelegationOrDNAME reports whether the bitmap is that of a delegation, or has DNAME. A record with this bitmap
// proves nothing about names below its owner name (RFC 6840 §4.1, RFC 6672 §5.3.4).
func (b typeBitmap) isDelegationOrDNAME() bool { return b.isDelegation() || b.hasType(dns.TypeDNAME) }

// denialAtOwner determines whether the record with this bitmap denies records of type typ at q, the owner name of the
// record. The result is NoData, NoDS or Unproven (RFC 4035 §5.4, RFC 5155 §8.5, RFC 6840 §4.1 and 4.4).
//
// A record at a delegation is from the parent zone and denies only DS. A record at an apex is from the zone itself and
// does not deny DS. The root is an exception, because it has no parent.
func (b typeBitmap) denialAtOwner(q name, typ uint16) DenialKind {
	switch {
	case !b.deniesType(typ):
		return Unproven
	case typ == dns.TypeDS && q != root && b.hasType(dns.TypeSOA):
		return Unproven
	case !b.isDelegation():
		return NoData
	case typ == dns.TypeDS:
		return NoDS
	}
	return Unproven
}
