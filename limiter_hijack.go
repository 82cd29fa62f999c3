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

// A serverWriter is the ResponseWriter of net/http over HTTP/1.1.
type serverWriter interface {
	http.ResponseWriter
	http.Flusher
	http.Hijacker
	io.ReaderFrom
	io.StringWriter
	CloseNotify() <-chan bool
}

// withBodyForHijack returns w with a Hijack that hands over the unread bytes of body, which were read ahead, before those of the connection. It returns w itself
// if w is not net/http's own: handlers may ask for the type of a middleware's ResponseWriter.
func withBodyForHijack(w http.ResponseWriter, body *upload.BufferedBody) http.ResponseWriter {
	own, ok := w.(serverWriter)
	if t := reflect.TypeOf(w); !ok || t.Kind() != reflect.Pointer || t.Elem().PkgPath() != "net/http" {
		return w
	}
	return &hijackWriter{own, body}
}

// A hijackWriter is a ResponseWriter whose Hijack returns the unread bytes of body.
type hijackWriter struct {
	serverWriter
	body *upload.BufferedBody
}

// Unwrap returns the ResponseWriter that [http.ResponseController] sets deadlines of.
func (w *hijackWriter) Unwrap() http.ResponseWriter { return w.serverWriter }

// FlushError flushes the ResponseWriter.
func (w *hijackWriter) FlushError() error { return http.NewResponseController(w.serverWriter).Flush() }

// Hijack takes over the connection. Its reader has the unread bytes of the body and those that the server has buffered, in its buffer.
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
