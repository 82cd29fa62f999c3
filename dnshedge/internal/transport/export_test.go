package transport

import (
	"net"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// ReadFrames reads c as a connection with four queries in flight, and returns when the connection has ended.
func ReadFrames(o Owner, c net.Conn) {
	s := newStreamTransport(Config{Owner: o}, nil)
	k := newConnection(s, &s.pools[0], c)
	for range 4 {
		_, _, _ = k.registerQuery(&pendingQuery{q: wire.RootServers, answer: make(chan []byte, 1)})
	}
	k.readMessages()
	s.Close()
}

// CauseOf is context.Cause, also for a Span.
var CauseOf = contextCause
