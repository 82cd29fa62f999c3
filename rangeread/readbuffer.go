package rangeread

// Maximum number of bytes for one Read of a body.
const (
	// chunkSize is the maximum number of bytes for one Read of a body.
	chunkSize = 64 << 10
	// destinationChunk is the maximum number of bytes for one Read of a body into the destination of a range.
	destinationChunk = 1 << 20
)

// A readBuffer is the memory into which a response is read: either the destination of the whole range, or two chunks
// that are used in turn. It is not safe for concurrent use.
type readBuffer struct {
	destination []byte    // memory for the whole range; nil: the chunks are used
	from        int64     // offset in the object of the first byte of destination
	chunks      [2][]byte // memory of two chunks, allocated when needed
	current     int       // index of the chunk that was returned last
}

// nextBuffer returns memory into which the next bytes of [at, to) can be read; it may be shorter than that range.
// Without a destination, the memory of each call is reused by the call after the next.
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
