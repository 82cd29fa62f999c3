package main

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	idleTime = 10 * time.Second       // that a client may take to ask
	newTime  = 500 * time.Millisecond // that a new connection has for its first byte when the server ends
	pageTime = 2 * time.Second        // that the page of the metrics has to end
)

// webServer is an HTTP server that new connections without a request do not hold up when it ends.
type webServer struct {
	*http.Server
	stateChanged func(net.Conn, http.ConnState) // is called besides; nil: nothing is

	mu          sync.Mutex // guards fresh
	unusedConns map[net.Conn]bool
}

// newWebServer returns a server of h whose clients cannot hold it up.
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

// trackNewConns records which connections are new: net/http waits five seconds for their first request.
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

// shutDown answers what was asked, until ctx ends, and closes all connections.
func (s *webServer) shutDown(ctx context.Context) error {
	t := time.AfterFunc(newTime, s.closeUnusedConns)
	defer t.Stop()
	err := s.Shutdown(ctx)
	if err != nil {
		_ = s.Close()
	}
	return err
}

// closeUnusedConns closes the connections that have sent nothing.
func (s *webServer) closeUnusedConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.unusedConns {
		go conn.Close() // to close a connection over TLS may take a while
	}
}
