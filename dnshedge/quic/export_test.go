package quic

import (
	"net/netip"
	"time"
)

// In tests, clients have less time, so that they need not wait for seconds.
func init() {
	query, write, end, handshake := queryTimeout, writeTimeout, endTimeout, handshakeTimeout
	RestoreTimeouts = func() {
		queryTimeout, writeTimeout, endTimeout, handshakeTimeout = query, write, end, handshake
	}
	queryTimeout, writeTimeout, endTimeout, handshakeTimeout = time.Second, time.Second, time.Second, 2*time.Second
}

// RestoreTimeouts gives clients as much time as outside tests. No listener may exist when it is called.
var RestoreTimeouts func()

// UnfinishedHandshakes returns the number of handshakes that have not ended.
func (l *Listener) UnfinishedHandshakes() int { return l.handshakes.count() }

// ValidatedHandshakes returns the number of unfinished handshakes of a client whose address is validated.
func (l *Listener) ValidatedHandshakes(client netip.Addr) int {
	l.handshakes.mu.Lock()
	defer l.handshakes.mu.Unlock()
	return l.handshakes.byPrefix[client]
}

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
