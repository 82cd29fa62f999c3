package hedgetest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/gohedge/hedge/hedgetest/internal/memory"
)

// A Server is an HTTP server in memory, which clients reach by [Server.Transport]. It is closed when its test ends. Its
// methods are safe for concurrent use.
type Server struct {
	Faults
	handler   http.Handler
	listener  *memory.Listener
	protocols *http.Protocols
	closing   memory.CloseSignal
}

// NewServer starts a server that speaks HTTP/1.1, and answers by handler what its [Faults] let through. A nil handler
// answers 200 without a body. A panic of the handler is logged, as by http.Server.
func NewServer(t testing.TB, handler http.Handler) *Server {
	t.Helper()
	return newServer(t, handler, (*http.Protocols).SetHTTP1)
}

// NewHTTP2Server is [NewServer] for HTTP/2, without TLS. In bubbles of testing/synctest it needs Go 1.26: net/http of Go 1.25 keeps
// channels of one bubble for the next, which then ends the process with "select on synctest channel from outside bubble".
func NewHTTP2Server(t testing.TB, handler http.Handler) *Server {
	t.Helper()
	return newServer(t, handler, (*http.Protocols).SetUnencryptedHTTP2)
}

func newServer(t testing.TB, handler http.Handler, speak func(*http.Protocols, bool)) *Server {
	t.Helper()
	if handler == nil {
		handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	}
	s := &Server{handler: handler, listener: memory.NewListener(), protocols: new(http.Protocols), closing: make(memory.CloseSignal)}
	speak(s.protocols, true)
	srv := &http.Server{Handler: http.HandlerFunc(s.serveAttempt), Protocols: s.protocols}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(s.listener) })
	t.Cleanup(func() {
		close(s.closing)
		_ = srv.Close()
		serving.Wait()
	})
	return s
}

// Transport returns a new *http.Transport whose connections lead to the server, whatever host is asked for: http://shop.test
// is as good as any, and https is not served. In a bubble, bodies of answers must be closed before it ends. Its idle connections are closed when the server is.
func (s *Server) Transport() *http.Transport {
	return &http.Transport{
		Protocols:           s.protocols,
		MaxIdleConnsPerHost: 100,
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return s.listener.Dial(ctx) },
	}
}

// serveAttempt answers an attempt as its fault says.
func (s *Server) serveAttempt(w http.ResponseWriter, r *http.Request) {
	f := s.Arrive()
	if f.Delay > 0 || f.Stall {
		readBody(r)
	}
	switch {
	case f.Delay > 0 && !s.closing.Pause(r.Context(), f.Delay):
		panic(http.ErrAbortHandler)
	case f.cutsOff() && f.After <= 0:
		s.endAttempt(r.Context(), f)
	case f.cutsOff():
		s.handler.ServeHTTP(&cutter{ResponseWriter: w, left: f.After, end: func() { s.endAttempt(r.Context(), f) }}, r)
	case f.Status != 0:
		w.WriteHeader(f.Status)
	default:
		s.handler.ServeHTTP(w, r)
	}
}

// readBody reads the body of a request, for the handler to read it again. Over HTTP/1.1, net/http notices that a client has gone only
// once the body is read. A body that cannot be read is one whose client has gone.
func readBody(r *http.Request) {
	if r.ProtoMajor > 1 {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
}

// endAttempt ends an attempt in the middle: at once, or when the client has gone or the server closes. It does not return.
func (s *Server) endAttempt(ctx context.Context, f Fault) {
	if !f.Reset {
		s.closing.Wait(ctx)
	}
	panic(http.ErrAbortHandler)
}

var _ http.Flusher = (*cutter)(nil)

// A cutter passes the first bytes of a body, as many as left says, and then ends the attempt.
type cutter struct {
	http.ResponseWriter
	left int64
	end  func() // does not return
}

func (c *cutter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Flush is for handlers that ask for an http.Flusher.
func (c *cutter) Flush() { _ = http.NewResponseController(c.ResponseWriter).Flush() }

func (c *cutter) Write(p []byte) (int, error) {
	if int64(len(p)) <= c.left {
		n, err := c.ResponseWriter.Write(p)
		c.left -= int64(n)
		return n, err
	}
	_, _ = c.ResponseWriter.Write(p[:c.left]) // if the client has gone, end says so
	c.Flush()
	c.end()
	return 0, nil
}
