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

// A MemoryPool limits the total memory for bodies that are read ahead to 64 MiB. The zero value is a pool from which nothing is reserved.
// It is safe for concurrent use.
type MemoryPool struct{ used atomic.Int64 }

func (m *MemoryPool) reserveBytes(n int) bool {
	if m.used.Add(int64(n)) > maxPoolBytes {
		m.used.Add(-int64(n))
		return false
	}
	return true
}

// ShouldReadAhead reports whether to read the body of a request before the request gets a slot. The length must be known and at most 64
// KiB.
//
// A body is not read ahead if the client waits for the status 100 (Continue), as HTTP/1 requests with the header Expect do. Neither is the
// body of an upgrade request, which its handler reads from the connection.
func ShouldReadAhead(r *http.Request) bool {
	if r.ContentLength <= 0 || r.ContentLength > maxBodyBytes || r.Body == nil || len(r.Header["Expect"]) > 0 || len(r.Header["Upgrade"]) > 0 {
		return false
	}
	_, again := r.Body.(*BufferedBody)
	return !again
}

// A BufferedBody is a request body whose beginning, or whole content, was read ahead into a buffer. Read returns the same bytes and the
// same error as the source: first from the buffer, then from the source itself. It may be closed during a Read, like a body of net/http.
//
// After Close, or when net/http has closed the body because the response has started, Read returns the error of net/http. If the source is
// a body of another package, Read returns the rest of the buffer.
type BufferedBody struct {
	source io.ReadCloser
	length int // Content-Length
	http2  bool
	memory *MemoryPool

	mu          sync.Mutex // guards the fields below
	buffer      []byte     // bytes that were read ahead and not returned by Read yet
	err         error      // error that follows the buffer; nil: the source has more bytes, or Read has returned the error
	errWithData bool       // the source returned err together with its last bytes
	closed      bool
	reserved    int // number of bytes that are reserved from memory
}

// NewBody returns a BufferedBody for the body of r. Nothing is read yet. The caller must call ReleaseMemory.
func NewBody(r *http.Request, memory *MemoryPool) *BufferedBody {
	return &BufferedBody{source: r.Body, length: int(r.ContentLength), http2: r.ProtoMajor == 2, memory: memory}
}

// ReadAhead reads into the buffer until the body ends or fails, the memory pool is exhausted, or the body is longer than Content-Length.
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

// growBuffer enlarges the buffer. Its maximum is one byte more than Content-Length, so that the last Read gets io.EOF. It reports false at
// the maximum, or if the memory pool is exhausted.
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

// CallerContext returns the context in which the request waits for a slot. If ctx ended because the body did not arrive in time, the result
// does not end. The client is still connected then, and the handler gets the error from Read.
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

// readBuffer reads from the buffer. ok is false if the buffer and the error after it were read.
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

// closedError returns the error that Read must return because the source was closed; nil if the source can be read. It calls the source's
// Read only if that cannot block, because the source has ended or was closed.
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

// HasUnread reports whether Read has still to return buffered bytes, or the error after them.
func (b *BufferedBody) HasUnread() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hasUnread()
}

// TakeUnread empties the buffer and returns a copy of the bytes that Read has not returned yet. It drops the error after them.
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
