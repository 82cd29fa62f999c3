package rangeread

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
)

var errBadWrite = errors.New("rangeread: Write returned an impossible count")

// A sequence reads a range of an object from its beginning to its end, part by part. It reads ahead as many parts as it has
// read to their end, up to a limit, so that who reads little asks for little.
type sequence struct {
	reader *Reader
	caller context.Context
	ctx    context.Context // of all requests: the caller's, until there are none
	cancel context.CancelCauseFunc

	mu    sync.Mutex // held by who reads; guards the fields below
	at    int64      // the next byte
	next  int64      // the first byte of the next part that is not asked for
	end   int64      // no byte is wanted from there on
	depth int        // how many parts are read ahead
	ahead []*ahead   // in order
	spare [][]byte   // memory of parts that were read
	held  int64      // bytes of memory, spare or not
	now   lane       // the part that is read; nil: none
	edge  int64      // where that part ends, unless the object does before
	bytes []byte     // of it, not returned yet
	err   error      // why there are no more; nil: there are
}

// A lane is where the bytes of a part come from.
type lane interface {
	// next returns the next bytes, valid until it is called again, and io.EOF if there are no more.
	next() ([]byte, error)

	close()
}

var (
	_ io.ReadCloser = (*sequence)(nil)
	_ io.WriterTo   = (*sequence)(nil)
	_ lane          = (*flow)(nil)
	_ lane          = (*ahead)(nil)
)

// NewReader returns a reader of the n bytes from off on, or of all to the end of the object if n is negative. It ends with io.EOF where the object
// ends. It reads ahead: a part more with each part that was read to its end, up to Options.Parallel parts at the same time, within Options.MaxBytes. Who does not read on is not
// read ahead for. It is an [io.WriterTo] as well.
//
// The context is that of all requests. The reader must be closed, or read to its end or an error. One goroutine at a time reads from it; Close may be called at any time.
func (r *Reader) NewReader(ctx context.Context, off, n int64) io.ReadCloser {
	s := &sequence{reader: r, caller: ctx, at: off, next: off, end: math.MaxInt64}
	if n >= 0 && off >= 0 {
		s.end = off + min(n, math.MaxInt64-off)
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	if s.err = r.refuses(ctx, off); s.err != nil {
		s.cancel(nil)
	}
	return s
}

// Read reads the next bytes.
func (s *sequence) Read(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.fetch(); err != nil {
		return 0, err
	}
	n = copy(p, s.bytes)
	s.advance(n)
	return n, nil
}

// WriteTo writes all that is left to w.
func (s *sequence) WriteTo(w io.Writer) (n int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := s.fetch(); err != nil {
			if err == io.EOF {
				err = nil
			}
			return n, err
		}
		m, err := s.write(w)
		if n += int64(m); err != nil {
			return n, err
		}
	}
}

// write writes the bytes that are there to w, whose Write may close s. The caller holds mu.
func (s *sequence) write(w io.Writer) (n int, err error) {
	b := s.bytes
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		if s.bytes != nil { // not closed meanwhile
			s.advance(n)
		}
	}()
	switch n, err = w.Write(b); {
	case n < 0 || n > len(b):
		return 0, errBadWrite
	case n < len(b) && err == nil:
		err = io.ErrShortWrite
	}
	return n, err
}

// advance says that n bytes were returned. The caller holds mu.
func (s *sequence) advance(n int) {
	s.bytes = s.bytes[n:]
	s.at += int64(n)
}

// fetch sees to it that there are bytes. The caller holds mu.
func (s *sequence) fetch() error {
	for len(s.bytes) == 0 && s.err == nil {
		var err error
		if s.now == nil {
			err = s.turn()
		} else {
			s.bytes, err = s.now.next()
		}
		switch {
		case err == io.EOF && s.now == nil:
			s.stop(io.EOF) // all that is wanted was read
		case err == io.EOF && s.at < s.edge:
			s.stop(io.EOF) // the object has ended
		case err == io.EOF:
			s.leave()
			s.depth = min(s.depth+1, s.reader.store.options.Parallel-1)
			s.clip()
		case err != nil:
			s.stop(err)
		}
	}
	if len(s.bytes) > 0 {
		return nil
	}
	return s.reader.raise(s.caller, s.err)
}

// clip takes note of the size of the object, beyond which there is nothing. The caller holds mu.
func (s *sequence) clip() {
	if size, known := s.reader.version.length(); known {
		s.end = min(s.end, size)
	}
}

// turn goes on with the next part, and asks for those to be read ahead. It returns io.EOF if there is no other. The caller holds mu.
func (s *sequence) turn() error {
	if s.clip(); s.at >= s.end {
		return io.EOF
	}
	if err := s.reader.refuses(s.ctx, s.at); err != nil {
		return err
	}
	if len(s.ahead) > 0 {
		s.edge = s.at + s.ahead[0].size
		s.now, s.ahead = s.ahead[0], s.ahead[1:]
	} else {
		n := s.part(s.at)
		s.now = newFlow(s.ctx, s.reader, s.at, n)
		s.edge, s.next = s.at+n, s.at+n
	}
	for len(s.ahead) < s.depth && s.next < s.end {
		n := s.part(s.next)
		memory := s.memory(n)
		if memory == nil {
			break
		}
		s.ahead = append(s.ahead, readAhead(s.ctx, s.reader, s.next, n, memory))
		s.next += n
	}
	return nil
}

// part returns how long the part is that begins there. The caller holds mu.
func (s *sequence) part(at int64) int64 { return min(s.reader.store.options.PartSize, s.end-at) }

// leave closes the part that is read. Another part may have its memory, if it was read to its end. The caller holds mu.
func (s *sequence) leave() {
	if s.now == nil {
		return
	}
	s.now.close()
	if a, ok := s.now.(*ahead); ok {
		s.spare = append(s.spare, a.bytes)
	}
	s.now = nil
}

// memory returns memory for n bytes; nil: there is none. The caller holds mu.
func (s *sequence) memory(n int64) []byte {
	if i := len(s.spare) - 1; i >= 0 && int64(cap(s.spare[i])) >= n {
		b := s.spare[i]
		s.spare = s.spare[:i]
		return b
	}
	if !s.reader.store.hold(n) {
		return nil
	}
	s.held += n
	return make([]byte, n)
}

// stop ends all requests, for the given reason. The caller holds mu.
func (s *sequence) stop(err error) {
	if context.Cause(s.ctx) == errClosed { // Close waits until mu is free
		err = errClosed
	}
	s.err = err
	s.cancel(nil)
	s.leave()
	for _, a := range s.ahead {
		a.close()
	}
	s.reader.store.letGo(s.held)
	s.ahead, s.spare, s.held = nil, nil, 0
}

// Close ends all requests. A Read under way returns an error.
func (s *sequence) Close() error {
	s.cancel(errClosed) // or Read may hold mu for long
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes = nil
	s.stop(errClosed)
	return nil
}
