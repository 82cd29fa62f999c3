package rangeread

// How much is read from a body at a time.
const (
	chunkSize        = 64 << 10
	destinationChunk = 1 << 20 // if all bytes have a place
)

// memory is where a stream reads to: its own chunks, in turns, or a place that has room for the whole range.
type readBuffer struct {
	destination []byte // nil: there is none
	from        int64  // the byte of the object that is first in place
	chunks      [2][]byte
	current     int
}

// nextBuffer returns memory for some of the bytes from at to to. In chunks it is that of the piece before the last.
func (m *readBuffer) nextBuffer(at, to int64) []byte {
	if m.destination != nil {
		return m.destination[at-m.from : min(to-m.from, int64(len(m.destination)), at-m.from+destinationChunk)]
	}
	m.current = 1 - m.current
	if m.chunks[m.current] == nil {
		m.chunks[m.current] = make([]byte, min(chunkSize, to-at))
	}
	return m.chunks[m.current]
}
