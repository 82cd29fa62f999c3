// Package conncount counts the connections that servers accept.
package conncount

import (
	"net"
	"sync/atomic"
)

// A Listener counts the connections that it accepts.
type Listener struct {
	net.Listener
	Accepted *atomic.Int64
}

// Accept returns the next connection.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.Accepted.Add(1)
	}
	return c, err
}
