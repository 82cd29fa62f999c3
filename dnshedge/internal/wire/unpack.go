package wire

import (
	"bytes"
	"encoding/binary"

	"github.com/miekg/dns"
)

// ParseMsg reads a message from its wire format, which it does not keep. Records whose data
// has no form that package dns knows, or that it would change, become records of an unknown type (RFC 3597); addresses,
// and those in whose data names may be compressed, are dropped.
func ParseMsg(b []byte) (*dns.Msg, error) {
	m, err := read(b, true)
	if err != nil {
		return nil, &MalformedError{err}
	}
	return m, nil
}

// unpack reads a message. Records whose data package dns cannot read, would change or has no
// place for, become records of an unknown type (RFC 3597): they are for the caller
// to judge. Types whose data may hold compressed names cannot be passed on without
// being understood, and addresses of a wrong length are no addresses; those are
// errors.
func unpack(b []byte) (*dns.Msg, error) { return read(b, false) }

// read is unpack, but if drop, the records that would be errors are left out.
func read(b []byte, drop bool) (*dns.Msg, error) {
	odd, bad, err := check(b)
	if err != nil {
		return nil, err
	}
	if len(bad) > 0 && !drop {
		return nil, errRecord
	}
	m := new(dns.Msg)
	seen := newOwners(b)
	if len(bad) == 0 && !odd && seen == nil && m.Unpack(b) == nil {
		return m, nil
	}
	var head [HeaderLen]byte
	copy(head[:4], b)
	*m = dns.Msg{}
	if err := m.Unpack(head[:]); err != nil {
		return nil, err
	}
	first, _, err := dns.UnpackDomainName(b, HeaderLen) // for the records that refer to it
	if err != nil {
		return nil, err
	}
	var off int
	if m.Question, off, err = questions(b); err != nil {
		return nil, err
	}
	n := -1 // of all records
	for i, section := range [...]*[]dns.RR{&m.Answer, &m.Ns, &m.Extra} {
		for range binary.BigEndian.Uint16(b[6+2*i:]) {
			if _, ok := seen.get(b, off); !ok {
				if _, _, err := dns.UnpackDomainName(b, off); err != nil {
					return nil, err
				}
			}
			var rr dns.RR
			rr, off = unpackRecord(b, off, first, seen)
			if n++; len(bad) > 0 && bad[0] == n {
				bad = bad[1:]
				continue
			}
			h := rr.Header()
			if h.Rdlength == 0 && known(h.Rrtype) {
				rr = &dns.RFC3597{Hdr: *h}
			}
			if _, opaque := rr.(*dns.RFC3597); opaque {
				if _, ok := layouts[h.Rrtype]; ok && (h.Class == dns.ClassINET || h.Rrtype == dns.TypeOPT) {
					if drop && h.Rrtype != dns.TypeOPT {
						continue
					}
					return nil, errRecord
				}
			}
			*section = append(*section, rr)
		}
	}
	if opt := m.IsEdns0(); opt != nil {
		m.Rcode |= opt.ExtendedRcode()
	}
	return m, nil
}

// questions returns the questions of a message, and where they end.
func questions(b []byte) (all []dns.Question, end int, err error) {
	off := HeaderLen
	for range binary.BigEndian.Uint16(b[4:]) {
		name, end, err := dns.UnpackDomainName(b, off)
		if err != nil {
			return nil, 0, err
		}
		if end+4 > len(b) {
			return nil, 0, errRecord
		}
		all = append(all, dns.Question{Name: name, Qtype: binary.BigEndian.Uint16(b[end:]), Qclass: binary.BigEndian.Uint16(b[end+2:])})
		off = end + 4
	}
	return all, off, nil
}

// owners are the names that pointers in a message stand for, as text: a long name is read
// once, and not for each of its records. Nil: the message is short, and each is read.
type owners map[uint16]string

// newOwners returns none for a message that is as short as most are.
func newOwners(b []byte) owners {
	if len(b) <= 4096 {
		return nil
	}
	return make(owners)
}

// get returns the name at off if it is a pointer that has been seen.
func (o owners) get(b []byte, off int) (name string, ok bool) {
	if o == nil || b[off] < 0xc0 {
		return "", false
	}
	name, ok = o[binary.BigEndian.Uint16(b[off:])]
	return name, ok
}

