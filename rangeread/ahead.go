package rangeread

import (
	"context"
	"sync"
)

// A readAheadPart is a part of an object that is read into memory before the caller needs it. It is safe for concurrent use.
type readAheadPart struct {
	size   int64
	cancel context.CancelFunc
	done   chan struct{} // closed when the reading has ended

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // signalled when they change; its lock is mu
	bytes   []byte     // that were read; they are not written to again
	taken   int        // number of bytes that nextBytes has returned
	err     error      // with which the reading ended; nil: it goes on
}

// readAhead reads the n bytes from off on into memory that has room for them, in a goroutine of its own, until it is closed. A body that stalls may keep the
// memory, so that the bytes go on in other memory.
func readAhead(ctx context.Context, r *Reader, off, n int64, memory []byte) *readAheadPart {
	a := &readAheadPart{size: n, done: make(chan struct{}), bytes: memory[:0]}
	a.changed.L = &a.mu
	ctx, a.cancel = context.WithCancel(ctx)
	go func() {
		defer close(a.done)
		callRecovered(func() error {
			f := newRangeBody(ctx, r, off, n)
			defer f.close()
			f.destination = memory[:n]
			return a.readAll(f)
		}, a.setError)
	}()
	return a
}

// readAll reads f to its end.
func (a *readAheadPart) readAll(f *rangeBody) error {
	for {
		_, err := f.nextBytes()
		a.mu.Lock()
		a.bytes = f.destination[:f.offset-f.start]
		a.mu.Unlock()
		a.changed.Signal()
		if err != nil {
			return err
		}
	}
}

// setError records the error with which the reading ended.
func (a *readAheadPart) setError(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	a.changed.Signal()
}

// nextBytes waits for bytes that it has not returned, or for the end of the reading.
func (a *readAheadPart) nextBytes() ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.taken == len(a.bytes) && a.err == nil {
		a.changed.Wait()
	}
	b := a.bytes[a.taken:]
	if a.taken = len(a.bytes); len(b) > 0 {
		return b, nil
	}
	return nil, a.err
}

// close ends the reading. Nothing writes to the memory of a part that was read to its end; a body that was broken off may.
func (a *readAheadPart) close() {
	a.cancel()
	<-a.done
}
