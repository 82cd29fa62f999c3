package rangeread

import (
	"context"
	"io"
	"math"
	"sync"
)

// A splitRead is a read of more than one part: its parts are read concurrently by several range requests. Parts are
// numbered by their order in the object. Part 0 is read by the caller's goroutine.
type splitRead struct {
	ctx      context.Context
	reader   *Reader
	buffer   []byte // buffer of the caller, for all parts
	off      int64  // offset in the object of part 0
	partSize int64  // length of each part in bytes; the last part may be shorter

	mu          sync.Mutex     // guards the fields below
	next        int            // number of the next part to read
	firstFailed int            // lowest number of a failed part; the number of parts if none has failed
	parts       []partRead     // results of all parts, by number
	workers     sync.WaitGroup // goroutines that read parts
}

// A partRead is the state and result of reading one part of a splitRead.
type partRead struct {
	byteCount int // number of bytes that were read
	err       error
	cancel    context.CancelFunc // cancels reading; nil: the part is not being read
}

// readParts reads len(p) bytes at offset off into p, which must not be empty. A read that is longer than the part size
// is split into parts. It returns the number of bytes read without a gap from off on, and io.EOF if the object ends
// before.
func readParts(ctx context.Context, r *Reader, p []byte, off int64) (int, error) {
	size := r.store.options.PartSize
	whole := int64(len(p))
	if p = p[:min(whole, math.MaxInt64-off)]; len(p) == 0 {
		return 0, io.EOF // an object cannot be larger
	}
	f := newRangeBody(ctx, r, off, min(int64(len(p)), size))
	defer f.close()
	if whole <= size && int64(len(p)) == whole {
		return f.readFull(p)
	}
	var b []byte
	var err error
	if _, known := r.version.knownSize(); !known {
		b, err = f.nextBytes() // its response may have the size of the object
	}
	n := copy(p, b)
	if length, known := r.version.knownSize(); known {
		p = p[:max(min(whole, length-off), int64(n))]
	}
	if err == nil {
		n, err = readTail(ctx, r, f, p, off, n)
	}
	if err == nil && int64(n) < whole {
		err = io.EOF
	}
	return n, err
}

// readTail reads all bytes of p except the first n, which are already read. The argument f delivers the remaining bytes
// of part 0; further parts are read concurrently. readTail returns the number of bytes in p that were read without a
// gap, including the first n.
func readTail(ctx context.Context, r *Reader, f *rangeBody, p []byte, off int64, n int) (int, error) {
	size := r.store.options.PartSize
	count := int((int64(len(p)) + size - 1) / size)
	all := &splitRead{ctx: ctx, reader: r, buffer: p, off: off, partSize: size, next: 1, firstFailed: max(count, 1), parts: make([]partRead, max(count, 1))}
	for range min(r.store.options.Parallel, count) - 1 {
		all.workers.Go(all.readPending)
	}
	defer all.workers.Wait()
	whole := false
	defer func() {
		if !whole { // by a panic
			all.cancelAfter(0)
		}
	}()
	more, err := f.readFull(p[n:min(int64(len(p)), size)])
	n += more
	whole = true
	if err != nil {
		all.cancelAfter(0)
		return n, err
	}
	all.readPending()
	all.workers.Wait()
	for _, one := range all.parts[1:] {
		n += one.byteCount
		if one.err != nil {
			return n, one.err
		}
	}
	return n, nil
}

// readPending reads one part after another, until no part is left or an earlier part has failed. Several goroutines run
// it at the same time.
func (a *splitRead) readPending() {
	for {
		ctx, i := a.claimPart()
		if i < 0 {
			return
		}
		var n int
		callRecovered(func() (err error) {
			from := int64(i) * a.partSize
			p := a.buffer[from:min(from+a.partSize, int64(len(a.buffer)))]
			f := newRangeBody(ctx, a.reader, a.off+from, int64(len(p)))
			defer f.close()
			n, err = f.readFull(p)
			return err
		}, func(err error) { a.recordPart(i, n, err) })
	}
}

// claimPart assigns the next part to the calling goroutine. It returns the number of the part, and a context for
// reading it. The number is -1 if no part is left, or if an earlier part has failed.
func (a *splitRead) claimPart() (context.Context, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.next
	if i >= min(a.firstFailed, len(a.parts)) {
		return nil, -1
	}
	a.next++
	ctx, cancel := context.WithCancel(a.ctx)
	a.parts[i].cancel = cancel
	return ctx, i
}

// recordPart stores the number of bytes and the error of part i. If err is not nil, it cancels all later parts.
func (a *splitRead) recordPart(i, n int, err error) {
	a.mu.Lock()
	one := &a.parts[i]
	one.cancel()
	one.byteCount, one.err, one.cancel = n, err, nil
	a.mu.Unlock()
	if err != nil {
		a.cancelAfter(i)
	}
}

// cancelAfter records that part i has failed, and cancels all later parts, because their bytes cannot be returned.
func (a *splitRead) cancelAfter(i int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.firstFailed = min(a.firstFailed, i)
	for _, later := range a.parts[i+1:] {
		if later.cancel != nil {
			later.cancel()
		}
	}
}

// readFull fills p with the next bytes of f, and returns their number. If f has fewer bytes, readFull returns the error
// of f, such as io.EOF.
func (f *rangeBody) readFull(p []byte) (n int, err error) {
	for n < len(p) {
		var b []byte
		b, err = f.nextBytes()
		if n += copy(p[n:], b); err != nil {
			break
		}
	}
	if n == len(p) {
		err = nil
	}
	return n, err
}
