package dnshedge

import (
	"context"
	"crypto/tls"
	"net"
)

// A Dialer opens connections. *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// dialer returns the Dialer for connections to an upstream.
func (c *core) dialer(up Upstream) Dialer {
	d := c.conf.Dialer
	if d == nil {
		d = new(net.Dialer)
	}
	if len(up.Addrs) > 0 {
		return d
	}
	return bootstrapDialer{d}
}

// bootstrapDialer marks the contexts under which an upstream's own name is resolved,
// so that Client.Dial refuses to resolve it through the upstream itself.
type bootstrapDialer struct{ Dialer }

func (d bootstrapDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return d.Dialer.DialContext(context.WithValue(ctx, bootstrapKey{}, true), network, address)
}

type bootstrapKey struct{}

// tls returns the TLS configuration of connections to an upstream.
func (c *core) tls(up Upstream) *tls.Config {
	t := c.conf.TLSConfig.Clone()
	if t == nil {
		t = new(tls.Config)
	}
	if up.ServerName != "" || t.ServerName == "" {
		t.ServerName = up.serverName()
	}
	if t.ClientSessionCache == nil {
		t.ClientSessionCache = c.sessions
	}
	return t
}
