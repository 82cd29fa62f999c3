// Package memory provides network connections without sockets. A goroutine that waits for such a connection is durably
// blocked, as the fake time of testing/synctest requires.
package memory

import (
	"context"
	"net"
	"sync"
)

// A Listener accepts in-memory connections made by Dial. It implements [net.Listener], and is safe for concurrent use.
type Listener struct {
	// connections waiting for Accept
	made   chan net.Conn
	closed chan struct{}
	close  sync.Once

	mu    sync.Mutex // guards the fields below
	ports int
	conns map[string]net.Conn // client ends of open connections, by the address that the server sees
}

var _ net.Listener = (*Listener)(nil)

// NewListener returns an open Listener.
func NewListener() *Listener {
	return &Listener{made: make(chan net.Conn), closed: make(chan struct{}), conns: make(map[string]net.Conn)}
}

// A conn is one end of a connection.
type conn struct {
	net.Conn
	local, remote net.Addr
	// called when this end is closed
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

// Dial connects to the Listener. It returns the error of ctx if that ends first, or [net.ErrClosed].
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	l.mu.Lock()
	l.ports++
	from := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: l.ports}
	l.mu.Unlock()
	name := from.String()
	ours, theirs := net.Pipe()
	l.mu.Lock()
	l.conns[name] = ours
	l.mu.Unlock()
	forget := func() { l.removeConn(name) }
	select {
	case l.made <- &conn{theirs, serverAddr, from, forget}:
		return &conn{ours, from, serverAddr, forget}, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	case <-l.closed:
		forget()
		return nil, net.ErrClosed
	}
}

// removeConn removes a closed connection, by the address of its client.
func (l *Listener) removeConn(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, name)
}

// CutConn closes the connection of the client with the address from, without notice to either side.
func (l *Listener) CutConn(from net.Addr) {
	l.mu.Lock()
	c := l.conns[from.String()]
	l.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// Accept waits for the next connection. It returns [net.ErrClosed] once the Listener is closed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.made:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close makes Accept and Dial fail. Open connections stay open.
func (l *Listener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// Addr returns the address of the Listener.
func (l *Listener) Addr() net.Addr { return serverAddr }
