// Package dnsserver starts DNS servers that are processes of their own, and sends them queries over UDP.
package dnsserver

import (
	"context"
	"net"
	"time"

	"github.com/miekg/dns"
)

// A Client sends DNS queries to one server over UDP, each from a socket of its own. It is safe for concurrent use.
type Client struct {
	// Dial opens a UDP socket that is connected to the server.
	Dial func(ctx context.Context) (net.Conn, error)
	// Timeout limits the wait for an answer.
	Timeout time.Duration
}

// Exchange sends the query m and returns the answer.
func (c *Client) Exchange(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	socket, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	client := dns.Client{Timeout: c.Timeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: socket, UDPSize: dns.MaxMsgSize})
	return answer, err
}
