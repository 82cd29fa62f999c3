package rangeread

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
)

var errBadWrite = errors.New("rangeread: Write returned an impossible count")

// A sequentialReader is the io.ReadCloser that NewReader returns. It reads a range of an object in order, part by part,
// and reads parts ahead. With each part that the caller reads to its end, it reads one more part ahead, up to a limit.
// So a caller that reads little causes few requests.
type sequentialReader struct {
	reader        *Reader
	callerContext context.Context // context of the caller
	ctx           context.Context // context of all requests
	cancel        context.CancelCauseFunc

	mu             sync.Mutex       // held during reads; guards the fields below
	offset         int64            // offset of the next byte to return
	nextPartOffset int64            // offset of the next part to request
	end            int64            // offset at which the range ends
	aheadLimit     int              // number of parts to read ahead
	ahead          []*readAheadPart // parts being read ahead, in order
	spareMemory    [][]byte         // memory of parts that were read, for reuse
	reserved       int64            // bytes of memory reserved in the Store
	current        byteSource       // part that the caller is reading; nil: none
	currentEnd     int64            // offset at which the current part ends
	bytes          []byte           // received bytes that the caller has not read yet
	err            error            // error with which reading has ended; nil: reading continues
}

// A byteSource delivers the bytes of one part: a rangeBody delivers them as they arrive, and a readAheadPart from
// memory.
type byteSource interface {
	// nextBytes returns the next bytes, which are valid until the next call. It returns io.EOF at the end of the part or
	// of the object.
	nextBytes() ([]byte, error)

	close() // cancels all requests of the part
}

var (
	_ io.ReadCloser = (*sequentialReader)(nil)
	_ io.WriterTo   = (*sequentialReader)(nil)
	_ byteSource    = (*rangeBody)(nil)
	_ byteSource    = (*readAheadPart)(nil)
)

// NewReader returns an io.ReadCloser for the n bytes at offset off, or for all bytes to the end of the object if n is
// negative. It also implements [io.WriterTo]. Its Read returns io.EOF at the end of the range or of the object.
//
// The io.ReadCloser reads ahead: with each part that the caller has read to its end, it requests one more part in
// advance. The limits are Options.Parallel parts at the same time and Options.MaxBytes. No further parts are requested
// while the caller does not read.
//
// The context ctx applies to all requests. The caller must close the io.ReadCloser, or read until Read returns an error
// such as io.EOF. It is not safe for concurrent use, except that Close may be called at any time.
func (r *Reader) NewReader(ctx context.Context, off, n int64) io.ReadCloser {
	s := &sequentialReader{reader: r, callerContext: ctx, offset: off, nextPartOffset: off, end: math.MaxInt64}
	if n >= 0 && off >= 0 {
		s.end = off + min(n, math.MaxInt64-off)
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	if s.err = r.checkReadable(ctx, off); s.err != nil {
		s.cancel(nil)
	}
	return s
}

// Read implements [io.Reader]. Unless p is empty, it waits until at least one byte can be returned, or reading ends
// with an error.
func (s *sequentialReader) Read(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.fillBytes(); err != nil {
		return 0, err
	}
	n = copy(p, s.bytes)
	s.advanceBy(n)
	return n, nil
}

// WriteTo implements [io.WriterTo]: it writes all remaining bytes of the range to w, and returns their number. The
// error is nil at the end of the range or of the object.
func (s *sequentialReader) WriteTo(w io.Writer) (n int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := s.fillBytes(); err != nil {
			if err == io.EOF {
				err = nil
			}
			return n, err
		}
		m, err := s.writeBytes(w)
		if n += int64(m); err != nil {
			return n, err
		}
	}
}

