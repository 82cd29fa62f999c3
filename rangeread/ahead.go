package rangeread

import (
	"context"
	"sync"
)

// A readAheadPart is a part of an object that is read into memory before the caller needs it. It is safe for concurrent
// use.
type readAheadPart struct {
	size   int64
	cancel context.CancelFunc
	done   chan struct{} // closed when the background goroutine has ended

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // signalled when they change; its lock is mu
	bytes   []byte     // bytes read so far, which do not change
	taken   int        // number of bytes that nextBytes has returned
	err     error      // error with which reading ended; nil: reading continues
}

// readAhead starts a goroutine that reads the n bytes at offset off into memory, whose capacity is at least n. It ends
// when the part is complete or closed. If a stalled body may still write to memory, the bytes move to new memory.
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

// readAll reads f to its end and publishes the bytes.
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

// setError records the error with which reading ended.
func (a *readAheadPart) setError(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	a.changed.Signal()
}

// nextBytes waits for new bytes and returns them. After the last bytes it returns the error with which reading ended.
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

// close stops reading and waits for the background goroutine. The memory of a part that was read to its end can then be
// reused.
func (a *readAheadPart) close() {
	a.cancel()
	<-a.done
}
