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
	changed func(net.Conn, http.ConnState) // is called besides; nil: nothing is

	mu    sync.Mutex // guards fresh
	fresh map[net.Conn]bool
}

// newWebServer returns a server of h whose clients cannot hold it up.
func newWebServer(h http.Handler) *webServer {
	s := &webServer{fresh: make(map[net.Conn]bool)}
	s.Server = &http.Server{
		Handler: h, ReadHeaderTimeout: idleTime, ReadTimeout: 2 * idleTime, WriteTimeout: 2 * idleTime, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 1 << 17, // a message of 64 KiB in a URL
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: 128},
		ConnState:      s.noteState,
	}
	return s
}

// noteState records which connections are new: net/http waits five seconds for their first request.
func (s *webServer) noteState(conn net.Conn, is http.ConnState) {
	s.mu.Lock()
	if is == http.StateNew {
		s.fresh[conn] = true
	} else {
		delete(s.fresh, conn)
	}
	s.mu.Unlock()
	if s.changed != nil {
		s.changed(conn, is)
	}
}

// end answers what was asked, until ctx ends, and closes all connections.
func (s *webServer) end(ctx context.Context) error {
	t := time.AfterFunc(newTime, s.closeFresh)
	defer t.Stop()
	err := s.Shutdown(ctx)
	if err != nil {
		_ = s.Close()
	}
	return err
}

// closeFresh closes the connections that have sent nothing.
func (s *webServer) closeFresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.fresh {
		go conn.Close() // to close a connection over TLS may take a while
	}
}
