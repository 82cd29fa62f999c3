package main

import (
	"context"
	"fmt"
	"net"
)

// A network joins callers and backends.
type network interface {
	// listen listens where only backend n does.
	listen(n int) (net.Listener, error)
	// listenAt listens at backend n's address of a host that has several. Port "0" is any.
	listenAt(n int, port string) (net.Listener, error)
	dial(ctx context.Context, network, addr string) (net.Conn, error)
}

// loopback is that of this machine.
type loopback struct{}

func (loopback) listen(int) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

func (loopback) listenAt(n int, port string) (net.Listener, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:%s", 1+n, port))
	if err != nil {
		return nil, fmt.Errorf("this system may not have 127.0.0.%d: %w", 1+n, err)
	}
	return l, nil
}

func (loopback) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr)
}