// put remembers the name at off if it is a pointer.
func (o owners) put(b []byte, off int, name string) {
	if o != nil && b[off] >= 0xc0 {
		o[binary.BigEndian.Uint16(b[off:])] = name
	}
}

// known reports whether package dns has a place for the data of a type, which needs
// some.
func known(typ uint16) bool {
	_, ok := dns.TypeToRR[typ]
	return ok && typ != dns.TypeOPT && typ != dns.TypeAPL && typ != dns.TypeNULL
}

// layout is what the data of a type consists of: some bytes, strings, names and bytes,
// and perhaps more.
type layout struct {
	before, strings, names, after int
	more                          bool
}

// layouts has the types that are not passed on unread: addresses, and those in whose
// data names may be compressed (RFC 1035 §3.3, RFC 3597 §4). Package dns takes data
// that ends early for whole, and writes something else then.
var layouts = map[uint16]layout{
	dns.TypeA: {before: 4}, dns.TypeAAAA: {before: 16}, dns.TypeOPT: {more: true},
	dns.TypeNS: {names: 1}, dns.TypeMD: {names: 1}, dns.TypeMF: {names: 1}, dns.TypeCNAME: {names: 1}, dns.TypeMB: {names: 1},
	dns.TypeMG: {names: 1}, dns.TypeMR: {names: 1}, dns.TypePTR: {names: 1}, dns.TypeDNAME: {names: 1},
	dns.TypeSOA: {names: 2, after: 20}, dns.TypeMINFO: {names: 2}, dns.TypeRP: {names: 2},
	dns.TypeMX: {before: 2, names: 1}, dns.TypeAFSDB: {before: 2, names: 1}, dns.TypeRT: {before: 2, names: 1},
	dns.TypePX: {before: 2, names: 2}, dns.TypeSRV: {before: 6, names: 1}, dns.TypeNAPTR: {before: 4, strings: 3, names: 1},
	dns.TypeSIG: {before: 18, names: 1, more: true}, dns.TypeRRSIG: {before: 18, names: 1, more: true}, dns.TypeNXT: {names: 1, more: true},
}

// changed reports whether package dns reads the data of a record of a message and writes other data, or none. Of the types that
// are asked for most it is known what changes; others are written, and compared.
func changed(b []byte, r record) bool {
	switch r.typ {
	case dns.TypeTXT:
		return false
	case dns.TypeNSEC, dns.TypeNSEC3: // zero bytes that end a block of a bitmap are left out
		return fields[r.typ].endsEarly(r.data) || hasSuperfluous(r.data, bitmapOf(r.typ, r.data))
	case dns.TypeDS, dns.TypeDNSKEY, dns.TypeNSEC3PARAM:
		return fields[r.typ].endsEarly(r.data)
	case dns.TypeSVCB, dns.TypeHTTPS:
		return hasOddParameters(r.data)
	case dns.TypeHIP:
		if fields[r.typ].endsEarly(r.data) || pointsFrom(r.data, 4+int(r.data[0])+int(binary.BigEndian.Uint16(r.data[2:]))) {
			return true
		}
	}
	if _, ok := layouts[r.typ]; ok || dns.TypeToRR[r.typ] == nil || len(r.data) == 0 {
		return false
	}
	off := r.ttl + 6
	rr, _, err := dns.UnpackRRWithHeader(dns.RR_Header{Name: ".", Rrtype: r.typ, Class: r.class, Rdlength: uint16(len(r.data))}, b[:off+len(r.data)], off)
	if err != nil {
		return false // it has no form
	}
	const owner = 11 // a root with the rest of a header
	buf := make([]byte, dns.Len(rr)+len(r.data))
	end, err := dns.PackRR(rr, buf, 0, nil, false)
	if err != nil {
		return true
	}
	if !selfContained(r) { // it may be longer: names are written out
		return fields[r.typ].endsEarly(r.data)
	}
	return !bytes.Equal(buf[owner:end], r.data)
}

// fields has what package dns fills up with zero bytes, of the types whose data is not always compared.
var fields = map[uint16]layout{
	dns.TypeDS: {before: 4}, dns.TypeDNSKEY: {before: 4}, dns.TypeNSEC3: {before: 4, strings: 2}, dns.TypeNSEC3PARAM: {before: 4, strings: 1},
	dns.TypeIPSECKEY: {before: 3}, dns.TypeAMTRELAY: {before: 2}, dns.TypeHIP: {before: 4},
}

