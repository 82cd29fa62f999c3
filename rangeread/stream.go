package rangeread

import (
	"errors"
	"io"
	"runtime/debug"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

const (
	maxEmptyReads = 100                   // Reads in a row that may return nothing
	drainTime     = 50 * time.Millisecond // for the end of a body whose bytes are all read
)

var (
	errNoBody  = errors.New("rangeread: Fetch returned neither a body nor an error")
	errBadRead = errors.New("rangeread: Read of a body returned an impossible count")
)

// A response is one answer of the store: the bytes of a range that its body has. One goroutine at a time uses it, the one that opened it and
// then that of pump.
type response struct {
	request *rangeRequest
	attempt *race.Attempt
	body    io.ReadCloser
	info    Info
	from    int64 // the first byte that is wanted
	to      int64 // the first byte that is not wanted any more, or is not promised
	offset  int64 // the next byte of the body
	eof     bool  // the body has said that it ends, or has failed behind its last byte
	buffer  readBuffer
	first   chunk
	chunks  chan chunk // what pump reads
}

// A chunk is some bytes of a stream, valid until the next piece is received.
type chunk struct {
	bytes []byte
	err   error // why there is no other: io.EOF if the stream has all that was wanted or promised
}

// An openResult is what became of an attempt.
type openResult struct {
	stream *response
	err    error
}

// open asks for the bytes from from to to, and returns a stream that has its first piece. Its owner calls pump or shut.
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
		err = a.Err() // who has lost reads nothing
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

// checkInfo returns why the answer is not one to what was asked.
func (s *response) checkInfo(asked Range) error {
	if s.body == nil {
		return errNoBody
	}
	if err := s.info.checkAgainst(asked); err != nil {
		return err
	}
	if asked.Offset > 0 {
		s.request.store.recordRangeSupport(s.info.Offset == 0)
	}
	if n := s.info.Length; n >= 0 && n < s.to-s.info.Offset {
		s.to = s.info.Offset + n
	}
	return s.request.version.checkInfo(s.info)
}

// begin reads up to the first piece, and returns why there is none, but for io.EOF.
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

// skipToRange reads what comes before the range.
func (s *response) skipToRange(p []byte) error {
	for s.offset < s.from {
		if _, err := s.readBody(p, s.from); err != nil {
			return err
		}
	}
	return nil
}

// isEmpty reports whether the stream has no bytes of its range.
func (s *response) isEmpty() bool { return len(s.first.bytes) == 0 }

// chunk reads the next piece.
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

// read reads some bytes, none from end on. It returns io.EOF if the body ends where it may.
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

// countBytes counts n bytes that were read.
func (s *response) countBytes(n int64) {
	s.request.store.read.Add(n)
	if s.offset < s.from {
		s.request.store.skipped.Add(n)
	} else {
		s.request.readBytes.Add(n)
	}
	s.offset += n
}

// ended returns what it means that the body ends here.
func (s *response) endError() error {
	if s.info.Length >= 0 {
		if s.offset-s.info.Offset < s.info.Length && s.offset < s.to {
			return io.ErrUnexpectedEOF
		}
		return io.EOF
	}
	size := s.info.Size
	if size < 0 {
		size, _ = s.request.version.knownSize()
	}
	if s.offset < min(size, s.to) {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}

// deliverChunks hands out the pieces, until the attempt ends or there are no more.
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

// deliverChunk hands out a piece, and reports false if nobody wants it any more.
func (s *response) deliverChunk(p chunk, done <-chan struct{}) bool {
	select {
	case s.chunks <- p:
		return true
	case <-done:
		return false
	}
}

// drainBody reads the end of a body whose bytes are all read, so that its connection can be used again.
func (s *response) drainBody() {
	if s.eof || s.info.Length < 0 || s.offset-s.info.Offset != s.info.Length {
		return
	}
	defer time.AfterFunc(drainTime, s.attempt.Release).Stop()
	var one [1]byte
	_, _ = s.body.Read(one[:])
}

// closeBody closes the body, in the goroutine that read from it last.
func (s *response) closeBody() {
	defer s.request.removeUser()
	defer func() {
		if recover() != nil {
			s.request.store.panics.Add(1)
		}
	}()
	if s.body != nil {
		_ = s.body.Close() // nobody is left to tell
	}
}
