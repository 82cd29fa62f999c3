package rangeread

import (
	"context"
	"sync"
)

// readAheadPart is a part that is read ahead into memory.
type readAheadPart struct {
	size   int64
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing is read any more

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // they have changed; on mu
	bytes   []byte     // what was read, which is not written to again
	taken   int        // of bytes
	err     error      // why there are no more; nil: there may be
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
			f := newFlow(ctx, r, off, n)
			defer f.close()
			f.destination = memory[:n]
			return a.readAll(f)
		}, a.setError)
	}()
	return a
}

// readAll reads all that the flow has.
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

// end says why there are no more.
func (a *readAheadPart) setError(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	a.changed.Signal()
}

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
