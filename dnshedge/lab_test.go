package dnshedge_test

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

const ms = time.Millisecond

// TestMain has package net read the system's configuration before the first
// bubble: net keeps a channel for it, and a channel made in one bubble cannot
// be used in another.
func TestMain(m *testing.M) {
	own := net.Resolver{PreferGo: true}
	_, _ = own.LookupHost(context.Background(), "localhost")
	os.Exit(m.Run())
}

// lab is a client and three hosts with servers, 20 ms away, in a bubble.
type lab struct {
	*testing.T
	net *netsim.Network
}

func bubble(t *testing.T, f func(l *lab)) {
	t.Helper()
	dnstest.Certificate() // outside the bubble, for all of them
	synctest.Test(t, func(t *testing.T) {
		n, err := netsim.NewMemory(1, "client", "a", "b", "c")
		require.NoError(t, err)
		defer n.Close()
		l := &lab{t, n}
		for _, h := range []string{"a", "b", "c"} {
			l.link(h, netsim.Profile{Delay: netsim.Constant(10 * ms)})
		}
		f(l)
	})
}

// link sets both directions between the client and a host.
func (l *lab) link(host string, p netsim.Profile) { l.net.Set("client", host, p) }

// serve starts a server that speaks everything.
func (l *lab) serve(host string, h dnstest.Handler) *dnstest.Server {
	l.Helper()
	s := &dnstest.Server{Handler: h}
	at := l.net.Host(host)
	pc, err := at.ListenPacket("udp", ":53")
	require.NoError(l, err)
	s.ServeUDP(pc)
	for port, serve := range map[string]func(net.Listener){":53": s.ServeTCP, ":853": s.ServeTLS, ":443": s.ServeHTTPS} {
		ln, err := at.Listen("tcp", port)
		require.NoError(l, err)
		serve(ln)
	}
	l.Cleanup(s.Close)
	return s
}

// up returns the upstream of a host.
func (l *lab) up(network, host string) dnshedge.Upstream {
	l.Helper()
	s := network + "://" + l.net.Host(host).Addr().String()
	if network == "tls" || network == "https" {
		s += "#" + dnstest.Name
	}
	up, err := dnshedge.ParseUpstream(s)
	require.NoError(l, err)
	return up
}

// client completes a client and closes it at the end.
func (l *lab) client(c *dnshedge.Client, ups ...dnshedge.Upstream) *dnshedge.Client {
	c.Upstreams = ups
	c.Dialer = l.net.Host("client")
	_, trusting := dnstest.Certificate()
	c.TLSConfig = trusting
	l.Cleanup(func() { c.Close() })
	return c
}

func question(name string, typ uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, typ)
	return m
}

// ask asks for an A record, and returns how long that took.
func (l *lab) ask(c *dnshedge.Client, name string) (*dns.Msg, time.Duration, error) {
	l.Helper()
	start := time.Now()
	r, rtt, err := c.Exchange(question(name, dns.TypeA), "")
	took := time.Since(start)
	assert.Equal(l, took, rtt)
	return r, took, err
}

// must is ask where no error is expected.
func (l *lab) must(c *dnshedge.Client, name string) (*dns.Msg, time.Duration) {
	l.Helper()
	r, took, err := l.ask(c, name)
	require.NoError(l, err)
	return r, took
}

// addr returns the first address of a response.
func addr(r *dns.Msg) string {
	for _, rr := range r.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return ""
}

// script answers the n-th query, from 0, as told; the last reply is for all that follow.
func script(replies ...func(q dnstest.Query) dnstest.Reply) dnstest.Handler {
	var mu sync.Mutex
	n := 0
	return func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		i := min(n, len(replies)-1)
		n++
		mu.Unlock()
		return replies[i](q)
	}
}

func good(q dnstest.Query) dnstest.Reply { return dnstest.Reply{Msg: dnstest.Answer(q, "A 192.0.2.1")} }

func drop(dnstest.Query) dnstest.Reply { return dnstest.Reply{} }

func rcode(code int) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply { return dnstest.Reply{Msg: dnstest.Rcode(q, code)} }
}

func after(d time.Duration, h dnstest.Handler) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		r := h(q)
		r.Delay += d
		return r
	}
}

// learn makes the client know its servers.
func (l *lab) learn(c *dnshedge.Client) {
	l.Helper()
	for range 40 {
		l.must(c, "learn.example.")
	}
}

var background = context.Background()

// bubbleOnly runs f in a bubble without a network.
func bubbleOnly(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
