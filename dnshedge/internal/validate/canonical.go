package validate

import "github.com/miekg/dns"

// layout says where data of a type has names: behind some bytes and some strings.
type layout struct{ before, strings, names int }

// lowered has the types whose names are lower case in canonical form: RFC 4034 §6.2, but for NSEC and HINFO (RFC 6840 §5.1).
var lowered = map[uint16]layout{
	dns.TypeNS: {names: 1}, dns.TypeMD: {names: 1}, dns.TypeMF: {names: 1}, dns.TypeCNAME: {names: 1}, dns.TypeSOA: {names: 2},
	dns.TypeMB: {names: 1}, dns.TypeMG: {names: 1}, dns.TypeMR: {names: 1}, dns.TypePTR: {names: 1}, dns.TypeMINFO: {names: 2},
	dns.TypeMX: {before: 2, names: 1}, dns.TypeRP: {names: 2}, dns.TypeAFSDB: {before: 2, names: 1}, dns.TypeRT: {before: 2, names: 1},
	dns.TypeSIG: {before: 18, names: 1}, dns.TypePX: {before: 2, names: 2}, dns.TypeNXT: {names: 1},
	dns.TypeNAPTR: {before: 4, strings: 3, names: 1}, dns.TypeKX: {before: 2, names: 1}, dns.TypeSRV: {before: 6, names: 1},
	dns.TypeDNAME: {names: 1}, dns.TypeRRSIG: {before: 18, names: 1},
}

const typeA6 = 38

// lowerRdata makes the names in data of a type lower case, if they are in canonical form. It reports false if
// they are not there.
func lowerRdata(typ uint16, data []byte) bool {
	l, ok := lowered[typ]
	if typ == typeA6 && len(data) > 0 && data[0] > 0 && data[0] <= 128 { // a prefix's length, an address's end, a name: RFC 2874 §3.1
		l, ok = layout{before: 1 + (128-int(data[0])+7)/8, names: 1}, true
	}
	if !ok {
		return true
	}
	off := l.before
	for range l.strings {
		if off >= len(data) {
			return false
		}
		off += 1 + int(data[off])
	}
	for range l.names {
		if off > len(data) {
			return false
		}
		n, ok := readName(data[off:])
		if !ok {
			return false
		}
		lower(data[off : off+n])
		off += n
	}
	return true
}
