package quic

import (
	"context"
	"net/http"
	"sync"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const (
	// maxHeader is the number of bytes of a request's header. Package http3 allocates as many as a client announces. Queries of
	// more than about 6 KiB need the method POST.
	maxHeader = 1 << 13

	maxRequests = 100 // requests of a connection in flight; a client may expect that many (RFC 9114 §6.1)
)

// serveHTTP3 answers the HTTP/3 requests of a connection, until the connection ends. At most maxRequests are answered at
// a time. That includes requests that the client has cancelled.
//
// The deadlines of a stream begin before its header is read, because package http3 has no time limits.
func (c *serverConn) serveHTTP3() {
	server := &http3.Server{Handler: http.HandlerFunc(c.answerRequest), MaxHeaderBytes: maxHeader}
	conn, err := server.NewRawServerConn(c.Conn)
	if err != nil {
		c.abort(codeProtocolError, err) // the client permits no control stream
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for {
			stream, err := c.AcceptUniStream(context.Background())
			if err != nil {
				return
			}
			wg.Go(func() { conn.HandleUnidirectionalStream(stream) })
		}
	})
	slots := make(chan struct{}, maxRequests)
	for {
		slots <- struct{}{}
		stream, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		if !c.beginStream() {
			stream.CancelRead(quicgo.StreamErrorCode(http3.ErrCodeRequestRejected))
			stream.CancelWrite(quicgo.StreamErrorCode(http3.ErrCodeRequestRejected))
			<-slots
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			defer c.endQuery()
			_ = stream.SetReadDeadline(time.Now().Add(queryTimeout))
			_ = stream.SetWriteDeadline(time.Now().Add(queryTimeout + writeTimeout))
			conn.HandleRequestStream(stream)
		})
	}
}

// answerRequest answers an HTTP/3 request with any path; only /dns-query leads to a DNS response. It responds with 403 if
// the client is not in the access list.
func (c *serverConn) answerRequest(w http.ResponseWriter, r *http.Request) {
	c.unusedTimer.Reset(unusedTime)
	if !c.listener.handler.IsAllowed(c.RemoteAddr()) { // the address may have changed (RFC 9000 §9)
		w.WriteHeader(http.StatusForbidden)
		return
	}
	c.client.ServeHTTP(w, r)
	c.recordAnswer()
}
