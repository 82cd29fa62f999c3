package dnslab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// giveUp is when a contender that does not give up by itself is made to.
const giveUp = 15 * time.Second

// strategies are the contenders.
var strategies = []struct {
	name    string
	overUDP bool // over no other transport
	start   func(*bench, *contender) error
}{
	{"single", false, hedged(dnshedge.Hedge{Off: true})},
	{"fixed-10ms", false, hedged(dnshedge.Hedge{Fixed: 10 * time.Millisecond})},
	{"hedge", false, hedged(dnshedge.Hedge{})},
	{"miekg", true, (*bench).miekg},
	{"net-resolver", true, (*bench).netResolver},
	{"forwarder", true, (*bench).forwarder},
	{"unbound", true, (*bench).unbound},
	{"dnsdist", true, (*bench).dnsdist},
	{"coredns", true, (*bench).coredns},
}

// Strategies are the names of the contenders, and OverUDP of those that ask over UDP
// alone.
var Strategies, OverUDP = func() (all, udp []string) {
	for _, s := range strategies {
		all = append(all, s.name)
		if s.overUDP {
			udp = append(udp, s.name)
		}
	}
	return all, udp
}()

// contender is a strategy in use.
type contender struct {
	name  string
	ask   func(ctx context.Context, name string) error
	count *counter
	stats func(r *Row)
	close func()

	mu    sync.Mutex // guards calls
	calls []latency.Call
}

// counter is a Dialer that counts. Every query is one Write.
type counter struct {
	dnshedge.Dialer
	queries, conns atomic.Int64
}

func (c *counter) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	k, err := c.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(network, "tcp") {
		c.conns.Add(1)
		return k, nil
	}
	return &counted{k, c}, nil
}

// counted is a net.PacketConn, because that is how Go's resolver and miekg's client
// recognise datagrams.
type counted struct {
	net.Conn
	*counter
}

var _ net.PacketConn = (*counted)(nil)

func (c *counted) Write(b []byte) (int, error) {
	c.queries.Add(1)
	return c.Conn.Write(b)
}

func (c *counted) ReadFrom(b []byte) (int, net.Addr, error) {
	return c.Conn.(net.PacketConn).ReadFrom(b)
}

func (c *counted) WriteTo(b []byte, to net.Addr) (int, error) {
	c.queries.Add(1)
	return c.Conn.(net.PacketConn).WriteTo(b, to)
}

// measure asks once. The call's start is counted from the given time.
func (c *contender) measure(ctx context.Context, start time.Time, name string) {
	begun := time.Now()
	err := c.ask(ctx, name)
	took := time.Since(begun)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	call := latency.Call{Start: begun.Sub(start), Latency: took, Index: int32(len(c.calls))}
	if err != nil {
		call.Winner = -1
	}
	c.calls = append(c.calls, call)
}

// row returns what was measured.
func (c *contender) row() Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := Row{Strategy: c.name, Calls: c.calls, Queries: c.count.queries.Load(), Conns: c.count.conns.Load()}
	if c.stats != nil {
		c.stats(&r)
	}
	return r
}

// upstreams returns the servers that contenders may ask: both if one may be dead or
// many questions are in flight, and else the first.
func (b *bench) upstreams() []string {
	hosts := []string{"a"}
	if strings.HasPrefix(b.conf.Scenario, "dead") || b.conf.Workers > 0 {
		hosts = []string{"a", "b"}
	}
	var out []string
	for _, h := range hosts {
		out = append(out, b.net.Host(h).Addr().String())
	}
	return out
}

// contenders starts those of the given names; without names, all that can run here.
func (b *bench) contenders(names []string) ([]*contender, error) {
	chosen := names
	if len(chosen) == 0 {
		chosen = Strategies
	}
	var all []*contender
	for _, name := range chosen {
		i := slices.Index(Strategies, name)
		if i < 0 {
			return all, fmt.Errorf("dnslab: strategy %q; want one of %s", name, strings.Join(Strategies, ", "))
		}
		s := strategies[i]
		if len(names) == 0 && s.overUDP && b.conf.Transport != "udp" {
			continue
		}
		c := &contender{name: name, count: &counter{Dialer: b.net.Host("client")}, close: func() {}}
		err := s.start(b, c)
		if errors.Is(err, exec.ErrNotFound) && len(names) == 0 {
			continue
		}
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	return all, nil
}

// right returns an error if an answer is wrong.
func right(r *dns.Msg, err error) error {
	switch {
	case err != nil:
		return err
	case r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1:
		return fmt.Errorf("dnslab: wrong answer: %s, %d records", dns.RcodeToString[r.Rcode], len(r.Answer))
	}
	return nil
}

func question(name string) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	return m
}

// hedged returns what starts a Client with the given settings.
func hedged(h dnshedge.Hedge) func(*bench, *contender) error {
	return func(b *bench, c *contender) error { return b.client(c, h) }
}

func (b *bench) client(c *contender, h dnshedge.Hedge) error {
	_, trusting := dnstest.Certificate()
	client := &dnshedge.Client{Hedge: h, Dialer: c.count, TLSConfig: trusting}
	for _, at := range b.upstreams() {
		s := b.conf.Transport + "://" + at
		if b.conf.Transport != "udp" {
			s += "#" + dnstest.Name
		}
		up, err := dnshedge.ParseUpstream(s)
		if err != nil {
			return err
		}
		client.Upstreams = append(client.Upstreams, up)
	}
	c.close = func() { _ = client.Close() }
	c.ask = func(ctx context.Context, name string) error {
		r, _, err := client.ExchangeContext(ctx, question(name), "")
		return right(r, err)
	}
	c.stats = func(r *Row) {
		s := client.Stats()
		r.Queries, r.Hedges, r.Wins, r.Denied = s.Wire, s.Hedges, s.HedgeWins, s.Denied
	}
	return nil
}

// miekg is the plain client of github.com/miekg/dns: a socket per query, two
// seconds per server, the servers in order.
func (b *bench) miekg(c *contender) error {
	client := new(dns.Client)
	ups := b.upstreams()
	c.ask = func(ctx context.Context, name string) error {
		var err error
		for _, at := range ups {
			var conn net.Conn
			if conn, err = c.count.DialContext(ctx, "udp", net.JoinHostPort(at, "53")); err != nil {
				return err
			}
			var r *dns.Msg
			r, _, err = client.ExchangeWithConnContext(ctx, question(name), &dns.Conn{Conn: conn})
			_ = conn.Close()
			if err == nil {
				return right(r, nil)
			}
		}
		return err
	}
	return nil
}

// attemptsKey is the context key of the number of a lookup's attempts, each of which
// Go's resolver makes to the next server.
type attemptsKey struct{}

// netResolver is Go's own resolver.
func (b *bench) netResolver(c *contender) error {
	ups := b.upstreams()
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		n := ctx.Value(attemptsKey{}).(*atomic.Int64).Add(1) - 1
		return c.count.DialContext(ctx, network, net.JoinHostPort(ups[int(n)%len(ups)], "53"))
	}}
	c.ask = func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(context.WithValue(ctx, attemptsKey{}, new(atomic.Int64)), giveUp)
		defer cancel()
		addrs, err := r.LookupNetIP(ctx, "ip4", name)
		if err == nil && len(addrs) != 1 {
			err = errors.New("dnslab: wrong answer")
		}
		return err
	}
	return nil
}
