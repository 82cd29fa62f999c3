// Package dnsserver starts DNS servers that are processes of their own, and sends them queries over UDP.
package dnsserver

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// A Client sends DNS queries to one server over UDP, each in flight on a socket of its own. It is safe for concurrent
// use.
type Client struct {
	// Dial opens a UDP socket that is connected to the server.
	Dial func(ctx context.Context) (net.Conn, error)
	// Timeout limits the wait for an answer.
	Timeout time.Duration

	mu   sync.Mutex // guards idle
	idle []*dns.Conn
}

// Exchange sends the query m and returns the answer.
func (c *Client) Exchange(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	conn := c.popIdle()
	if conn == nil {
		udp, err := c.Dial(ctx)
		if err != nil {
			return nil, err
		}
		conn = &dns.Conn{Conn: udp, UDPSize: dns.MaxMsgSize}
	}
	client := dns.Client{Timeout: c.Timeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, m, conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, conn)
	return answer, nil
}

// Close closes the idle sockets.
func (c *Client) Close() {
	for conn := c.popIdle(); conn != nil; conn = c.popIdle() {
		_ = conn.Close()
	}
}

// popIdle removes and returns an idle socket, or nil.
func (c *Client) popIdle() (conn *dns.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.idle) - 1; last >= 0 {
		conn, c.idle = c.idle[last], c.idle[:last]
	}
	return conn
}
