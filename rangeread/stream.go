package rangeread

import (
	"errors"
	"io"
	"runtime/debug"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

const (
	maxNothing = 100                   // Reads in a row that may return nothing
	drainTime  = 50 * time.Millisecond // for the end of a body whose bytes are all read
)

var (
	errNoBody  = errors.New("rangeread: Fetch returned neither a body nor an error")
	errBadRead = errors.New("rangeread: Read of a body returned an impossible count")
)

// A stream is one answer of the store: the bytes of a range that its body has. One goroutine at a time uses it, the one that opened it and
// then that of pump.
type stream struct {
	task    *task
	attempt *race.Attempt
	body    io.ReadCloser
	info    Info
	from    int64 // the first byte that is wanted
	to      int64 // the first byte that is not wanted any more, or is not promised
	at      int64 // the next byte of the body
	eof     bool  // the body has said that it ends, or has failed behind its last byte
	memory  memory
	first   piece
	out     chan piece // what pump reads
}

// A piece is some bytes of a stream, valid until the next piece is received.
type piece struct {
	bytes []byte
	err   error // why there is no other: io.EOF if the stream has all that was wanted or promised
}

// An outcome is what became of an attempt.
type outcome struct {
	stream *stream
	err    error
}

// open asks for the bytes from from to to, and returns a stream that has its first piece. Its owner calls pump or shut.
func (t *task) open(a *race.Attempt, from, to int64) (*stream, error) {
	t.begin()
	t.store.requests.Add(1)
	s := &stream{task: t, attempt: a, from: from, to: to}
	opened := false
	defer func() {
		if !opened {
			s.shut()
		}
	}()
	asked := Range{Offset: from, Length: to - from, Match: t.version.match()}
	var err error
	if s.body, s.info, err = t.fetch(a, asked); err == nil {
		err = s.accept(asked)
	}
	if err == nil {
		err = a.Err() // who has lost reads nothing
	}
	if err == nil {
		err = s.begin()
	}
	if err != nil {
		return nil, err
	}
	opened = true
	return s, nil
}

// accept returns why the answer is not one to what was asked.
func (s *stream) accept(asked Range) error {
	if s.body == nil {
		return errNoBody
	}
	if err := s.info.fits(asked); err != nil {
		return err
	}
	if asked.Offset > 0 {
		s.task.store.ignores(s.info.Offset == 0)
	}
	if n := s.info.Length; n >= 0 && n < s.to-s.info.Offset {
		s.to = s.info.Offset + n
	}
	return s.task.version.check(s.info)
}

// begin reads up to the first piece, and returns why there is none, but for io.EOF.
func (s *stream) begin() error {
	s.at = s.info.Offset
	switch {
	case s.to <= s.from:
		s.first.err = io.EOF
	case s.at < s.from:
		s.first.err = s.skip(make([]byte, chunkSize))
	}
	if s.first.err == nil {
		s.first = s.piece()
	}
	if s.empty() && s.first.err != io.EOF {
		return s.first.err
	}
	return nil
}

// skip reads what comes before the range.
func (s *stream) skip(p []byte) error {
	for s.at < s.from {
		if _, err := s.read(p, s.from); err != nil {
			return err
		}
	}
	return nil
}

// empty reports whether the stream has no bytes of its range.
func (s *stream) empty() bool { return len(s.first.bytes) == 0 }

// piece reads the next piece.
func (s *stream) piece() piece {
	if s.at >= s.to {
		return piece{err: io.EOF}
	}
	p := s.memory.room(s.at, s.to)
	n, err := s.read(p, s.to)
	if s.at == s.to {
		s.eof = s.eof || err != nil
		err = io.EOF
	}
	return piece{p[:n], err}
}

// read reads some bytes, none from end on. It returns io.EOF if the body ends where it may.
func (s *stream) read(p []byte, end int64) (int, error) {
	p = p[:min(int64(len(p)), end-s.at)]
	for range maxNothing {
		n, err := s.body.Read(p)
		if n < 0 || n > len(p) {
			return 0, errBadRead
		}
		s.count(int64(n))
		if err == io.EOF {
			s.eof = true
			return n, s.ended()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// count counts n bytes that were read.
func (s *stream) count(n int64) {
	s.task.store.read.Add(n)
	if s.at < s.from {
		s.task.store.skipped.Add(n)
	} else {
		s.task.read.Add(n)
	}
	s.at += n
}

// ended returns what it means that the body ends here.
func (s *stream) ended() error {
	if s.info.Length >= 0 {
		if s.at-s.info.Offset < s.info.Length && s.at < s.to {
			return io.ErrUnexpectedEOF
		}
		return io.EOF
	}
	size := s.info.Size
	if size < 0 {
		size, _ = s.task.version.length()
	}
	if s.at < min(size, s.to) {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}

// pump hands out the pieces, until the attempt ends or there are no more.
func (s *stream) pump() {
	done, returned := s.attempt.Done(), false
	defer func() {
		v := recover()
		switch {
		case !returned: // Read has panicked, or has ended the goroutine
			s.offer(piece{err: &race.Panic{Value: v, Stack: debug.Stack()}}, done)
		case v != nil:
			s.task.store.panics.Add(1)
		}
		s.shut()
		s.attempt.Release()
	}()
	for p := s.first; s.offer(p, done) && p.err == nil; {
		p = s.piece()
	}
	returned = true
	s.drain()
}

// offer hands out a piece, and reports false if nobody wants it any more.
func (s *stream) offer(p piece, done <-chan struct{}) bool {
	select {
	case s.out <- p:
		return true
	case <-done:
		return false
	}
}

// drain reads the end of a body whose bytes are all read, so that its connection can be used again.
func (s *stream) drain() {
	if s.eof || s.info.Length < 0 || s.at-s.info.Offset != s.info.Length {
		return
	}
	defer time.AfterFunc(drainTime, s.attempt.Release).Stop()
	var one [1]byte
	_, _ = s.body.Read(one[:])
}

// shut closes the body, in the goroutine that read from it last.
func (s *stream) shut() {
	defer s.task.end()
	defer func() {
		if recover() != nil {
			s.task.store.panics.Add(1)
		}
	}()
	if s.body != nil {
		_ = s.body.Close() // nobody is left to tell
	}
}
