package wire

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
)

// A nameIDTable assigns IDs to the names of one message, so that names can be compared quickly. Two names have the same
// ID if they are equal, ignoring case. The work is linear in the length of the message.
type nameIDTable struct {
	known []uint64 // bit set of the offsets in the message for which ids is valid
	ids   []uint64 // ID of the name that begins at an offset, indexed by the offset
}

// nameIDsPool holds unused nameIDTable, so that their memory is reused.
var nameIDsPool = sync.Pool{New: func() any { return new(nameIDTable) }}

// newNameIDs returns a nameIDTable for the message m, with which names in m can be compared quickly. The caller must
// call release after use.
func newNameIDs(m []byte) *nameIDTable {
	s := nameIDsPool.Get().(*nameIDTable)
	n := min(len(m), 1<<14) // compression pointers have 14 bits
	s.known = slices.Grow(s.known[:0], n/64+1)[:n/64+1]
	s.ids = slices.Grow(s.ids[:0], n)[:n]
	clear(s.known)
	return s
}

// release puts the table into a pool, from which newNameIDs takes memory. The table must not be used afterwards.
func (s *nameIDTable) release() { nameIDsPool.Put(s) }

// nameIDAt returns the ID of the name at the offset off of the message m. Names that differ only in case have the same
// ID, so IDs serve to compare names. The name must be valid.
func (s *nameIDTable) nameIDAt(m []byte, off int) uint64 {
	var path [maxLabels]int // offsets of labels without an ID
	n, id := 0, rootID
	for m[off] != 0 {
		if m[off] >= 0xc0 {
			off = int(binary.BigEndian.Uint16(m[off:]) & 0x3fff)
			continue
		}
		if off < len(s.ids) && s.known[off/64]>>(off%64)&1 != 0 {
			id = s.ids[off]
			break
		}
		path[n] = off
		n++
		off += 1 + int(m[off])
	}
	for n--; n >= 0; n-- {
		off := path[n]
		id = childID(id, m[off+1:off+1+int(m[off])])
		if off < len(s.ids) {
			s.known[off/64] |= 1 << (off % 64)
			s.ids[off] = id
		}
	}
	return id
}

// maxLabels is the maximum number of labels of a name, not counting the root label.
const maxLabels = MaxName / 2

// rootID is the ID of the root name.
const rootID = uint64(0)

// nameSeed is the hash seed for the IDs of names. It differs in each process.
var nameSeed = maphash.MakeSeed()

// childID returns the ID of the name that has the given label, followed by the parent, a name with the ID parent. The
// ID is a hash with a random seed, so that an attacker cannot construct names with equal IDs.
func childID(parent uint64, label []byte) uint64 {
	var b [8 + 63]byte
	binary.NativeEndian.PutUint64(b[:], parent)
	for i, c := range label {
		b[8+i] = lowerByte(c)
	}
	return maphash.Bytes(nameSeed, b[:8+len(label)])
}

// ancestorIDs returns the ID of the name at the offset off of m, followed by the IDs of all domains that contain this
// name, from its parent to the root.
func (s *nameIDTable) ancestorIDs(m []byte, off int) []uint64 {
	ids := make([]uint64, 0, 8)
	for {
		ids = append(ids, s.nameIDAt(m, off))
		l, next := labelAt(m, off)
		if len(l) == 0 {
			return ids
		}
		off = next
	}
}

// A nameLabels is a name as a list of its labels, leftmost first, without the root label. The labels have no length
// bytes.
type nameLabels []labelWithID

// A labelWithID is a label within a name, and the ID of the part of the name that begins with this label.
type labelWithID struct {
	id    uint64 // ID of the name that begins with the label
	label []byte // the label without its length byte
}

// labelsAt returns the labels of the name at the offset off of m, leftmost first. They refer to the bytes of m, so m
// must not change while they are used.
func (s *nameIDTable) labelsAt(m []byte, off int) nameLabels {
	var l nameLabels
	for data, next := labelAt(m, off); len(data) > 0; data, next = labelAt(m, off) {
		l = append(l, labelWithID{s.nameIDAt(m, off), data})
		off = next
	}
	return l
}

// nameID returns the ID of the name that consists of the labels l. Equal names have equal IDs.
func (l nameLabels) nameID() uint64 {
	if len(l) == 0 {
		return rootID
	}
	return l[0].id
}

// replaceSuffix applies a DNAME record to the name l (RFC 6672 §2.2). It returns the name that consists of the first n
// labels of l, followed by the name to. It returns false if that name is too long.
func (l nameLabels) replaceSuffix(n int, to nameLabels) (nameLabels, bool) {
	out := append(make(nameLabels, n, n+len(to)), to...)
	id, size := to.nameID(), 1
	for i := n - 1; i >= 0; i-- {
		id = childID(id, l[i].label)
		out[i] = labelWithID{id, l[i].label}
	}
	for _, k := range out {
		size += 1 + len(k.label)
	}
	return out, size <= MaxName
}
