// Package asker asks a DNS server over UDP, for benchmarks of many clients.
package asker

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// An Asker asks one server. Each question has a socket that no other waits at. Sockets are
// used again after an answer. It is safe for concurrent use.
type Asker struct {
	// Dial opens a UDP socket that is connected to the server.
	Dial func(ctx context.Context) (net.Conn, error)
	// Timeout is how long an answer is awaited.
	Timeout time.Duration

	mu   sync.Mutex // guards idle
	idle []*dns.Conn
}

// Ask returns the answer to m.
func (a *Asker) Ask(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	conn := a.take()
	if conn == nil {
		udp, err := a.Dial(ctx)
		if err != nil {
			return nil, err
		}
		conn = &dns.Conn{Conn: udp, UDPSize: dns.MaxMsgSize}
	}
	client := dns.Client{Timeout: a.Timeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, m, conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.idle = append(a.idle, conn)
	return answer, nil
}

// Close closes the sockets that no question waits at.
func (a *Asker) Close() {
	for conn := a.take(); conn != nil; conn = a.take() {
		_ = conn.Close()
	}
}

// take returns an idle socket, or nil.
func (a *Asker) take() (conn *dns.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last := len(a.idle) - 1; last >= 0 {
		conn, a.idle = a.idle[last], a.idle[:last]
	}
	return conn
}
