package validate

import "github.com/miekg/dns"

// An rdataLayout describes where the domain names are in the data of a record type: after a prefix of fixed length and
// a number of character-strings.
type rdataLayout struct{ prefixLength, characterStrings, names int }

// rdataLayouts has the record types whose names must be converted to lower case in canonical form. These are the types of
// RFC 4034 §6.2 without NSEC and HINFO (RFC 6840 §5.1).
var rdataLayouts = map[uint16]rdataLayout{
	dns.TypeNS: {names: 1}, dns.TypeMD: {names: 1}, dns.TypeMF: {names: 1}, dns.TypeCNAME: {names: 1}, dns.TypeSOA: {names: 2},
	dns.TypeMB: {names: 1}, dns.TypeMG: {names: 1}, dns.TypeMR: {names: 1}, dns.TypePTR: {names: 1}, dns.TypeMINFO: {names: 2},
	dns.TypeMX: {prefixLength: 2, names: 1}, dns.TypeRP: {names: 2}, dns.TypeAFSDB: {prefixLength: 2, names: 1}, dns.TypeRT: {prefixLength: 2, names: 1},
	dns.TypeSIG: {prefixLength: 18, names: 1}, dns.TypePX: {prefixLength: 2, names: 2}, dns.TypeNXT: {names: 1},
	dns.TypeNAPTR: {prefixLength: 4, characterStrings: 3, names: 1}, dns.TypeKX: {prefixLength: 2, names: 1}, dns.TypeSRV: {prefixLength: 6, names: 1},
	dns.TypeDNAME: {names: 1}, dns.TypeRRSIG: {prefixLength: 18, names: 1},
}

// typeA6 is the number of the record type A6 (RFC 2874), which package dns does not define.
const typeA6 = 38

// lowercaseRdataNames converts the names in the data of a record to lower case in place, as the canonical form of the
// type requires. It returns false if the data is malformed.
func lowercaseRdataNames(typ uint16, data []byte) bool {
	l, ok := rdataLayouts[typ]
	if typ == typeA6 && len(data) > 0 && data[0] > 0 && data[0] <= 128 { // prefix length, address suffix, name (RFC 2874 §3.1)
		l, ok = rdataLayout{prefixLength: 1 + (128-int(data[0])+7)/8, names: 1}, true
	}
	if !ok {
		return true
	}
	off := l.prefixLength
	for range l.characterStrings {
		if off >= len(data) {
			return false
		}
		off += 1 + int(data[off])
	}
	for range l.names {
		if off > len(data) {
			return false
		}
		n, ok := scanName(data[off:])
		if !ok {
			return false
		}
		lowercase(data[off : off+n])
		off += n
	}
	return true
}
