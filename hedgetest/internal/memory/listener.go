// Package memory provides network connections without sockets. A goroutine that waits for an in-memory connection is
// durably blocked, as the fake time of testing/synctest requires.
package memory

import (
	"context"
	"net"
	"sync"
)

// A Listener is a [net.Listener] whose connections are made in memory by its method Dial. It is safe for concurrent
// use.
type Listener struct {
	// pending holds connections that wait for Accept.
	pending chan net.Conn
	closed  chan struct{} // closed when the Listener is closed
	close   sync.Once

	mu       sync.Mutex          // guards the fields below
	lastPort int                 // number of connections so far, used as the client's port
	conns    map[string]net.Conn // client ends of open connections, by the address that the server sees
}

var _ net.Listener = (*Listener)(nil)

// NewListener returns an open Listener. Pass it to the Serve method of a server.
func NewListener() *Listener {
	return &Listener{pending: make(chan net.Conn), closed: make(chan struct{}), conns: make(map[string]net.Conn)}
}

// A conn is the client's or the server's end of an in-memory connection.
type conn struct {
	net.Conn
	local, remote net.Addr
	// closed is called when this end of the connection is closed.
	closed func()
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// serverAddr is the address of the Listener, which is reserved for documentation (RFC 5737, section 3).
var serverAddr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80}

// Dial connects to the Listener, and waits until the server accepts the connection. It returns the client's end. If ctx
// ends before, it returns the error of ctx. If the Listener is closed, it returns [net.ErrClosed].
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	l.mu.Lock()
	l.lastPort++
	from := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: l.lastPort}
	l.mu.Unlock()
	name := from.String()
	ours, theirs := net.Pipe()
	l.mu.Lock()
	l.conns[name] = ours
	l.mu.Unlock()
	forget := func() { l.removeConn(name) }
	select {
	case l.pending <- &conn{theirs, serverAddr, from, forget}:
		return &conn{ours, from, serverAddr, forget}, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	case <-l.closed:
		forget()
		return nil, net.ErrClosed
	}
}

// removeConn removes a closed connection from the map of open connections. The name is the address of its client as
// text.
func (l *Listener) removeConn(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, name)
}

// CutConn closes the connection from the client with the given address, as a network failure would. It does nothing if
// the client has no open connection.
func (l *Listener) CutConn(from net.Addr) {
	l.mu.Lock()
	c := l.conns[from.String()]
	l.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// Accept implements [net.Listener]: it waits for the next connection and returns the server's end. It returns
// [net.ErrClosed] once the Listener is closed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.pending:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]: later calls of Accept and Dial fail, and waiting calls return. Open connections stay
// open. The error is always nil.
func (l *Listener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// Addr implements [net.Listener]: it returns 192.0.2.1:80, an address that no host has.
func (l *Listener) Addr() net.Addr { return serverAddr }
