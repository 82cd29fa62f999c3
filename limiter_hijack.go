package hedge

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"reflect"

	"github.com/gohedge/hedge/internal/upload"
)

// A serverWriter has the methods of the ResponseWriter that net/http passes to handlers over HTTP/1.1.
type serverWriter interface {
	http.ResponseWriter
	http.Flusher
	http.Hijacker
	io.ReaderFrom
	io.StringWriter
	CloseNotify() <-chan bool
}

// withBodyForHijack returns a ResponseWriter whose Hijack first delivers the unread bytes of body, which was read
// ahead. It only wraps net/http's own ResponseWriter. Any other w is returned unchanged, because handlers may depend on
// the type of a middleware's writer.
func withBodyForHijack(w http.ResponseWriter, body *upload.BufferedBody) http.ResponseWriter {
	own, ok := w.(serverWriter)
	if t := reflect.TypeOf(w); !ok || t.Kind() != reflect.Pointer || t.Elem().PkgPath() != "net/http" {
		return w
	}
	return &hijackWriter{own, body}
}

// A hijackWriter wraps net/http's ResponseWriter, so that Hijack also returns the unread bytes of a body that was read
// ahead.
type hijackWriter struct {
	serverWriter
	body *upload.BufferedBody
}

// Unwrap returns the wrapped ResponseWriter, on which [http.ResponseController] sets deadlines.
func (w *hijackWriter) Unwrap() http.ResponseWriter { return w.serverWriter }

// FlushError flushes the wrapped ResponseWriter, and returns the error of the flush.
func (w *hijackWriter) FlushError() error { return http.NewResponseController(w.serverWriter).Flush() }

// Hijack takes over the connection. The returned reader first delivers the unread bytes of the body, and then the bytes
// that the server has buffered.
func (w *hijackWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.serverWriter.Hijack()
	if err != nil {
		return conn, rw, err
	}
	pending := w.body.TakeUnread()
	if len(pending) == 0 {
		return conn, rw, nil
	}
	buffered, _ := rw.Reader.Peek(rw.Reader.Buffered())
	pending = append(pending, buffered...)
	_, _ = rw.Reader.Discard(len(buffered))
	reader := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(pending), rw.Reader), max(len(pending), rw.Reader.Size()))
	_, _ = reader.Peek(len(pending))
	return conn, bufio.NewReadWriter(reader, rw.Writer), nil
}
