package validate

import "github.com/miekg/dns"

// A typeBitmap is the types that a name has (RFC 4034 §4.1.2), in the form that NSEC and NSEC3 records have.
type typeBitmap []byte

// isWellFormed reports whether the bitmap is as it should be: blocks in order, of 1 to 32 bytes. Zero bytes at the end of a block are
// superfluous, and harmless.
func (b typeBitmap) isWellFormed() bool {
	for last := -1; len(b) > 0; {
		if len(b) < 2 || int(b[0]) <= last || b[1] < 1 || b[1] > 32 || len(b) < 2+int(b[1]) {
			return false
		}
		last, b = int(b[0]), b[2+int(b[1]):]
	}
	return true
}

// hasType reports whether a type is in a bitmap that is whole.
func (b typeBitmap) hasType(typ uint16) bool {
	for ; len(b) > 0; b = b[2+int(b[1]):] {
		if int(b[0]) == int(typ>>8) {
			i := int(typ & 0xff)
			return i/8 < int(b[1]) && b[2+i/8]>>(7-i%8)&1 != 0
		}
	}
	return false
}

// deniesType reports whether a name with these types has no records of a type, and no alias in their place. ANY is denied if
// the name has nothing but what denies.
func (b typeBitmap) deniesType(typ uint16) bool {
	if typ == dns.TypeANY {
		return !b.hasOrdinaryType()
	}
	return !b.hasType(typ) && !b.hasType(dns.TypeCNAME)
}

// hasOrdinaryType reports whether there is a type but RRSIG, NSEC and NXNAME (RFC 9824 §3.4).
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

// isDelegation reports whether the name is a delegation: the zone above has the record.
func (b typeBitmap) isDelegation() bool { return b.hasType(dns.TypeNS) && !b.hasType(dns.TypeSOA) }

// isDelegationOrDNAME reports whether the record says nothing about names below its own (RFC 6840 §4.1, RFC 6672 §5.3.4).
func (b typeBitmap) isDelegationOrDNAME() bool { return b.isDelegation() || b.hasType(dns.TypeDNAME) }

// proofAtOwner says what the record of a name proves of a question for this name: NoData or NoDS (RFC 4035 §5.4, RFC 5155 §8.5, RFC 6840 §4.1 and 4.4). The record of a
// delegation is the zone above's, and that of an apex is the zone's own: the one says nothing but of DS, the other nothing of DS.
// The root has no zone above.
func (b typeBitmap) proofAtOwner(q name, typ uint16) DenialKind {
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
