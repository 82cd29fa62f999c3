// Package conncount counts the connections that servers accept.
package conncount

import (
	"net"
	"sync/atomic"
)

// A Listener is a net.Listener that counts the connections that it accepts.
type Listener struct {
	net.Listener
	Accepted *atomic.Int64
}

// Accept waits for the next connection, counts it, and returns it.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.Accepted.Add(1)
	}
	return c, err
}
