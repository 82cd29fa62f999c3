package rangeread

import (
	"errors"
	"io"
	"runtime/debug"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

const (
	maxEmptyReads = 100                   // consecutive Reads of a body without bytes and error, after which reading fails
	drainTime     = 50 * time.Millisecond // maximum time for reading the io.EOF after the last byte of a body
)

var (
	errNoBody  = errors.New("rangeread: Fetch returned neither a body nor an error")
	errBadRead = errors.New("rangeread: Read of a body returned an impossible count")
)

// A response is one response of the server to a range request. The goroutine that opens it uses it first, and
// afterwards only the goroutine that runs deliverChunks.
type response struct {
	request *rangeRequest
	attempt *race.Attempt
	body    io.ReadCloser
	info    Info
	from    int64      // offset in the object of the first byte of the range
	to      int64      // offset at which the range ends, or at which the body ends if its length is known and shorter
	offset  int64      // offset in the object of the next byte of the body
	eof     bool       // Read has returned io.EOF, or an error after the last byte
	buffer  readBuffer // memory that the body is read into
	first   chunk      // first chunk, which is read when the response is opened
	chunks  chan chunk // receives the chunks that deliverChunks reads
}

// A chunk holds the next bytes of a response. The bytes are valid until the next chunk is received, because their
// memory is reused.
type chunk struct {
	bytes []byte
	err   error // error because of which this chunk is the last one; io.EOF at the end of the range or of the body; nil: more chunks follow
}

// An openResult is the result of opening a response: the response with its first chunk, or an error.
type openResult struct {
	response *response
	err      error
}

// openResponse requests the bytes [from, to) for the attempt a, and returns the response after its first chunk has been
// read. The caller must then call deliverChunks or closeBody. It returns an error if the request fails, or the response
// does not fit it.
func (t *rangeRequest) openResponse(a *race.Attempt, from, to int64) (*response, error) {
	t.addUser()
	t.store.requests.Add(1)
	s := &response{request: t, attempt: a, from: from, to: to}
	opened := false
	defer func() {
		if !opened {
			s.closeBody()
		}
	}()
	asked := Range{Offset: from, Length: to - from, Match: t.version.currentTag()}
	var err error
	if s.body, s.info, err = t.fetch(a, asked); err == nil {
		err = s.checkInfo(asked)
	}
	if err == nil {
		err = a.Err() // a loser reads nothing
	}
	if err == nil {
		err = s.readFirstChunk()
	}
	if err != nil {
		return nil, err
	}
	opened = true
	return s, nil
}

// checkInfo returns an error if the response has no body, does not fit the requested range, or is from another version
// of the object. It also moves the end of the range to the end of a shorter body.
func (s *response) checkInfo(asked Range) error {
	if s.body == nil {
		return errNoBody
	}
	if err := s.info.checkAgainstRange(asked); err != nil {
		return err
	}
	if asked.Offset > 0 {
		s.request.store.setIgnoresRanges(s.info.Offset == 0)
	}
	if n := s.info.Length; n >= 0 && n < s.to-s.info.Offset {
		s.to = s.info.Offset + n
	}
	return s.request.version.checkInfo(s.info)
}

// readFirstChunk reads and discards the bytes before the range, and then reads the first chunk of the range. If there
// are no bytes, it returns the error of the body, or nil if the range is empty.
func (s *response) readFirstChunk() error {
	s.offset = s.info.Offset
	switch {
	case s.to <= s.from:
		s.first.err = io.EOF
	case s.offset < s.from:
		s.first.err = s.skipToRange(make([]byte, chunkSize))
	}
	if s.first.err == nil {
		s.first = s.readChunk()
	}
	if s.isEmpty() && s.first.err != io.EOF {
		return s.first.err
	}
	return nil
}

// skipToRange reads and discards the bytes of the body that precede the range, using p as a buffer. It returns the
// error of the body if the body ends before the range.
func (s *response) skipToRange(p []byte) error {
	for s.offset < s.from {
		if _, err := s.readBody(p, s.from); err != nil {
			return err
		}
	}
	return nil
}

// isEmpty reports whether the body has ended without a byte of the range. It must only be called after readFirstChunk.
func (s *response) isEmpty() bool { return len(s.first.bytes) == 0 }

// readChunk reads the next chunk of the range. At the end of the range, the chunk is empty and has the error io.EOF.
func (s *response) readChunk() chunk {
	if s.offset >= s.to {
		return chunk{err: io.EOF}
	}
	p := s.buffer.nextBuffer(s.offset, s.to)
	n, err := s.readBody(p, s.to)
	if s.offset == s.to {
		s.eof = s.eof || err != nil
		err = io.EOF
	}
	return chunk{p[:n], err}
}

// readBody reads bytes of the body into p, but none at or after the offset end. It returns the number of read bytes. At
// the end of the body, the error is the result of endError.
func (s *response) readBody(p []byte, end int64) (int, error) {
	p = p[:min(int64(len(p)), end-s.offset)]
	for range maxEmptyReads {
		n, err := s.body.Read(p)
		if n < 0 || n > len(p) {
			return 0, errBadRead
		}
		s.countBytes(int64(n))
		if err == io.EOF {
			s.eof = true
			return n, s.endError()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// countBytes adds n bytes that were read from the body to the counters and to the current offset.
func (s *response) countBytes(n int64) {
	s.request.store.bytesRead.Add(n)
	if s.offset < s.from {
		s.request.store.bytesSkipped.Add(n)
	} else {
		s.request.readBytes.Add(n)
	}
	s.offset += n
}

// endError returns the error for a body that ends at the current offset: io.EOF if the range or object may end there,
// and io.ErrUnexpectedEOF if bytes are missing. A part of the object that ends before the range does not end the object.
func (s *response) endError() error {
	if s.info.Length >= 0 {
		if s.offset-s.info.Offset < s.info.Length && s.offset < s.to {
			return io.ErrUnexpectedEOF
		}
		return io.EOF
	}
	size, known := s.info.Size, true
	if size < 0 {
		size, known = s.request.version.knownSize()
	}
	isOtherPart := !known && s.info.Offset > 0 && s.info.Offset < s.from && s.offset <= s.from
	if s.offset < min(size, s.to) || isOtherPart {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}

// deliverChunks reads the body and sends its chunks to the channel chunks, until the body or the attempt ends. Then it
// closes the body. A panic of the body is sent as the error of a chunk. It runs in its own goroutine.
func (s *response) deliverChunks() {
	done, returned := s.attempt.Done(), false
	defer func() {
		v := recover()
		switch {
		case !returned: // Read has panicked, or has ended the goroutine
			s.deliverChunk(chunk{err: &race.Panic{Value: v, Stack: debug.Stack()}}, done)
		case v != nil:
			s.request.store.panics.Add(1)
		}
		s.closeBody()
		s.attempt.Release()
	}()
	for p := s.first; s.deliverChunk(p, done) && p.err == nil; {
		p = s.readChunk()
	}
	returned = true
	s.drainBody()
}

// deliverChunk sends the chunk p to the channel chunks. It returns false if the attempt has ended before the chunk was
// received; done is closed at the end of the attempt.
func (s *response) deliverChunk(p chunk, done <-chan struct{}) bool {
	select {
	case s.chunks <- p:
		return true
	case <-done:
		return false
	}
}

// drainBody reads the io.EOF after the last byte of a body, so that the HTTP connection can be reused. It gives up
// after drainTime.
func (s *response) drainBody() {
	if s.eof || s.info.Length < 0 || s.offset-s.info.Offset != s.info.Length {
		return
	}
	defer time.AfterFunc(drainTime, s.attempt.Release).Stop()
	var one [1]byte
	_, _ = s.body.Read(one[:])
}

// closeBody closes the body, and counts a panic of Close. It must be called in the goroutine that has read from the
// body last.
func (s *response) closeBody() {
	defer s.request.removeUser()
	defer func() {
		if recover() != nil {
			s.request.store.panics.Add(1)
		}
	}()
	if s.body != nil {
		_ = s.body.Close() // no caller waits for the error
	}
}
