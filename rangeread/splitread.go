package rangeread

import (
	"context"
	"io"
	"math"
	"sync"
)

// A splitRead is a read that is split into several parts, which are read concurrently. Parts are numbered by their
// order in the object. Part 0 is read separately.
type splitRead struct {
	ctx    context.Context
	reader *Reader
	p      []byte // memory for all parts
	off    int64  // offset in the object of part 0
	size   int64  // length of each part except the last

	mu          sync.Mutex // guards the fields below
	next        int        // number of the next part to read
	firstFailed int        // lowest number of a failed part; the number of parts if none has failed
	parts       []partRead
	workers     sync.WaitGroup
}

// A partRead is the result of reading one part.
type partRead struct {
	n      int
	err    error
	cancel context.CancelFunc // cancels reading; nil: the part is not being read
}

// readParts reads len(p) bytes at offset off into p; p is not empty. If they exceed the part size, they are read in
// several parts.
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

// readTail reads the bytes of p after the first n, which f has already returned: the remaining bytes of f, which is
// part 0, and all further parts.
func readTail(ctx context.Context, r *Reader, f *rangeBody, p []byte, off int64, n int) (int, error) {
	size := r.store.options.PartSize
	count := int((int64(len(p)) + size - 1) / size)
	all := &splitRead{ctx: ctx, reader: r, p: p, off: off, size: size, next: 1, firstFailed: max(count, 1), parts: make([]partRead, max(count, 1))}
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
		n += one.n
		if one.err != nil {
			return n, one.err
		}
	}
	return n, nil
}

// readPending reads parts until all are claimed or an earlier part has failed.
func (a *splitRead) readPending() {
	for {
		ctx, i := a.claimPart()
		if i < 0 {
			return
		}
		var n int
		callRecovered(func() (err error) {
			from := int64(i) * a.size
			p := a.p[from:min(from+a.size, int64(len(a.p)))]
			f := newRangeBody(ctx, a.reader, a.off+from, int64(len(p)))
			defer f.close()
			n, err = f.readFull(p)
			return err
		}, func(err error) { a.recordPart(i, n, err) })
	}
}

// claimPart returns the number of the next part to read, and its context; -1 if there is none.
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

// recordPart records the result of part i.
func (a *splitRead) recordPart(i, n int, err error) {
	a.mu.Lock()
	one := &a.parts[i]
	one.cancel()
	one.n, one.err, one.cancel = n, err, nil
	a.mu.Unlock()
	if err != nil {
		a.cancelAfter(i)
	}
}

// cancelAfter records that part i has failed, and cancels all later parts: their bytes are not needed.
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

// readFull fills p with the next bytes of f. It returns an error if f has fewer bytes.
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
