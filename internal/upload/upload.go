// Package upload reads small request bodies before their requests get a slot, so that a client that sends slowly holds no slot.
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
	maxBodyBytes     = 64 << 10 // largest body that is read ahead
	maxPoolBytes     = 64 << 20 // capacity of a MemoryPool
	firstBufferBytes = 4 << 10  // first buffer of a body; a client that sends nothing takes no more memory
)

// A MemoryPool limits the memory of all bodies that are read ahead to 64 MiB. The zero MemoryPool is unused. It is safe for concurrent use.
type MemoryPool struct{ used atomic.Int64 }

func (m *MemoryPool) reserveBytes(n int) bool {
	if m.used.Add(int64(n)) > maxPoolBytes {
		m.used.Add(-int64(n))
		return false
	}
	return true
}

// ShouldReadAhead reports whether to read the body of a request ahead: its length is known and at most 64 KiB, and no header says that the
// client waits for 100 (Continue). Over HTTP/2, net/http removes that header. A body of an upgrade request is not read ahead, because
// its handler reads it from the connection.
func ShouldReadAhead(r *http.Request) bool {
	if r.ContentLength <= 0 || r.ContentLength > maxBodyBytes || r.Body == nil || len(r.Header["Expect"]) > 0 || len(r.Header["Upgrade"]) > 0 {
		return false
	}
	_, again := r.Body.(*BufferedBody)
	return !again
}

// A BufferedBody is a request body of which the beginning, or all of it, has been read ahead. Its readers get the same bytes and the same
// error as from the source. After the buffered bytes, it reads from the source. It may be closed during a Read, like a body of net/http.
//
// After net/http has closed its body, by Close or because the response has started, a Read returns the error of net/http. If the source is
// a body of another package, the Read returns the rest of the buffer.
type BufferedBody struct {
	source io.ReadCloser
	length int // Content-Length
	http2  bool
	memory *MemoryPool

	mu          sync.Mutex // guards the fields below
	buffer      []byte     // bytes that were read ahead and not returned by Read yet
	err         error      // error after these bytes; nil: the source has more bytes, or Read has returned the error
	errWithData bool       // the source returned err together with its last bytes
	closed      bool
	reserved    int // number of bytes that are reserved from memory
}

// NewBody returns the body of a request, of which nothing is read yet. The caller must call ReleaseMemory.
func NewBody(r *http.Request, memory *MemoryPool) *BufferedBody {
	return &BufferedBody{source: r.Body, length: int(r.ContentLength), http2: r.ProtoMajor == 2, memory: memory}
}

// ReadAhead reads until the body ends or fails, the memory is used up, or there are more bytes than Content-Length.
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

// growBuffer enlarges the buffer, at most to one byte more than Content-Length: the last Read then gets the end of the body.
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

// CallerContext returns the context with which the request waits for a slot. If ctx ended because the body did not arrive in time, it
// returns a context that does not end: the caller is still there, and the handler gets the error when it reads.
func (b *BufferedBody) CallerContext(ctx context.Context) context.Context {
	if errors.Is(b.err, os.ErrDeadlineExceeded) {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// Read returns the bytes that were read ahead, and then reads from the source.
func (b *BufferedBody) Read(p []byte) (int, error) {
	if n, ok, err := b.readBuffer(p); ok {
		return n, err
	}
	return b.source.Read(p)
}

// readBuffer reads from the bytes that were read ahead. It reports false if all of them have been read.
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

// closedError returns the error of a Read after the source was closed; nil if the source can be read. It calls the source's Read only if
// that cannot block: the source has ended, or was closed.
func (b *BufferedBody) closedError() error {
	if !b.closed && b.err != io.EOF {
		return nil
	}
	_, err := b.source.Read(nil)
	switch {
	case errors.Is(err, http.ErrBodyReadAfterClose), b.closed && err != nil && err != io.EOF:
		return err
	case b.closed && b.http2: // whose Read repeats the last error, io.EOF
		return http.ErrBodyReadAfterClose
	}
	return nil
}

// Close closes the source.
func (b *BufferedBody) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.source.Close()
}

// HasUnread reports whether buffered bytes, or the error after them, were not returned by Read yet.
func (b *BufferedBody) HasUnread() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hasUnread()
}

// TakeUnread removes the buffered bytes and the error, and returns a copy of the bytes.
func (b *BufferedBody) TakeUnread() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	unread := bytes.Clone(b.buffer)
	b.buffer, b.err = nil, nil
	b.returnMemory()
	return unread
}

// ReleaseMemory returns the reserved memory to the pool. Buffered bytes can still be read.
func (b *BufferedBody) ReleaseMemory() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.returnMemory()
}

func (b *BufferedBody) returnMemory() {
	b.memory.used.Add(-int64(b.reserved))
	b.reserved = 0
}
