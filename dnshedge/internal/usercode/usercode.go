// Package usercode calls functions of the user on goroutines of this module. There a panic would end the process,
// because the user cannot recover it. So package usercode recovers it and returns an error.
package usercode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// A PanicError is the error that replaces a panic of the user's code.
type PanicError struct {
	Field string // the configuration field, such as "Dialer"
	Value any    // value of the panic
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("dnshedge: %s panicked: %v", e.Field, e.Value)
}

// RecoverPanic recovers a panic of the function that defers it, and stores a *PanicError in err. field is the name of
// the configuration field whose code may panic. It must be called by a defer statement.
func RecoverPanic(field string, err *error) {
	if p := recover(); p != nil {
		*err = &PanicError{field, p}
	}
}

// RunGuarded calls f, a function of the user. If f panics, RunGuarded returns normally and ignores the panic.
func RunGuarded(f func()) {
	defer func() { _ = recover() }()
	f()
}

// CallInGoroutine calls f, a function of the user, in a new goroutine, waits for its end, and returns its error. It
// returns an error as well if f panics or calls runtime.Goexit, which would end the caller's goroutine without a result.
// field is the name of the configuration field that contains f.
func CallInGoroutine(field string, f func() error) error {
	err := fmt.Errorf("dnshedge: %s ended its goroutine", field)
	var call sync.WaitGroup
	call.Go(func() {
		defer RecoverPanic(field, &err)
		err = f()
	})
	call.Wait()
	return err
}

var errNoConn = errors.New("dnshedge: Dialer returned neither a connection nor an error")

// A Dialer opens connections. It is implemented by *net.Dialer.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// DialGuarded calls d.DialContext, and wraps the connection by WrapConn. It returns a *PanicError if d panics, and an
// error if d returns neither a connection nor an error.
func DialGuarded(ctx context.Context, d Dialer, network, address string) (conn net.Conn, err error) {
	defer RecoverPanic("Dialer", &err)
	conn, err = d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if conn == nil {
		return nil, errNoConn
	}
	return WrapConn(conn), nil
}

// WrapConn wraps a connection of a user's type, so that a panic in one of its methods becomes a *PanicError. It returns
// connections of package net, which do not panic, unchanged.
func WrapConn(c net.Conn) net.Conn {
	switch c.(type) {
	case *net.TCPConn, *net.UDPConn, *net.UnixConn, *Conn:
		return c
	}
	return &Conn{c}
}

const connField = "method of a net.Conn"

// A Conn wraps a connection of a user's type, and returns a panic of its methods as an error. A *Conn can be compared
// and be the key of a map, even if the wrapped type is not comparable.
type Conn struct{ conn net.Conn }

var _ net.Conn = (*Conn)(nil)

// NetConn returns the wrapped connection, for example to read its TCP statistics. Panics of its methods are not
// recovered.
func (c *Conn) NetConn() net.Conn { return c.conn }

func (c *Conn) Read(b []byte) (n int, err error) {
	defer RecoverPanic(connField, &err)
	if n, err = c.conn.Read(b); n < 0 || n > len(b) { // package bufio would panic
		return 0, fmt.Errorf("dnshedge: Read of a net.Conn returned %d, for a buffer of %d bytes", n, len(b))
	}
	return n, err
}

func (c *Conn) Write(b []byte) (n int, err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.Write(b)
}

func (c *Conn) Close() (err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.Close()
}

// Handshake performs the TLS handshake. It does nothing if the wrapped connection has none.
func (c *Conn) Handshake() (err error) {
	defer RecoverPanic(connField, &err)
	if secure, ok := c.conn.(interface{ Handshake() error }); ok {
		return secure.Handshake()
	}
	return nil
}

// CloseWrite closes the writing side. It returns errors.ErrUnsupported if the wrapped connection cannot do that.
func (c *Conn) CloseWrite() (err error) {
	defer RecoverPanic(connField, &err)
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// LocalAddr returns the local address, or nil if the method of the wrapped connection panics.
func (c *Conn) LocalAddr() (a net.Addr) {
	defer func() { _ = recover() }()
	return c.conn.LocalAddr()
}

// RemoteAddr returns the remote address, or nil if the method of the wrapped connection panics.
func (c *Conn) RemoteAddr() (a net.Addr) {
	defer func() { _ = recover() }()
	return c.conn.RemoteAddr()
}

func (c *Conn) SetDeadline(t time.Time) (err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.SetDeadline(t)
}

func (c *Conn) SetReadDeadline(t time.Time) (err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.SetReadDeadline(t)
}

func (c *Conn) SetWriteDeadline(t time.Time) (err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.SetWriteDeadline(t)
}
