package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/signer"
)

// internet is a root server and a server of example., both with an address of an Internet that
// is on loopback: DialContext knows where.
type internet struct {
	root, example *dnstest.Server
	at            map[string]string
	keys          map[string]*signer.Key // by zone; empty: nothing is signed
}

// newInternet starts both. If they sign, the signature of a.example. fits nothing.
func newInternet(t *testing.T, sign bool) *internet {
	net := &internet{at: make(map[string]string), keys: make(map[string]*signer.Key)}
	if sign {
		net.sign()
	}
	net.root = net.serve(t, "198.51.100.1:53", func(q dnstest.Query) dnstest.Reply {
		m := dnstest.Answer(q)
		switch name, qtype := strings.ToLower(q.Question[0].Name), q.Question[0].Qtype; {
		case name == "." && qtype == dns.TypeDNSKEY:
			m.Authoritative, m.Answer = true, net.ownKey(".")
		case name == ".":
			m.Authoritative, m.Answer = true, net.signed(".", record(t, ". 3600 NS a.root."))
			m.Extra = []dns.RR{record(t, "a.root. 3600 A 198.51.100.1")}
		default:
			m.Ns = []dns.RR{record(t, "example. 3600 NS ns.example.")}
			if k := net.keys["example."]; k != nil {
				ds := k.ToDS(dns.SHA256)
				ds.Hdr = dns.RR_Header{Name: "example.", Rrtype: dns.TypeDS, Class: dns.ClassINET, Ttl: 3600}
				m.Ns = append(m.Ns, net.signed(".", ds)...)
			}
			m.Extra = []dns.RR{record(t, "ns.example. 3600 A 198.51.100.2")}
		}
		return dnstest.Reply{Msg: m}
	})
	net.example = net.serve(t, "198.51.100.2:53", func(q dnstest.Query) dnstest.Reply {
		m := dnstest.Answer(q)
		m.Authoritative = true
		if name := strings.ToLower(q.Question[0].Name); q.Question[0].Qtype == dns.TypeDNSKEY {
			m.Answer = net.ownKey("example.")
		} else {
			m.Answer = net.signed("example.", record(t, name+" 3600 A 192.0.2.1"))
		}
		return dnstest.Reply{Msg: m}
	})
	return net
}

// sign gives the zones keys.
func (n *internet) sign() {
	for _, zone := range []string{".", "example."} {
		n.keys[zone] = signer.NewKey(zone, signer.KSK, dns.ECDSAP256SHA256, "dnsforward")
		n.keys[zone].Hdr = dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600}
	}
}

// ownKey returns the key of a zone with its signature.
func (n *internet) ownKey(zone string) []dns.RR {
	if n.keys[zone] == nil {
		return nil
	}
	return n.signed(zone, n.keys[zone].DNSKEY)
}

// signed returns a record with its signature, if the zone has a key.
func (n *internet) signed(zone string, rr dns.RR) []dns.RR {
	if n.keys[zone] == nil {
		return []dns.RR{rr}
	}
	return []dns.RR{rr, n.keys[zone].Sign([]dns.RR{rr}, signer.SignatureOptions{Forged: rr.Header().Name == "a.example."})}
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

// parsed parses the arguments of a command line.
func parsed(args ...string) (*options, error) {
	flags := flag.NewFlagSet("dnsforward", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return parseOptions(flags, args)
}

// begin starts a forwarder with the options, and returns a function that ends it. The test ends it otherwise.
func begin(t *testing.T, o *options) (end func()) {
	t.Helper()
	o.Listen = []string{doubles.FreeAddress(t)}
	f, err := forward.New(o.Config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-served)
		o.Client.Close()
		if e, ok := o.Client.Exchanger.(io.Closer); ok {
			e.Close()
		}
	})
	t.Cleanup(end)
	return end
}

// ask asks a forwarder, with DO.
func ask(t *testing.T, o *options, name string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.SetEdns0(1232, true)
	r, err := dns.Exchange(m, o.Listen[0])
	require.NoError(t, err)
	return r
}

