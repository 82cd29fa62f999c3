// Package upload reads small request bodies before the requests get a slot of the concurrency limit, so that clients that send
// slowly occupy no slots.
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
	maxBodyBytes     = 64 << 10 // maximum size of a body that is read ahead, in bytes
	maxPoolBytes     = 64 << 20 // size of a MemoryPool, in bytes
	firstBufferBytes = 4 << 10  // size of the first buffer of a body, in bytes; a client that sends nothing occupies no more memory
)

// A MemoryPool limits the memory for all bodies that are read ahead to 64 MiB in total. The zero value is a pool of which
// nothing is in use. It is safe for concurrent use.
type MemoryPool struct{ used atomic.Int64 }

// reserveBytes reserves n bytes of the pool. It returns false, and reserves nothing, if fewer bytes are left.
func (m *MemoryPool) reserveBytes(n int) bool {
	if m.used.Add(int64(n)) > maxPoolBytes {
		m.used.Add(-int64(n))
		return false
	}
	return true
}

// ShouldReadAhead reports whether the body of r should be read before r gets a slot. The length of the body must be known and
// at most 64 KiB.
//
// It is false if the client waits for the status 100 (Continue), as HTTP/1 requests with an Expect header do. It is also false
// for an upgrade request, because its handler reads the data from the connection.
func ShouldReadAhead(r *http.Request) bool {
	if r.ContentLength <= 0 || r.ContentLength > maxBodyBytes || r.Body == nil || len(r.Header["Expect"]) > 0 || len(r.Header["Upgrade"]) > 0 {
		return false
	}
	_, again := r.Body.(*BufferedBody)
	return !again
}

// A BufferedBody is a request body whose first bytes, or all bytes, were read ahead into a buffer. Read returns the same bytes
// and the same error as the original body: first from the buffer, and then from the original body. As with a body of net/http,
// Close may be called during a Read.
//
// After Close, or after net/http has closed the body because the response has started, Read returns the error of net/http. If
// the original body comes from another package, Read returns the rest of the buffer.
type BufferedBody struct {
	source io.ReadCloser // original body of the request
	length int           // value of Content-Length in bytes
	http2  bool          // the request uses HTTP/2
	memory *MemoryPool   // pool from which the buffer is reserved

	mu          sync.Mutex // guards the fields that follow
	buffer      []byte     // bytes that were read ahead and that Read has not returned yet
	err         error      // error that follows the bytes in buffer; nil: source has more bytes, or Read has already returned the error
	errWithData bool       // source returned err in the same call as its last bytes
	closed      bool       // Close was called
	reserved    int        // number of bytes that are reserved from the pool
}

// NewBody returns a BufferedBody for the body of r, without reading from it. The caller must call ReleaseMemory when the
// request has been handled.
func NewBody(r *http.Request, memory *MemoryPool) *BufferedBody {
	return &BufferedBody{source: r.Body, length: int(r.ContentLength), http2: r.ProtoMajor == 2, memory: memory}
}

// ReadAhead reads from the original body until it ends or fails, or the pool is used up. It also stops if the body turns out to
// be longer than Content-Length. It must only be called before the first Read.
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

// growBuffer enlarges the buffer to at most Content-Length plus one byte, so that the last read from the original body returns
// io.EOF. It returns false if the buffer has its maximum size or the pool is used up.
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

// CallerContext returns the context in which the request should wait for a slot. It must be called after ReadAhead. The
// result is ctx, the context of the request, with one exception.
//
// If the body did not arrive before the read deadline of the connection, net/http has ended ctx although the client is
// still connected. In this case the result does not end. The handler gets the error from Read.
func (b *BufferedBody) CallerContext(ctx context.Context) context.Context {
	if errors.Is(b.err, os.ErrDeadlineExceeded) {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// Read returns the bytes that were read ahead, and after them the bytes of the original body.
func (b *BufferedBody) Read(p []byte) (int, error) {
	if n, ok, err := b.readBuffer(p); ok {
		return n, err
	}
	return b.source.Read(p)
}

// readBuffer implements Read for the bytes in the buffer and the error that follows them. The result ok is false if
// Read has already returned all of these, so that Read must continue with the original body.
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

// hasUnread implements HasUnread. The caller must hold mu.
func (b *BufferedBody) hasUnread() bool { return len(b.buffer) > 0 || b.err != nil }

// closedError returns the error that Read must return after Close, or after net/http has closed the body. It returns
// nil if Read may continue. The caller must hold mu.
//
// It calls Read of the original body only if that cannot block, because the body has ended or was closed.
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

// Close closes the original body.
func (b *BufferedBody) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.source.Close()
}

// HasUnread reports whether the buffer has bytes, or an error after them, that Read has not returned yet.
func (b *BufferedBody) HasUnread() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hasUnread()
}

// TakeUnread empties the buffer and returns the bytes that Read has not returned yet. An error that follows these bytes is
// dropped.
func (b *BufferedBody) TakeUnread() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	unread := bytes.Clone(b.buffer)
	b.buffer, b.err = nil, nil
	b.returnMemory()
	return unread
}

// ReleaseMemory returns the reserved memory to the pool. Bytes in the buffer can still be read.
func (b *BufferedBody) ReleaseMemory() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.returnMemory()
}

// returnMemory implements ReleaseMemory. The caller must hold mu.
func (b *BufferedBody) returnMemory() {
	b.memory.used.Add(-int64(b.reserved))
	b.reserved = 0
}