// writeBytes writes the received bytes to w, and returns their number. The caller must hold mu. During the Write, mu is
// released, because w may close the reader.
func (s *sequentialReader) writeBytes(w io.Writer) (n int, err error) {
	b := s.bytes
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		if s.bytes != nil { // not closed meanwhile
			s.advanceBy(n)
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

// advanceBy removes the first n received bytes, because the caller has got them. The caller must hold mu.
func (s *sequentialReader) advanceBy(n int) {
	s.bytes = s.bytes[n:]
	s.offset += int64(n)
}

// fillBytes waits until there are received bytes. It returns an error if reading has ended: io.EOF at the end of the
// range or of the object. The caller must hold mu.
func (s *sequentialReader) fillBytes() error {
	for len(s.bytes) == 0 && s.err == nil {
		var err error
		if s.current == nil {
			err = s.startNextPart()
		} else {
			s.bytes, err = s.current.nextBytes()
		}
		switch {
		case err == io.EOF && s.current == nil:
			s.stopReading(io.EOF) // all that is wanted was read
		case err == io.EOF && s.offset < s.currentEnd:
			s.stopReading(io.EOF) // the object has ended
		case err == io.EOF:
			s.closePart()
			s.aheadLimit = min(s.aheadLimit+1, s.reader.store.options.Parallel-1)
			s.limitToSize()
		case err != nil:
			s.stopReading(err)
		}
	}
	if len(s.bytes) > 0 {
		return nil
	}
	return s.reader.convertError(s.callerContext, s.err)
}

// limitToSize shortens the range to the end of the object, if the size of the object is known. The caller must hold mu.
func (s *sequentialReader) limitToSize() {
	if size, known := s.reader.version.knownSize(); known {
		s.end = min(s.end, size)
	}
}

// startNextPart makes the next part the current part, and starts to read further parts ahead. It returns io.EOF if
// there is no further part, and another error if the Reader cannot be read. The caller must hold mu.
func (s *sequentialReader) startNextPart() error {
	if s.limitToSize(); s.offset >= s.end {
		return io.EOF
	}
	if err := s.reader.checkReadable(s.ctx, s.offset); err != nil {
		return err
	}
	if len(s.ahead) > 0 {
		s.currentEnd = s.offset + s.ahead[0].size
		s.current, s.ahead = s.ahead[0], s.ahead[1:]
	} else {
		n := s.partLength(s.offset)
		s.current = newRangeBody(s.ctx, s.reader, s.offset, n)
		s.currentEnd, s.nextPartOffset = s.offset+n, s.offset+n
	}
	for len(s.ahead) < s.aheadLimit && s.nextPartOffset < s.end {
		n := s.partLength(s.nextPartOffset)
		memory := s.allocateMemory(n)
		if memory == nil {
			break
		}
		s.ahead = append(s.ahead, readAhead(s.ctx, s.reader, s.nextPartOffset, n, memory))
		s.nextPartOffset += n
	}
	return nil
}

// partLength returns the length in bytes of the part that starts at the given offset. The caller must hold mu.
func (s *sequentialReader) partLength(offset int64) int64 {
	return min(s.reader.store.options.PartSize, s.end-offset)
}

// closePart closes the current part, if there is one, and keeps its memory for reuse. The caller must hold mu.
func (s *sequentialReader) closePart() {
	if s.current == nil {
		return
	}
	s.current.close()
	if a, ok := s.current.(*readAheadPart); ok {
		s.spareMemory = append(s.spareMemory, a.bytes)
	}
	s.current = nil
}

// allocateMemory returns a slice of at least n bytes for reading ahead. It returns nil if the Store has reached
// Options.MaxBytes. The caller must hold mu.
func (s *sequentialReader) allocateMemory(n int64) []byte {
	if i := len(s.spareMemory) - 1; i >= 0 && int64(cap(s.spareMemory[i])) >= n {
		b := s.spareMemory[i]
		s.spareMemory = s.spareMemory[:i]
		return b
	}
	if !s.reader.store.reserveMemory(n) {
		return nil
	}
	s.reserved += n
	return make([]byte, n)
}

// stopReading ends reading: it cancels all requests and releases their memory. Later reads return err, or errClosed if
// Close was called. The caller must hold mu.
func (s *sequentialReader) stopReading(err error) {
	if context.Cause(s.ctx) == errClosed { // Close waits until mu is free
		err = errClosed
	}
	s.err = err
	s.cancel(nil)
	s.closePart()
	for _, a := range s.ahead {
		a.close()
	}
	s.reader.store.releaseMemory(s.reserved)
	s.ahead, s.spareMemory, s.reserved = nil, nil, 0
}

// Close implements [io.Closer]: it cancels all requests and releases their memory. A Read in progress, and later Reads,
// return an error that wraps fs.ErrClosed. The error of Close is always nil.
func (s *sequentialReader) Close() error {
	s.cancel(errClosed) // or Read may hold mu for long
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes = nil
	s.stopReading(errClosed)
	return nil
}
