package dnshedge_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// named returns the same server by a name.
func named(up dnshedge.Upstream) dnshedge.Upstream {
	_, port, _ := net.SplitHostPort(up.Addr)
	up.Addr = net.JoinHostPort(dnstest.Name, port)
	return up
}

// loopbackAddress answers A queries with this machine's address, and counts the queries.
func loopbackAddress(n *atomic.Int64) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		n.Add(1)
		if q.Question[0].Qtype == dns.TypeA {
			return dnstest.Reply{Msg: dnstest.Answer(q, "3600 A 127.0.0.1")}
		}
		return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeSuccess, 60, 60)}
	}
}

func TestDialerLetsOtherClientResolveUpstream(t *testing.T) {
	var n atomic.Int64
	other := &dnshedge.Client{Upstreams: []dnshedge.Upstream{local(t, "udp", loopbackAddress(&n))}}
	defer other.Close()
	c := trusting(&dnshedge.Client{Upstreams: []dnshedge.Upstream{named(local(t, "tls", good))}, Dialer: &net.Dialer{Resolver: other.Resolver()}})
	defer c.Close()
	r, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
	require.NoError(t, err)
	assert.Equal(t, "192.0.2.1", addr(r))
}

func TestClientReportsBootstrapLoop(t *testing.T) {
	var a, b *dnshedge.Client
	through := func(c **dnshedge.Client) *net.Dialer {
		return &net.Dialer{Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (*c).Dial(ctx, network, address)
		}}}
	}
	up := []dnshedge.Upstream{{Net: "udp", Addr: "dns.example:53"}}
	a = &dnshedge.Client{Upstreams: up, Dialer: through(&b)}
	b = &dnshedge.Client{Upstreams: up, Dialer: through(&a)}
	defer a.Close()
	defer b.Close()
	start := time.Now()
	_, _, err := a.Exchange(question("x.example.", dns.TypeA), "")
	require.ErrorContains(t, err, "must not be resolved through it")
	assert.Less(t, time.Since(start), 5*time.Second)
}

func TestDialerResolvesUpstreamOnceAMinute(t *testing.T) {
	var n atomic.Int64
	boot := local(t, "udp", loopbackAddress(&n))
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", boot.Addr)
	}}
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{named(local(t, "udp", good))}, Dialer: &net.Dialer{Resolver: resolver}}
	defer c.Close()
	for range 100 {
		_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
		require.NoError(t, err)
	}
	assert.LessOrEqual(t, n.Load(), int64(8))
}

func TestClientCloseDoesNotWaitForConnQuestions(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		c := l.client(off(), l.up("udp", "a"))
		k, err := c.Dial(background, "udp", "")
		require.NoError(t, err)
		b, err := question("x.example.", dns.TypeA).Pack()
		require.NoError(t, err)
		_, err = k.Write(append([]byte{0, byte(len(b))}, b...))
		require.NoError(t, err)
		time.Sleep(10 * ms)
		start := time.Now()
		require.NoError(t, c.Close())
		assert.Zero(t, time.Since(start))
		_, err = k.Read(b)
		require.ErrorContains(t, err, "client is closed")
	})
}
