// Package upload reads small request bodies before there is a place to work on their requests, so that who sends one
// slowly holds no place meanwhile.
package upload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
)

const (
	maxBodyBytes     = 64 << 10 // bytes of a body that is read ahead
	maxPoolBytes     = 64 << 20 // bytes of memory for all bodies of a Memory
	firstBufferBytes = 4 << 10  // bytes of memory that a body begins with; who sends nothing takes no more
)

// A MemoryPool is what the bodies that are read ahead share: 64 MiB. The zero Memory is empty. It is safe for concurrent use.
type MemoryPool struct{ used atomic.Int64 }

func (m *MemoryPool) reserveBytes(n int) bool {
	if m.used.Add(int64(n)) > maxPoolBytes {
		m.used.Add(-int64(n))
		return false
	}
	return true
}

// ShouldReadAhead reports whether the body of a request is to be read ahead: its length is known and at most 64 KiB, and its client does not
// wait for a 100 (Continue), as far as the header says. Over HTTP/2 net/http has removed Expect from that. The handler of a request for an upgrade
// takes over the connection, and reads the body from there.
func ShouldReadAhead(r *http.Request) bool {
	if r.ContentLength <= 0 || r.ContentLength > maxBodyBytes || r.Body == nil || len(r.Header["Expect"]) > 0 || len(r.Header["Upgrade"]) > 0 {
		return false
	}
	_, again := r.Body.(*BufferedBody)
	return !again
}

// A BufferedBody is a request body of which the beginning, or all of it, has been read ahead. Who reads it gets the same bytes and then the
// same error as from the body itself, which it goes on with. It may be closed while it is read, as bodies of net/http may be.
//
// Two things can be known of a body of net/http, and not of one that others have put around it. A Read after net/http has closed
// the body, because the answer had begun or by Close, has net/http's error; of such others it gets what is left.
type BufferedBody struct {
	source io.ReadCloser
	length int // as the client says
	http2  bool
	memory *MemoryPool

	mu          sync.Mutex // guards the fields below
	buffer      []byte     // that nobody has been given yet
	err         error      // after these bytes; nil: there are more, or it was given
	errWithData bool       // err came with the last of the bytes
	closed      bool
	reserved    int // of memory
}

// New returns the body of a request, of which nothing is read yet. It shall be released.
func NewBody(r *http.Request, memory *MemoryPool) *BufferedBody {
	return &BufferedBody{source: r.Body, length: int(r.ContentLength), http2: r.ProtoMajor == 2, memory: memory}
}

// ReadAhead reads until the body ends or fails, there is no memory, or there are more bytes than the client said.
func (b *BufferedBody) ReadAhead() {
	for len(b.buffer) < cap(b.buffer) || b.growBuffer() {
		n, err := b.source.Read(b.buffer[len(b.buffer):cap(b.buffer)])
		b.buffer = b.buffer[:len(b.buffer)+n]
		if err != nil {
			b.err, b.errWithData = err, n > 0
			return
		}
		if n == 0 {
			return
		}
	}
}

// growBuffer makes room for more bytes: one more than the client said, to see the end.
func (b *BufferedBody) growBuffer() bool {
	size := min(max(2*cap(b.buffer), firstBufferBytes), b.length+1)
	more := size - cap(b.buffer)
	if more <= 0 || !b.memory.reserveBytes(more) {
		return false
	}
	b.reserved += more
	b.buffer = append(make([]byte, 0, size), b.buffer...)
	return true
}

// CallerContext returns the context of a request whose caller may go away while it waits. If ctx ended because the body did not
// arrive in time, nobody has gone, and the handler gets the error of that.
func (b *BufferedBody) CallerContext(ctx context.Context) context.Context {
	if errors.Is(b.err, os.ErrDeadlineExceeded) {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// Read gives what was read ahead, and then reads the body itself.
func (b *BufferedBody) Read(p []byte) (int, error) {
	if n, ok, err := b.readBuffer(p); ok {
		return n, err
	}
	return b.source.Read(p)
}

// give reports false if all of what was read ahead has been given.
func (b *BufferedBody) readBuffer(p []byte) (n int, ok bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.hasUnread() {
		return 0, false, nil
	}
	if err := b.closedError(); err != nil {
		return 0, true, err
	}
	n = copy(p, b.buffer)
	b.buffer = b.buffer[n:]
	if len(b.buffer) == 0 {
		b.returnMemory()
		if n == 0 || b.errWithData {
			err, b.err = b.err, nil
		}
	}
	return n, true, err
}

func (b *BufferedBody) hasUnread() bool { return len(b.buffer) > 0 || b.err != nil }

// closedError returns the error with which the body refuses to be read any more, whatever is left of it. The body is asked only if it
// answers at once: it has ended, or was closed.
func (b *BufferedBody) closedError() error {
	if !b.closed && b.err != io.EOF {
		return nil
	}
	_, err := b.source.Read(nil)
	switch {
	case errors.Is(err, http.ErrBodyReadAfterClose), b.closed && err != nil && err != io.EOF:
		return err
	case b.closed && b.http2: // which says io.EOF, because that is what was read last
		return http.ErrBodyReadAfterClose
	}
	return nil
}

// Close closes the body.
func (b *BufferedBody) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.source.Close()
}

// HasUnread reports whether there is something that was read ahead and not given yet.
func (b *BufferedBody) HasUnread() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hasUnread()
}

// TakeUnread returns a copy of the bytes that were read ahead and not given yet. They are not given any more.
func (b *BufferedBody) TakeUnread() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	unread := bytes.Clone(b.buffer)
	b.buffer, b.err = nil, nil
	b.returnMemory()
	return unread
}

// ReleaseMemory gives memory back, although what is left can still be read.
func (b *BufferedBody) ReleaseMemory() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.returnMemory()
}

func (b *BufferedBody) returnMemory() {
	b.memory.used.Add(-int64(b.reserved))
	b.reserved = 0
}
