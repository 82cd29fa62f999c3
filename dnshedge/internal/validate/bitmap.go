package validate

import "github.com/miekg/dns"

// A bitmap is the types that a name has (RFC 4034 §4.1.2), in the form that NSEC and NSEC3 records have.
type bitmap []byte

// whole reports whether the bitmap is as it should be: blocks in order, of 1 to 32 bytes. Zero bytes at the end of a block are
// superfluous, and harmless.
func (b bitmap) whole() bool {
	for last := -1; len(b) > 0; {
		if len(b) < 2 || int(b[0]) <= last || b[1] < 1 || b[1] > 32 || len(b) < 2+int(b[1]) {
			return false
		}
		last, b = int(b[0]), b[2+int(b[1]):]
	}
	return true
}

// has reports whether a type is in a bitmap that is whole.
func (b bitmap) has(typ uint16) bool {
	for ; len(b) > 0; b = b[2+int(b[1]):] {
		if int(b[0]) == int(typ>>8) {
			i := int(typ & 0xff)
			return i/8 < int(b[1]) && b[2+i/8]>>(7-i%8)&1 != 0
		}
	}
	return false
}

// denies reports whether a name with these types has no records of a type, and no alias in their place. ANY is denied if
// the name has nothing but what denies.
func (b bitmap) denies(typ uint16) bool {
	if typ == dns.TypeANY {
		return !b.hasOther()
	}
	return !b.has(typ) && !b.has(dns.TypeCNAME)
}

// hasOther reports whether there is a type but RRSIG, NSEC and NXNAME (RFC 9824 §3.4).
func (b bitmap) hasOther() bool {
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

// cut reports whether the name is a delegation: the zone above has the record.
func (b bitmap) cut() bool { return b.has(dns.TypeNS) && !b.has(dns.TypeSOA) }

// silent reports whether the record says nothing about names below its own (RFC 6840 §4.1, RFC 6672 §5.3.4).
func (b bitmap) silent() bool { return b.cut() || b.has(dns.TypeDNAME) }

// own says what the record of a name proves of a question for this name: NoData or NoDS (RFC 4035 §5.4, RFC 5155 §8.5, RFC 6840 §4.1 and 4.4). The record of a
// delegation is the zone above's, and that of an apex is the zone's own: the one says nothing but of DS, the other nothing of DS.
// The root has no zone above.
func (b bitmap) own(q name, typ uint16) Kind {
	switch {
	case !b.denies(typ):
		return Nothing
	case typ == dns.TypeDS && q != root && b.has(dns.TypeSOA):
		return Nothing
	case !b.cut():
		return NoData
	case typ == dns.TypeDS:
		return NoDS
	}
	return Nothing
}
