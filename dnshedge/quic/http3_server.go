package quic

import (
	"net/http"
	"time"

	"github.com/quic-go/quic-go/http3"
)

const maxHeader = 1 << 17 // bytes of a request's header, whose URL may have a message of 64 KiB; the same as over HTTPS

// serveHTTP3 answers the requests of a connection, until it ends.
func (c *serverConn) serveHTTP3() {
	mux := http.NewServeMux()
	mux.HandleFunc("/dns-query", c.answerRequest)
	_ = (&http3.Server{Handler: mux, MaxHeaderBytes: maxHeader}).ServeQUICConn(c.Conn)
}

// answerRequest answers a request for DNS over HTTPS.
func (c *serverConn) answerRequest(w http.ResponseWriter, r *http.Request) {
	if !c.beginQuery() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer c.endQuery()
	if !c.listener.handler.IsAllowed(c.RemoteAddr()) { // the address may have changed (RFC 9000 §9)
		w.WriteHeader(http.StatusForbidden)
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(queryTimeout))
	_ = control.SetWriteDeadline(time.Now().Add(queryTimeout + writeTimeout))
	c.client.ServeHTTP(w, r)
	c.recordAnswer()
}
