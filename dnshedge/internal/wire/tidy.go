package wire

import (
	"encoding/binary"
	"sync"

	"github.com/miekg/dns"
)

// tidy reports whether a response can be kept as it is, but for an OPT record at its
// end, and where it ends without that. Nearly all can; the others are read by package
// dns and written anew. It has one question. All names are whole, and compressed ones
// refer to names before them, so that they stay what they are when TTLs and addresses
// change. The owners of its records are compressed, which makes it short.
func tidy(b []byte) (end int, ok bool) {
	if len(b) < HeaderLen || b[2]>>3&15 != dns.OpcodeQuery || binary.BigEndian.Uint16(b[4:]) != 1 {
		return 0, false
	}
	seen := labelSets.Get().(*labels)
	defer labelSets.Put(seen)
	clear(seen[:min(len(b)/64+1, len(seen))])
	off, _, ok := seen.name(b, HeaderLen)
	if !ok || off+4 > len(b) {
		return 0, false
	}
	end = off + 4
	all := int(binary.BigEndian.Uint16(b[6:])) + int(binary.BigEndian.Uint16(b[8:])) + int(binary.BigEndian.Uint16(b[10:]))
	n := 0
	err := walk(b, func(r record) {
		n++
		_, compressed, whole := seen.name(b, r.name)
		data := r.ttl + 6
		l, laidOut := layouts[r.typ]
		switch {
		case !ok:
		case r.typ == dns.TypeOPT:
			ok = n == all && r.section == additional && b[r.name] == 0 && readable(r.data)
			return // and end is where it begins
		case r.typ == dns.TypeNXT: // what follows its name may be unreadable
			ok = false
		case laidOut:
			ok = r.class == dns.ClassINET && l.holds(b, r) && seen.data(b, data+l.before, l)
		default:
			ok = (len(r.data) > 0 || !known(r.typ)) && selfContained(r)
		}
		ok = ok && whole && (compressed || b[r.name] == 0)
		end = data + len(r.data)
	})
	return end, ok && err == nil
}

// selfContained reports whether the data of a record of a type that is not in layouts
// refers to nothing outside. Names in it must not be compressed (RFC 3597 §4), but package
// dns reads and writes out those that are.
func selfContained(r record) bool {
	off := 0
	switch r.typ {
	case dns.TypeNSEC:
	case dns.TypeSVCB, dns.TypeHTTPS:
		off = 2
	case dns.TypeKX, dns.TypeLP, dns.TypeNSAPPTR, dns.TypeTALINK, dns.TypeHIP, dns.TypeIPSECKEY, dns.TypeAMTRELAY,
		dns.TypeTKEY, dns.TypeTSIG: // rare
		return false
	default:
		return true
	}
	end, err := skipName(r.data, off)
	return err == nil && uncompressed(r.data[off:end])
}

// readable reports whether the data of an OPT record holds together.
func readable(data []byte) bool {
	n := 0
	for code, o := range options(data) {
		n += len(o)
		if code == dns.EDNS0EDE && len(o) < 6 || code == optKeepalive && len(o) != 4 && len(o) != 6 {
			return false
		}
	}
	return n == len(data)
}

// labels are the offsets in a message at which the labels of its names begin, as far as
// names may refer to them.
type labels [1 << 14 / 64]uint64

var labelSets = sync.Pool{New: func() any { return new(labels) }}

// name reads the name at off, and returns the offset behind it and whether it is
// compressed. It is not ok if it is longer than names are, or refers to something that is
// not a label of a name before it.
func (s *labels) name(b []byte, off int) (end int, compressed, ok bool) {
	size, start := 0, off
	for off < len(b) {
		n := int(b[off])
		switch {
		case n >= 0xc0:
			if off+2 > len(b) {
				return 0, false, false
			}
			to := int(binary.BigEndian.Uint16(b[off:]) & 0x3fff)
			if to >= off || s[to/64]>>(to%64)&1 == 0 {
				return 0, false, false
			}
			for l, next := label(b, to); len(l) > 0; l, next = label(b, next) {
				size += 1 + len(l)
			}
			return off + 2, true, s.add(b, start, off, size)
		case n > 63:
			return 0, false, false
		case n == 0:
			return off + 1, false, s.add(b, start, off, size)
		}
		size += 1 + n
		off += 1 + n
	}
	return 0, false, false
}

// add adds the labels from start to end of a name of the given size, unless that is too
// long for a name.
func (s *labels) add(b []byte, start, end, size int) bool {
	for off := start; off < min(end, 1<<14); off += 1 + int(b[off]) {
		s[off/64] |= 1 << (off % 64)
	}
	return size < MaxName
}

// data reads the names in the data of a record, whose layout holds. The first begins at off.
func (s *labels) data(b []byte, off int, l layout) (ok bool) {
	for range l.strings {
		off += 1 + int(b[off])
	}
	ok = true
	for range l.names {
		if off, _, ok = s.name(b, off); !ok {
			return false
		}
	}
	return true
}

// relevant reports whether each record of the answer section of a tidy message is about
// the name of the question, or about one that the records before it say it is an alias
// of.
func relevant(m []byte) bool {
	var names [1 + maxAliases]int // where they begin
	names[0] = HeaderLen
	n, ok := 1, true
	has := func(off int) bool {
		for _, name := range names[:n] {
			if sameName(m, name, off) {
				return true
			}
		}
		return false
	}
	_ = walk(m, func(r record) {
		switch {
		case !ok || r.section != answer:
		case !has(r.name):
			ok = false
		case r.typ == dns.TypeCNAME && !has(r.ttl+6):
			if ok = n < len(names); ok {
				names[n] = r.ttl + 6
				n++
			}
		}
	})
	return ok
}

// label returns the label at off of a message that is tidy or that package dns has
// written, and the offset of the next one. The last label is empty.
func label(m []byte, off int) (l []byte, next int) {
	for m[off] >= 0xc0 {
		off = int(binary.BigEndian.Uint16(m[off:]) & 0x3fff)
	}
	next = off + 1 + int(m[off])
	return m[off+1 : next], next
}

// sameName reports whether the names at two offsets are the same but for case.
func sameName(m []byte, a, b int) bool {
	for {
		if m[a] >= 0xc0 && m[b] >= 0xc0 && m[a] == m[b] && m[a+1] == m[b+1] {
			return true
		}
		var la, lb []byte
		la, a = label(m, a)
		lb, b = label(m, b)
		if len(la) != len(lb) {
			return false
		}
		for i, c := range la {
			if lower(c) != lower(lb[i]) {
				return false
			}
		}
		if len(la) == 0 {
			return true
		}
	}
}

// below reports whether the name at off is that of a zone, or below it.
func below(m []byte, off, zone int) bool {
	for n := depth(m, off) - depth(m, zone); n > 0; n-- {
		_, off = label(m, off)
	}
	return sameName(m, off, zone)
}

// depth returns the number of labels of a name.
func depth(m []byte, off int) (n int) {
	for l, next := label(m, off); len(l) > 0; l, next = label(m, next) {
		n++
	}
	return n
}

// appendName appends a name in lower case.
func appendName(b, m []byte, off int) []byte {
	for {
		l, next := label(m, off)
		b = append(b, byte(len(l)))
		for _, c := range l {
			b = append(b, lower(c))
		}
		if len(l) == 0 {
			return b
		}
		off = next
	}
}
