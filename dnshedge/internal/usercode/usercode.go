// Package usercode calls the user's code on goroutines of this module. The user cannot recover a panic there, and it
// would end the process. So package usercode recovers it and returns an error.
package usercode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// A PanicError is the panic of code that a program's author has set in a field.
type PanicError struct {
	Field string // as "Dialer"
	Value any    // of the panic
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("dnshedge: %s panicked: %v", e.Field, e.Value)
}

// RecoverPanic makes a panic the error of the function that defers it.
func RecoverPanic(field string, err *error) {
	if p := recover(); p != nil {
		*err = &PanicError{field, p}
	}
}

// RunGuarded calls f, and recovers from its panic without telling anybody.
func RunGuarded(f func()) {
	defer func() { _ = recover() }()
	f()
}

var errNoConn = errors.New("dnshedge: Dialer returned neither a connection nor an error")

// A Dialer opens connections. *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// DialGuarded calls d.DialContext. It returns a [PanicError] if d panics, and an error if d returns neither a
// connection nor an error. Methods of the connection return a PanicError when a method of d's connection panics.
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

// WrapConn returns a connection whose methods return a [PanicError] when a method of c panics. It returns connections
// of package net unchanged.
func WrapConn(c net.Conn) net.Conn {
	switch c.(type) {
	case *net.TCPConn, *net.UDPConn, *net.UnixConn, *Conn:
		return c
	}
	return &Conn{c}
}

const connField = "method of a net.Conn"

// Conn is a connection of an unknown type. It can be compared, whatever the type.
type Conn struct{ conn net.Conn }

var _ net.Conn = (*Conn)(nil)

// NetConn returns the connection of the unknown type.
func (c *Conn) NetConn() net.Conn { return c.conn }

func (c *Conn) Read(b []byte) (n int, err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.Read(b)
}

func (c *Conn) Write(b []byte) (n int, err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.Write(b)
}

// Close closes the connection.
func (c *Conn) Close() (err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.Close()
}

// CloseWrite closes the connection for writing, if its type has that method.
func (c *Conn) CloseWrite() (err error) {
	defer RecoverPanic(connField, &err)
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// LocalAddr returns nil if the connection does not know its address.
func (c *Conn) LocalAddr() (a net.Addr) {
	defer func() { _ = recover() }()
	return c.conn.LocalAddr()
}

// RemoteAddr returns nil if the connection does not know its address.
func (c *Conn) RemoteAddr() (a net.Addr) {
	defer func() { _ = recover() }()
	return c.conn.RemoteAddr()
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) (err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.SetDeadline(t)
}

// SetReadDeadline sets the deadline of Read.
func (c *Conn) SetReadDeadline(t time.Time) (err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.SetReadDeadline(t)
}

// SetWriteDeadline sets the deadline of Write.
func (c *Conn) SetWriteDeadline(t time.Time) (err error) {
	defer RecoverPanic(connField, &err)
	return c.conn.SetWriteDeadline(t)
}