// endsEarly reports whether data has not all bytes and strings.
func (l layout) endsEarly(data []byte) bool {
	off := l.before
	for range l.strings {
		if off >= len(data) {
			return true
		}
		off += 1 + int(data[off])
	}
	return off > len(data)
}

// bitmapOf returns where the bitmap of types begins in data of an NSEC or NSEC3 record. A name in pointers has no
// place there (RFC 4034 §4.1.1): what comes behind one is not looked at.
func bitmapOf(typ uint16, data []byte) int {
	off := 0
	switch typ {
	case dns.TypeNSEC:
		for off < len(data) && data[off] != 0 {
			if data[off] >= 0xc0 {
				return len(data)
			}
			off += 1 + int(data[off])
		}
		return off + 1
	case dns.TypeNSEC3:
		for _, fixed := range [...]int{4, 0} { // before the salt's length, before the hash's
			if off += fixed; off >= len(data) {
				return len(data)
			}
			off += 1 + int(data[off])
		}
		return off
	}
	return 6
}

// hasOddParameters reports whether data of an SVCB or HTTPS record has an empty identifier of a protocol, which package dns does
// not write, or mandatory keys that are not sorted, which it sorts (RFC 9460 §7.1.1, §8).
func hasOddParameters(data []byte) bool {
	off, err := skipName(data, 2)
	for err == nil && off+4 <= len(data) {
		key, n := binary.BigEndian.Uint16(data[off:]), int(binary.BigEndian.Uint16(data[off+2:]))
		off += 4
		value := data[off:min(off+n, len(data))]
		off += n
		switch dns.SVCBKey(key) {
		case dns.SVCB_MANDATORY:
			for i := 2; i+2 <= len(value); i += 2 {
				if bytes.Compare(value[i-2:i], value[i:i+2]) > 0 {
					return true
				}
			}
		case dns.SVCB_ALPN:
			for i := 0; i < len(value); i += 1 + int(value[i]) {
				if value[i] == 0 {
					return true
				}
			}
		}
	}
	return false
}

// pointsFrom reports whether one of the names in data from off on is compressed. There may be thousands in one HIP record, in which
// none may be (RFC 8005 §5): they are not followed.
func pointsFrom(data []byte, off int) bool {
	for off < len(data) {
		end, err := skipName(data, off)
		if err != nil || !uncompressed(data[off:end]) {
			return true
		}
		off = end
	}
	return false
}

// hasSuperfluous reports whether some block of the bitmap at off ends with a zero byte, which it should not (RFC 4034 §4.1.2).
func hasSuperfluous(data []byte, off int) bool {
	for off+2 <= len(data) {
		off += 2 + int(data[off+1])
		if off <= len(data) && data[off-1] == 0 {
			return true
		}
	}
	return false
}

// check returns an error if a message does not hold together, and which of its records in
// layouts do not, by their place in it. It is odd if a record has no data although its type
// needs some, or if it has some that package dns changes. Messages about zones, as updates, have such records (RFC 2136 §2.4).
func check(b []byte) (odd bool, bad []int, err error) {
	query := len(b) > 2 && b[2]>>3&15 == dns.OpcodeQuery
	n := -1
	err = walk(b, func(r record) {
		n++
		odd = odd || changed(b, r)
		if !query {
			return
		}
		l, ok := layouts[r.typ]
		switch {
		case ok && r.class == dns.ClassINET:
			if !l.holds(b, r) {
				bad = append(bad, n)
			}
		case len(r.data) == 0 && known(r.typ):
			odd = true
		}
	})
	return odd, bad, err
}

// holds reports whether the data of a record of a message is as the layout says.
func (l layout) holds(b []byte, r record) bool {
	end := r.ttl + 6 + len(r.data)
	off := end - len(r.data) + l.before
	for range l.strings {
		if off >= end {
			return false
		}
		off += 1 + int(b[off])
	}
	for range l.names {
		if off >= end {
			return false
		}
		next, err := skipName(b, off)
		if err != nil {
			return false
		}
		off = next
	}
	off += l.after
	return off == end || l.more && off < end
}
