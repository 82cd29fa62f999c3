package quic

import "time"

// In tests, clients have less time, so that they need not wait for seconds.
func init() {
	queryTimeout, writeTimeout, endTimeout, handshakeTimeout = time.Second, time.Second, time.Second, 2*time.Second
}

// UnfinishedHandshakes returns the number of handshakes that have not ended.
func (l *Listener) UnfinishedHandshakes() int { return l.handshakes.count() }

// OpenConns returns the number of connections whose handshake has ended.
func (l *Listener) OpenConns() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// The limits of a Listener and of a connection.
const (
	FreeHandshakes      = freeHandshakes
	MaxClientHandshakes = maxClientHandshakes
	MaxStreams          = maxStreams
	MaxRequests         = maxRequests
)

// The functions of the registered protocols that open a connection.
var (
	DialDoQ   = dialDoQ
	DialHTTP3 = dialHTTP3
)
