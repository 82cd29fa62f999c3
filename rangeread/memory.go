package rangeread

// How much is read from a body at a time.
const (
	chunkSize = 64 << 10
	placeSize = 1 << 20 // if all bytes have a place
)

// memory is where a stream reads to: its own chunks, in turns, or a place that has room for the whole range.
type memory struct {
	place  []byte // nil: there is none
	from   int64  // the byte of the object that is first in place
	chunks [2][]byte
	turn   int
}

// room returns memory for some of the bytes from at to to. In chunks it is that of the piece before the last.
func (m *memory) room(at, to int64) []byte {
	if m.place != nil {
		return m.place[at-m.from : min(to-m.from, int64(len(m.place)), at-m.from+placeSize)]
	}
	m.turn = 1 - m.turn
	if m.chunks[m.turn] == nil {
		m.chunks[m.turn] = make([]byte, min(chunkSize, to-at))
	}
	return m.chunks[m.turn]
}
