package forward

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	idleTime = 10 * time.Second       // limit for reading the header of a request; other limits are multiples
	newTime  = 500 * time.Millisecond // time that a new connection has for its first byte during a shutdown
	pageTime = 2 * time.Second        // time for the shutdown of the server of the metrics
)

// httpServer is an HTTP server whose shutdown does not wait for new connections without a request.
type httpServer struct {
	*http.Server
	stateChanged func(net.Conn, http.ConnState) // called on each change of a connection's state; may be nil

	mu          sync.Mutex        // guards unusedConns
	unusedConns map[net.Conn]bool // open connections that have not sent a request
}

// newHTTPServer returns an HTTP server with the handler h, and with time limits for slow clients.
func newHTTPServer(h http.Handler) *httpServer {
	s := &httpServer{unusedConns: make(map[net.Conn]bool)}
	s.Server = &http.Server{
		Handler: h, ReadHeaderTimeout: idleTime, ReadTimeout: 2 * idleTime, WriteTimeout: 2 * idleTime, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 1 << 17, // a message of 64 KiB in a URL
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 128,
			WriteByteTimeout:     2 * idleTime, // over HTTP/2, WriteTimeout ends no connection whose client reads nothing
		},
		ConnState: s.handleConnState,
	}
	return s
}

// handleConnState is the callback for changes of a connection's state (http.Server.ConnState). state is the new state
// of conn. handleConnState records which open connections have not sent a request yet, so that Shutdown can close them.
// It also calls stateChanged.
func (s *httpServer) handleConnState(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	if state == http.StateNew {
		s.unusedConns[conn] = true
	} else {
		delete(s.unusedConns, conn)
	}
	s.mu.Unlock()
	if s.stateChanged != nil {
		s.stateChanged(conn, state)
	}
}

// Shutdown closes the listeners, answers the requests that were received, and closes all connections. A new connection
// has 500 ms (newTime) for its first request. If ctx ends first, Shutdown closes all connections and returns the error
// of ctx.
func (s *httpServer) Shutdown(ctx context.Context) error {
	defer time.AfterFunc(newTime, func() { // http.Server would wait 5 s for the first request on a new connection
		s.mu.Lock()
		defer s.mu.Unlock()
		for conn := range s.unusedConns {
			go conn.Close() // closing a TLS connection may take long
		}
	}).Stop()
	err := s.Server.Shutdown(ctx)
	if err != nil {
		_ = s.Close()
	}
	return err
}
