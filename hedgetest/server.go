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

// A Server is an in-memory HTTP server for tests. Clients connect to it through [Server.Transport]. It is closed when
// its test ends. Its methods are safe for concurrent use.
type Server struct {
	Faults
	handler   http.Handler
	listener  *memory.Listener
	protocols *http.Protocols    // HTTP versions of the server and its clients
	closing   memory.CloseSignal // wakes stalled attempts when the server is closed
}

// NewServer starts an HTTP/1.1 server that is closed when t ends. For each attempt it applies the assigned [Fault], or
// calls the handler if there is none. A nil handler responds with status 200 and no body. A panic of the handler is
// logged, as by http.Server.
func NewServer(t testing.TB, handler http.Handler) *Server {
	t.Helper()
	return newServer(t, handler, (*http.Protocols).SetHTTP1)
}

// NewHTTP2Server is [NewServer] for HTTP/2 without TLS. In a bubble of testing/synctest it needs Go 1.26. net/http of
// Go 1.25 shares channels between bubbles, which ends the process with "select on synctest channel from outside
// bubble".
func NewHTTP2Server(t testing.TB, handler http.Handler) *Server {
	t.Helper()
	return newServer(t, handler, (*http.Protocols).SetUnencryptedHTTP2)
}

// newServer starts a server with the given handler. The function enable is a method expression such as
// (*http.Protocols).SetHTTP2, by which newServer enables the HTTP version of the server.
func newServer(t testing.TB, handler http.Handler, enable func(*http.Protocols, bool)) *Server {
	t.Helper()
	if handler == nil {
		handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	}
	s := &Server{handler: handler, listener: memory.NewListener(), protocols: new(http.Protocols), closing: make(memory.CloseSignal)}
	enable(s.protocols, true)
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

// Transport returns a new *http.Transport that connects to the server for every host name, such as http://shop.test.
// The server does not support https. Idle connections are closed when the server is closed. In a bubble of
// testing/synctest, response bodies must be closed before the bubble ends.
func (s *Server) Transport() *http.Transport {
	return &http.Transport{
		Protocols:           s.protocols,
		MaxIdleConnsPerHost: 100,
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return s.listener.Dial(ctx) },
	}
}

// serveAttempt handles one attempt: it applies the assigned Fault, or calls the handler.
func (s *Server) serveAttempt(w http.ResponseWriter, r *http.Request) {
	f := s.Arrive()
	if f.Delay > 0 || f.Stall {
		readBody(r)
	}
	switch {
	case f.Delay > 0 && !s.closing.Pause(r.Context(), f.Delay):
		panic(http.ErrAbortHandler)
	case f.isCutOff() && f.After <= 0:
		s.endAttempt(r.Context(), f)
	case f.isCutOff():
		s.handler.ServeHTTP(&truncatingWriter{ResponseWriter: w, bytesLeft: f.After, end: func() { s.endAttempt(r.Context(), f) }}, r)
	case f.Status != 0:
		w.WriteHeader(f.Status)
	default:
		s.handler.ServeHTTP(w, r)
	}
}

// readBody reads the body of an HTTP/1.1 request into memory, because net/http detects that a client has gone only
// after the body. It panics with http.ErrAbortHandler if reading fails.
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

// endAttempt ends an attempt without a further response. Unless f is a Reset, it first waits until the client has gone
// or the server closes. It never returns: it panics with http.ErrAbortHandler.
func (s *Server) endAttempt(ctx context.Context, f Fault) {
	if !f.Reset {
		s.closing.Wait(ctx)
	}
	panic(http.ErrAbortHandler)
}

var _ http.Flusher = (*truncatingWriter)(nil)

// A truncatingWriter is a ResponseWriter that sends the first bytes of a body, and ends the attempt when the handler
// writes more.
type truncatingWriter struct {
	http.ResponseWriter
	// number of bytes that may still be sent
	bytesLeft int64
	end       func() // ends the attempt; does not return
}

func (c *truncatingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Flush implements [http.Flusher], because handlers may check whether their ResponseWriter is a Flusher.
func (c *truncatingWriter) Flush() { _ = http.NewResponseController(c.ResponseWriter).Flush() }

func (c *truncatingWriter) Write(p []byte) (int, error) {
	if int64(len(p)) <= c.bytesLeft {
		n, err := c.ResponseWriter.Write(p)
		c.bytesLeft -= int64(n)
		return n, err
	}
	_, _ = c.ResponseWriter.Write(p[:c.bytesLeft]) // if the client has gone, end says so
	c.Flush()
	c.end()
	return 0, nil
}
