package rangeread

import (
	"context"
	"sync"
)

// ahead is a part that is read ahead into memory.
type ahead struct {
	size   int64
	cancel context.CancelFunc
	ended  chan struct{} // closed when nothing is read any more

	mu    sync.Mutex // guards the fields below
	more  sync.Cond  // they have changed; on mu
	bytes []byte     // what was read, which is not written to again
	taken int        // of bytes
	err   error      // why there are no more; nil: there may be
}

// readAhead reads the n bytes from off on into memory that has room for them, in a goroutine of its own, until it is closed. A body that stalls may keep the
// memory, so that the bytes go on in other memory.
func readAhead(ctx context.Context, r *Reader, off, n int64, memory []byte) *ahead {
	a := &ahead{size: n, ended: make(chan struct{}), bytes: memory[:0]}
	a.more.L = &a.mu
	ctx, a.cancel = context.WithCancel(ctx)
	go func() {
		defer close(a.ended)
		catch(func() error {
			f := newFlow(ctx, r, off, n)
			defer f.close()
			f.place = memory[:n]
			return a.fill(f)
		}, a.end)
	}()
	return a
}

// fill reads all that the flow has.
func (a *ahead) fill(f *flow) error {
	for {
		_, err := f.next()
		a.mu.Lock()
		a.bytes = f.place[:f.at-f.start]
		a.mu.Unlock()
		a.more.Signal()
		if err != nil {
			return err
		}
	}
}

// end says why there are no more.
func (a *ahead) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	a.more.Signal()
}

func (a *ahead) next() ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.taken == len(a.bytes) && a.err == nil {
		a.more.Wait()
	}
	b := a.bytes[a.taken:]
	if a.taken = len(a.bytes); len(b) > 0 {
		return b, nil
	}
	return nil, a.err
}

// close ends the reading. Nothing writes to the memory of a part that was read to its end; a body that was broken off may.
func (a *ahead) close() {
	a.cancel()
	<-a.ended
}
