package rangeread

// Maximum number of bytes for one Read of a body.
const (
	// chunkSize is the maximum number of bytes for one Read of a body.
	chunkSize = 64 << 10
	// destinationChunk is the maximum number of bytes for one Read of a body into the destination of a range.
	destinationChunk = 1 << 20
)

// A readBuffer is the memory into which a response is read: either the destination of the whole range, or two chunks
// that are used alternately. It is not safe for concurrent use.
type readBuffer struct {
	destination []byte    // memory for the whole range; nil: the chunks are used
	from        int64     // offset in the object of the first byte of destination
	chunks      [2][]byte // memory of two chunks, allocated when needed
	current     int       // index of the chunk that was returned last
}

// nextBuffer returns memory for the next Read of a response, which delivers bytes from the given offset in the object
// up to the offset end. The memory may be shorter than that.
//
// It is part of the destination, if there is one. Otherwise it is one of the two chunks, so its content is overwritten
// by the call after the next.
func (m *readBuffer) nextBuffer(offset, end int64) []byte {
	if m.destination != nil {
		return m.destination[offset-m.from : min(end-m.from, int64(len(m.destination)), offset-m.from+destinationChunk)]
	}
	m.current = 1 - m.current
	if m.chunks[m.current] == nil {
		m.chunks[m.current] = make([]byte, min(chunkSize, end-offset))
	}
	return m.chunks[m.current]
}
