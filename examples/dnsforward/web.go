package main

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

// webServer is an HTTP server whose shutdown does not wait for new connections without a request.
type webServer struct {
	*http.Server
	stateChanged func(net.Conn, http.ConnState) // called on each change of a connection's state; may be nil

	mu          sync.Mutex // guards fresh
	unusedConns map[net.Conn]bool
}

// newWebServer returns a server of h, with limits for slow clients.
func newWebServer(h http.Handler) *webServer {
	s := &webServer{unusedConns: make(map[net.Conn]bool)}
	s.Server = &http.Server{
		Handler: h, ReadHeaderTimeout: idleTime, ReadTimeout: 2 * idleTime, WriteTimeout: 2 * idleTime, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 1 << 17, // a message of 64 KiB in a URL
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: 128},
		ConnState:      s.trackNewConns,
	}
	return s
}

// trackNewConns records the connections without a request. During a shutdown, net/http would wait five seconds for
// their first request.
func (s *webServer) trackNewConns(conn net.Conn, is http.ConnState) {
	s.mu.Lock()
	if is == http.StateNew {
		s.unusedConns[conn] = true
	} else {
		delete(s.unusedConns, conn)
	}
	s.mu.Unlock()
	if s.stateChanged != nil {
		s.stateChanged(conn, is)
	}
}

// shutDown answers the requests that were received, until ctx ends, and closes all connections.
func (s *webServer) shutDown(ctx context.Context) error {
	t := time.AfterFunc(newTime, s.closeUnusedConns)
	defer t.Stop()
	err := s.Shutdown(ctx)
	if err != nil {
		_ = s.Close()
	}
	return err
}

// closeUnusedConns closes the connections without a request.
func (s *webServer) closeUnusedConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.unusedConns {
		go conn.Close() // closing a TLS connection may take long
	}
}