// page returns a page of the forwarder's -metrics.
func page(t *testing.T, o *options, path string) string {
	t.Helper()
	resp, err := http.Get("http://" + o.ListenMetrics + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(body)
}

func TestRecursiveFlagAsksFromRoot(t *testing.T) {
	world := newInternet(t, false)
	saved := filepath.Join(t.TempDir(), "cache")
	run := func(name string) (o *options, end func()) {
		o, err := parsed("-recursive", "-root-hint", "198.51.100.1", "-no-dnssec", "-save", saved, "-metrics", doubles.FreeAddress(t))
		require.NoError(t, err)
		o.resolver.Dialer = world
		end = begin(t, o)
		r := ask(t, o, name)
		require.Len(t, r.Answer, 1, "%v", r)
		assert.False(t, r.Authoritative)
		assert.False(t, r.AuthenticatedData)
		assert.True(t, r.RecursionAvailable)
		return o, end
	}
	o, end := run("a.example.")
	assert.Equal(t, dns.RcodeNameError, ask(t, o, "x.onion.").Rcode)
	metrics := page(t, o, "/metrics")
	assert.Contains(t, metrics, "\ndnsforward_recursor_questions_total 2\n")
	assert.NotContains(t, metrics, "\ndnsforward_recursor_servers 0\n")
	var pages debug.Page
	require.NoError(t, json.Unmarshal([]byte(page(t, o, "/debug/hedge?format=json")), &pages))
	require.Len(t, pages.DNS, 1)
	assert.EqualValues(t, 2, pages.DNS[0].Queries)
	require.Len(t, pages.Recursors, 1)
	assert.Equal(t, o.resolver.Stats().Wire, pages.Recursors[0].Wire)
	var report strings.Builder
	forward.WriteReport(&report, o.Client)
	assert.Contains(t, report.String(), "\nfrom the root: questions 2  ")

	end()
	asked := world.root.Queries.Load()
	run("b.example.")
	assert.Equal(t, asked, world.root.Queries.Load(), "the next run knows where example. is served")
}

func TestRecursiveFlagChecksOtherFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-root-hint 198.51.100.1":                  "dnsforward: -root-hint needs -recursive",
		"-stub corp.example=192.0.2.1":             "dnsforward: -stub needs -recursive",
		"-recursive -upstream udp://192.0.2.1":     "dnsforward: -upstream cannot be used with -recursive: it asks the servers of the zones",
		"-recursive -fallback udp://192.0.2.1":     "dnsforward: -fallback cannot be used with -recursive: it asks the servers of the zones",
		"-recursive -forward-special":              "dnsforward: -forward-special cannot be used with -recursive: give -stub the special-use names that a server of yours has",
		"-recursive -root-hint a.root.":            `invalid value "a.root." for flag -root-hint`,
		"-no-dnssec":                               "dnsforward: -no-dnssec needs -recursive",
		"-recursive -validate":                     "dnsforward: -validate cannot be used with -recursive: it checks signatures without that",
		"-validate -no-dnssec":                     "dnsforward: -no-dnssec needs -recursive",
		"-anchors root.key":                        `invalid value "root.key" for flag -anchors: open root.key`,
		"-insecure corp.example":                   "dnsforward: -insecure needs -recursive or -validate",
		"-recursive -no-dnssec -insecure example":  "dnsforward: -insecure cannot be used with -no-dnssec: nothing is checked",
		"-recursive -insecure corp..example":       `invalid value "corp..example" for flag -insecure: want a domain`,
		"-recursive -stub corp.example":            `invalid value "corp.example" for flag -stub: want a domain, = and an address`,
		"-recursive -stub =192.0.2.1":              `invalid value "=192.0.2.1" for flag -stub`,
		"-recursive -stub corp..example=192.0.2.1": `invalid value "corp..example=192.0.2.1" for flag -stub`,
		"-recursive -stub corp.example=ns.example": `invalid value "corp.example=ns.example" for flag -stub`,
	} {
		_, err := parsed(strings.Fields(args)...)
		assert.ErrorContains(t, err, want, args)
	}
}

func TestRecursiveFlagsConfigureResolver(t *testing.T) {
	configured := func(args string) *recursor.Resolver {
		o, err := parsed(strings.Fields("-recursive " + args)...)
		require.NoError(t, err)
		assert.Same(t, o.resolver, o.Client.Exchanger)
		return o.resolver
	}
	r := configured("-no-hedging -budget 7 -root-hint 198.51.100.1 -stub corp.example=192.0.2.1 -stub corp.example=[2001:db8::1]:5300")
	assert.Equal(t, recursor.Hedge{Off: true, BudgetPercent: 7}, r.Hedge)
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("198.51.100.1")}, r.Hints)
	assert.Equal(t, map[string][]netip.AddrPort{
		"corp.example": {netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[2001:db8::1]:5300")},
	}, r.Zones)

	r = configured("")
	assert.Zero(t, r.Hedge, "a Resolver has another budget than a Client")
	assert.Zero(t, r.Trust, "it validates")
	assert.NotNil(t, r.Stats().Bogus, "it validates")
	assert.Equal(t, dnssec.Trust{Off: true}, configured("-no-dnssec").Trust)
	assert.Equal(t, dnssec.Trust{Insecure: []string{"corp.example", "10.in-addr.arpa"}}, configured("-insecure corp.example -insecure 10.in-addr.arpa").Trust)
	o, err := parsed()
	require.NoError(t, err)
	assert.Nil(t, o.Client.Exchanger)
}

func TestRecursiveFlagChecksSignatures(t *testing.T) {
	world := newInternet(t, true)
	anchors := filepath.Join(t.TempDir(), "root.key")
	require.NoError(t, os.WriteFile(anchors, []byte(world.keys["."].ToDS(dns.SHA256).String()+"\n"), 0o600))
	begun := func(args ...string) *options {
		o, err := parsed(append(args, "-recursive", "-root-hint", "198.51.100.1", "-metrics", doubles.FreeAddress(t))...)
		require.NoError(t, err)
		o.resolver.Dialer = world
		o.resolver.Logger = nil
		begin(t, o)
		return o
	}

	o := begun("-anchors", anchors)
	r := ask(t, o, "b.example.")
	require.Len(t, r.Answer, 2, "%v", r)
	assert.True(t, r.AuthenticatedData)
	r = ask(t, o, "a.example.")
	assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
	require.NotNil(t, r.IsEdns0())
	require.Len(t, r.IsEdns0().Option, 1, "%v", r)
	assert.Equal(t, dns.ExtendedErrorCodeDNSBogus, r.IsEdns0().Option[0].(*dns.EDNS0_EDE).InfoCode)
	metrics := page(t, o, "/metrics")
	for _, line := range []string{"secure_total 1", "insecure_total 0", "bogus_total 1"} {
		assert.Contains(t, metrics, "\ndnsforward_recursor_"+line+"\n")
	}

	for _, args := range [][]string{{"-anchors", anchors, "-insecure", "example"}, {"-no-dnssec"}} {
		r = ask(t, begun(args...), "a.example.")
		assert.Len(t, r.Answer, 2, "%v: %v", args, r)
		assert.False(t, r.AuthenticatedData, args)
	}
}
