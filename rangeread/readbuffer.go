package rangeread

// Maximum number of bytes for one Read of a body.
const (
	chunkSize        = 64 << 10
	destinationChunk = 1 << 20 // when reading into the destination of a range
)

// A readBuffer is the memory that a response is read into: the destination of the whole range, or two alternating
// chunks.
type readBuffer struct {
	destination []byte // memory for the whole range; nil: chunks are used
	from        int64  // offset in the object of the first byte of destination
	chunks      [2][]byte
	current     int // index of the chunk that was returned last
}

// nextBuffer returns memory for the beginning of the bytes [at, to). Each chunk is reused by every second call.
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
