package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/dnstest"
)

// internet is a root server and a server of example., both with an address of an Internet that
// is on loopback: DialContext knows where.
type internet struct {
	root, example *dnstest.Server
	at            map[string]string
}

func newInternet(t *testing.T) *internet {
	net := &internet{at: make(map[string]string)}
	net.root = net.serve(t, "198.51.100.1:53", func(q dnstest.Query) dnstest.Reply {
		if name := strings.ToLower(q.Question[0].Name); name == "." {
			m := dnstest.Answer(q, "NS a.root.")
			m.Authoritative = true
			m.Extra = []dns.RR{record(t, "a.root. 3600 A 198.51.100.1")}
			return dnstest.Reply{Msg: m}
		}
		m := dnstest.Answer(q)
		m.Ns = []dns.RR{record(t, "example. 3600 NS ns.example.")}
		m.Extra = []dns.RR{record(t, "ns.example. 3600 A 198.51.100.2")}
		return dnstest.Reply{Msg: m}
	})
	net.example = net.serve(t, "198.51.100.2:53", func(q dnstest.Query) dnstest.Reply {
		m := dnstest.Answer(q, "A 192.0.2.1")
		m.Authoritative = true
		return dnstest.Reply{Msg: m}
	})
	return net
}

func (n *internet) serve(t *testing.T, at string, h dnstest.Handler) *dnstest.Server {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
		r := h(q)
		r.Msg.RecursionAvailable = false
		return r
	}}
	s.ServeUDP(pc)
	t.Cleanup(s.Close)
	n.at[at] = pc.LocalAddr().String()
	return s
}

func (n *internet) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, n.at[address])
}

func record(t *testing.T, s string) dns.RR {
	rr, err := dns.NewRR(s)
	require.NoError(t, err)
	return rr
}

// parsed returns what the flags of a command line make of a client.
func parsed(t *testing.T, c *dnshedge.Client, args ...string) (*recursor.Resolver, error) {
	flags, root := flag.NewFlagSet("dnsforward", flag.ContinueOnError), new(fromTheRoot)
	flags.SetOutput(io.Discard)
	root.define(flags)
	flags.Bool("forward-special", false, "")
	flags.Func("upstream", "", into(&c.Upstreams))
	flags.Func("fallback", "", into(&c.Fallback))
	flags.Float64Var(&c.Hedge.BudgetPercent, "budget", 5, "")
	flags.BoolVar(&c.Hedge.Off, "no-hedging", false, "")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	return root.resolver(c, flags)
}

func TestRecursiveAsksFromTheRootDown(t *testing.T) {
	world := newInternet(t)
	saved := filepath.Join(t.TempDir(), "cache.servers")
	run := func() *forwarder {
		client := &dnshedge.Client{Cache: new(dnshedge.Cache)}
		resolver, err := parsed(t, client, "-recursive", "-root-hint", "198.51.100.1")
		require.NoError(t, err)
		resolver.Dialer = world
		t.Cleanup(func() { resolver.Close() })
		require.NoError(t, load(resolver, saved))
		f := &forwarder{client: client, resolver: resolver, metrics: freeAddress(t)}
		begin(t, f)
		m := ask("a.example.")
		m.SetEdns0(1232, true)
		r, err := dns.Exchange(m, f.listen[0])
		require.NoError(t, err)
		require.Len(t, r.Answer, 1, "%v", r)
		assert.False(t, r.Authoritative)
		assert.False(t, r.AuthenticatedData)
		assert.True(t, r.RecursionAvailable)
		return f
	}
	f := run()
	r, err := exchange(t, "udp", f.listen[0], "x.onion.")
	require.NoError(t, err)
	assert.Equal(t, dns.RcodeNameError, r.Rcode)

	resp, err := http.Get("http://" + f.metrics + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Contains(t, string(body), "\ndnsforward_recursor_questions_total 2\n")
	assert.NotContains(t, string(body), "\ndnsforward_recursor_servers 0\n")
	resp, err = http.Get("http://" + f.metrics + "/debug/hedge?format=json")
	require.NoError(t, err)
	defer resp.Body.Close()
	var page debug.Page
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&page))
	require.Len(t, page.Recursors, 1)
	assert.Equal(t, f.resolver.Stats().Wire, page.Recursors[0].Wire)

	require.NoError(t, store(f.resolver, saved))
	asked := world.root.Queries.Load()
	run()
	assert.Equal(t, asked, world.root.Queries.Load(), "the next run knows where example. is served")
}

func TestFlagsThatRecursiveNeedsAndExcludes(t *testing.T) {
	for args, want := range map[string]string{
		"-root-hint 198.51.100.1":                  "dnsforward: -root-hint needs -recursive",
		"-stub corp.example=192.0.2.1":             "dnsforward: -stub needs -recursive",
		"-recursive -upstream udp://192.0.2.1":     "dnsforward: -upstream cannot be used with -recursive: it asks the servers of the zones",
		"-recursive -fallback udp://192.0.2.1":     "dnsforward: -fallback cannot be used with -recursive: it asks the servers of the zones",
		"-recursive -forward-special":              "dnsforward: -forward-special cannot be used with -recursive: give -stub the special-use names that a server of yours has",
		"-recursive -root-hint a.root.":            `invalid value "a.root." for flag -root-hint`,
		"-recursive -stub corp.example":            `invalid value "corp.example" for flag -stub: want a domain, = and an address`,
		"-recursive -stub =192.0.2.1":              `invalid value "=192.0.2.1" for flag -stub`,
		"-recursive -stub corp..example=192.0.2.1": `invalid value "corp..example=192.0.2.1" for flag -stub`,
		"-recursive -stub corp.example=ns.example": `invalid value "corp.example=ns.example" for flag -stub`,
	} {
		_, err := parsed(t, new(dnshedge.Client), strings.Fields(args)...)
		assert.ErrorContains(t, err, want, args)
	}
}

func TestFlagsReachTheResolver(t *testing.T) {
	c := new(dnshedge.Client)
	r, err := parsed(t, c, strings.Fields("-recursive -no-hedging -budget 7 -root-hint 198.51.100.1 -stub corp.example=192.0.2.1 -stub corp.example=[2001:db8::1]:5300")...)
	require.NoError(t, err)
	assert.Same(t, r, c.Exchanger)
	assert.Equal(t, recursor.Hedge{Off: true, BudgetPercent: 7}, r.Hedge)
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("198.51.100.1")}, r.Hints)
	assert.Equal(t, map[string][]netip.AddrPort{
		"corp.example": {netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[2001:db8::1]:5300")},
	}, r.Zones)

	r, err = parsed(t, new(dnshedge.Client), "-recursive")
	require.NoError(t, err)
	assert.Zero(t, r.Hedge, "a Resolver has another budget than a Client")
	c = new(dnshedge.Client)
	r, err = parsed(t, c)
	require.NoError(t, err)
	assert.Nil(t, r)
	assert.Nil(t, c.Exchanger)
}
