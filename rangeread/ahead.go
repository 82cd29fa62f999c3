package rangeread

import (
	"context"
	"sync"
)

// A readAheadPart is a part of an object that a goroutine reads into memory before the caller needs it. It is safe for
// concurrent use.
type readAheadPart struct {
	size   int64              // length of the part in bytes
	cancel context.CancelFunc // cancels reading
	done   chan struct{}      // closed when the background goroutine has ended

	mu             sync.Mutex // guards the fields below
	changed        sync.Cond  // signalled when bytes or err change; its lock is mu
	bytes          []byte     // bytes read so far, which do not change
	deliveredBytes int        // number of bytes that nextBytes has returned so far
	err            error      // error with which reading ended; nil: reading continues
}

// readAhead starts a goroutine that reads the n bytes at offset off into memory, and returns the part. The capacity of
// memory must be at least n. The goroutine ends when the part is complete or closed. If a stalled body may still write
// to memory, the bytes are copied to new memory.
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

// readAll reads f to its end, and makes the bytes available to nextBytes as they arrive. It returns the error of f,
// which is io.EOF after the last byte.
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

// setError stores the error with which reading ended, and wakes nextBytes. The error is io.EOF if all bytes were read.
func (a *readAheadPart) setError(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	a.changed.Signal()
}

// nextBytes waits for bytes that it has not returned yet, and returns them. After the last byte it returns the error
// with which reading ended, usually io.EOF.
func (a *readAheadPart) nextBytes() ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.deliveredBytes == len(a.bytes) && a.err == nil {
		a.changed.Wait()
	}
	b := a.bytes[a.deliveredBytes:]
	if a.deliveredBytes = len(a.bytes); len(b) > 0 {
		return b, nil
	}
	return nil, a.err
}

// close stops reading and waits until the goroutine has ended. If the part was read to its end, its memory can then be
// reused. Otherwise a cancelled response may still write to it.
func (a *readAheadPart) close() {
	a.cancel()
	<-a.done
}
