package wire

import (
	"encoding/binary"
	"sync"

	"github.com/miekg/dns"
)

// checkStorable reports whether the response b can be stored unchanged: it has the opcode QUERY, one question,
// well-formed records, compressed or root owners, and compression pointers to earlier names only. end is the length of
// b without a final OPT record.
func checkStorable(b []byte) (end int, ok bool) {
	if len(b) < HeaderLen || b[2]>>3&15 != dns.OpcodeQuery || binary.BigEndian.Uint16(b[4:]) != 1 {
		return 0, false
	}
	seen := labelTablePool.Get().(*labelTable)
	defer labelTablePool.Put(seen)
	clear(seen.labelOffsets[:min(len(b)/64+1, len(seen.labelOffsets))])
	off, _, ok := seen.checkName(b, HeaderLen)
	if !ok || off+4 > len(b) {
		return 0, false
	}
	end = off + 4
	all := int(binary.BigEndian.Uint16(b[6:])) + int(binary.BigEndian.Uint16(b[8:])) + int(binary.BigEndian.Uint16(b[10:]))
	n := 0
	err := walkRecords(b, func(r messageRecord) {
		if !ok {
			return
		}
		n++
		_, compressed, whole := seen.checkName(b, r.name)
		data := r.ttl + 6
		l, laidOut := dataLayouts[r.typ]
		switch {
		case r.typ == dns.TypeOPT:
			ok = n == all && r.section == additional && b[r.name] == 0 && isReadableOPT(r.data)
			return // end remains the offset of this record
		case r.typ == dns.TypeNXT: // the data after the name may be unreadable
			ok = false
		case laidOut:
			ok = r.class == dns.ClassINET && l.matchesRecord(b, r) && seen.checkRData(b, data+l.before, l)
		default:
			ok = (len(r.data) > 0 || !requiresData(r.typ)) && isSelfContained(r)
		}
		ok = ok && whole && (compressed || b[r.name] == 0) // or else the stored message would be long
		end = data + len(r.data)
	})
	return end, ok && err == nil
}

// isReadableOPT reports whether data, the data of an OPT record, consists of complete EDNS options. An extended error
// must have an info code, and the data of a keepalive option must have 0 or 2 bytes. Other options may have any data.
func isReadableOPT(data []byte) bool {
	n := 0
	for code, o := range forEachOption(data) {
		n += len(o)
		if code == dns.EDNS0EDE && len(o) < 6 || code == optKeepalive && len(o) != 4 && len(o) != 6 {
			return false
		}
	}
	return n == len(data)
}

// A labelTable records the offsets in a message at which labels of names begin. It serves to check compression
// pointers, which are valid only if they refer to these offsets.
type labelTable struct {
	labelOffsets [1 << 14 / 64]uint64 // bit set of the offsets
	// sizes holds the length in bytes of the name that begins at an offset, indexed by half of the offset. Two labels
	// never have the same index, because a label takes at least two bytes.
	sizes [1 << 13]uint8
}

// labelTablePool holds unused labelTables, each of which takes 10 KiB. The user must clear labelOffsets.
var labelTablePool = sync.Pool{New: func() any { return new(labelTable) }}

// checkName checks the name at the offset off of b, and records where its labels begin. end is the offset after the
// name. ok is false if the name is malformed or too long, or its compression pointer does not refer to a recorded
// label.
func (s *labelTable) checkName(b []byte, off int) (end int, compressed, ok bool) {
	size, start := 0, off
	for off < len(b) {
		n := int(b[off])
		switch {
		case n >= 0xc0:
			if off+2 > len(b) {
				return 0, false, false
			}
			to := int(binary.BigEndian.Uint16(b[off:]) & 0x3fff)
			// A pointer to a TTL or an address would change the name when they change.
			if to >= off || s.labelOffsets[to/64]>>(to%64)&1 == 0 {
				return 0, false, false
			}
			return off + 2, true, s.addLabels(b, start, off, size+int(s.sizes[to/2]))
		case n > 63:
			return 0, false, false
		case n == 0:
			return off + 1, false, s.addLabels(b, start, off, size)
		}
		size += 1 + n
		off += 1 + n
	}
	return 0, false, false
}

// addLabels records where the labels of a name begin. They lie between the offsets start and end of b. size is the
// length of the whole name in bytes, without the root label. If the name is too long, it returns false and records
// nothing.
func (s *labelTable) addLabels(b []byte, start, end, size int) bool {
	if size >= MaxName {
		return false
	}
	for off := start; off < min(end, 1<<14); off += 1 + int(b[off]) {
		s.labelOffsets[off/64] |= 1 << (off % 64)
		s.sizes[off/2] = uint8(size - (off - start))
	}
	return true
}

// checkRData checks the names in the data of a record, and records where their labels begin. l is the layout of the
// data. off is the offset in b of the first string or name. matchesRecord must have accepted the data.
func (s *labelTable) checkRData(b []byte, off int, l dataLayout) (ok bool) {
	for range l.strings {
		off += 1 + int(b[off])
	}
	ok = true
	for range l.names {
		if off, _, ok = s.checkName(b, off); !ok {
			return false
		}
	}
	return true
}

// labelAt returns the label at the offset off of m, and the offset after it. It follows compression pointers. The root
// label is empty. m must be accepted by checkStorable or packed by package dns; otherwise labelAt may panic or never
// return.
func labelAt(m []byte, off int) (label []byte, next int) {
	for m[off] >= 0xc0 {
		off = int(binary.BigEndian.Uint16(m[off:]) & 0x3fff)
	}
	next = off + 1 + int(m[off])
	return m[off+1 : next], next
}
