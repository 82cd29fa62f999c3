package wire

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
)

// nameNumbers numbers the names of one message: two names have the same number if they are the
// same but for case. A label is read once, however many names refer to it, and so the work
// is bounded by the length of the message.
type nameNumbers struct {
	known []uint64 // the offsets of the labels whose numbers are set
	ids   []uint64 // the numbers of the names that begin there
}

var nameSets = sync.Pool{New: func() any { return new(nameNumbers) }}

// numberNames returns the numbers of the names of a message. They are given back by free.
func numberNames(m []byte) *nameNumbers {
	s := nameSets.Get().(*nameNumbers)
	n := min(len(m), 1<<14) // names refer to no offset behind that
	s.known = slices.Grow(s.known[:0], n/64+1)[:n/64+1]
	s.ids = slices.Grow(s.ids[:0], n)[:n]
	clear(s.known)
	return s
}

func (s *nameNumbers) freeNumbers() { nameSets.Put(s) }

// numberAt returns the number of the name at off, which must be a name.
func (s *nameNumbers) numberAt(m []byte, off int) uint64 {
	var path [maxLabels]int // offsets of labels that have no number yet
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

// maxLabels is the number of labels of a name at most, without the root's.
const maxLabels = MaxName / 2

const rootID = uint64(0)

var nameSeed = maphash.MakeSeed()

// childID returns the number of the name that has one label more than its parent. The hash is seeded, so that an
// attacker cannot find two names with the same number.
func childID(parent uint64, label []byte) uint64 {
	var b [8 + 63]byte
	binary.NativeEndian.PutUint64(b[:], parent)
	for i, c := range label {
		b[8+i] = lowerByte(c)
	}
	return maphash.Bytes(nameSeed, b[:8+len(label)])
}

// numbersAbove returns the numbers of the name at off and of all that it is below.
func (s *nameNumbers) numbersAbove(m []byte, off int) []uint64 {
	ids := make([]uint64, 0, 8)
	for {
		ids = append(ids, s.numberAt(m, off))
		l, next := labelAt(m, off)
		if len(l) == 0 {
			return ids
		}
		off = next
	}
}

// A lineage is a name, label by label: itself, its parent and so on, without the root.
type lineage []labelID

type labelID struct {
	id    uint64
	label []byte
}

// lineageAt returns the lineage of the name at off.
func (s *nameNumbers) lineageAt(m []byte, off int) lineage {
	var l lineage
	for data, next := labelAt(m, off); len(data) > 0; data, next = labelAt(m, off) {
		l = append(l, labelID{s.numberAt(m, off), data})
		off = next
	}
	return l
}

// nameID returns the number of the name.
func (l lineage) nameID() uint64 {
	if len(l) == 0 {
		return rootID
	}
	return l[0].id
}

// replaceSuffix returns the name with its first n labels in front of another name (RFC 6672 §2.2),
// and reports whether that is short enough for a name.
func (l lineage) replaceSuffix(n int, to lineage) (lineage, bool) {
	out := append(make(lineage, n, n+len(to)), to...)
	id, size := to.nameID(), 1
	for i := n - 1; i >= 0; i-- {
		id = childID(id, l[i].label)
		out[i] = labelID{id, l[i].label}
	}
	for _, k := range out {
		size += 1 + len(k.label)
	}
	return out, size <= MaxName
}
