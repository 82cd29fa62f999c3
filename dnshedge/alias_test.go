package dnshedge_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// aliasServer answers every question with the same alias. It has an identity, so its answers can be exported.
type aliasServer struct {
	target    string
	recursive bool // the responses have RA
}

func (a *aliasServer) Identity() string { return "alias of " + a.target }

func (a *aliasServer) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	r := dnstest.Answer(dnstest.Query{Msg: m}, "3600 CNAME "+a.target)
	r.Authoritative, r.RecursionAvailable = !a.recursive, a.recursive
	return r, 0, nil
}

// An export leaves out answers with records of two sources, because an import compares one source only.
func TestExportOmitsCompletedAliases(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", with("3600 A 192.0.2.66"))
		l.serve("b", with("3600 A 192.0.2.1"))
		client := func(host string) *dnshedge.Client {
			routes := map[string]dnshedge.Exchanger{
				"corp": &aliasServer{target: "bank.example."},
				"path": &aliasServer{target: "x.home."}, // a domain of the same length
				"home": named1(host),
			}
			return l.client(&dnshedge.Client{Cache: new(dnshedge.Cache), Routes: routes}, l.up("udp", host))
		}
		before := client("a")
		for _, name := range []string{"www.corp.", "www.path.", "x.home."} {
			for range 2 {
				l.must(before, name)
			}
			_, has := before.Cache.Get(question(name, dns.TypeA))
			assert.True(t, has, name)
		}
		for _, host := range []string{"a", "b"} {
			var file bytes.Buffer
			require.NoError(t, before.Export(&file))
			after := client(host)
			require.NoError(t, after.Import(&file))
			_, has := after.Cache.Get(question("x.home.", dns.TypeA))
			assert.Equal(t, host == "a", has, "an answer of one source")
			for _, name := range []string{"www.corp.", "www.path."} {
				_, has := after.Cache.Get(question(name, dns.TypeA))
				assert.False(t, has, name)
			}
		}
	})
}

func TestCacheDropsCompletedAliasesWhenSystemServersChange(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", with("3600 A 192.0.2.66"))
		l.serve("b", with("3600 A 192.0.2.1"))
		conf, next := l.resolvConf("", "a"), l.resolvConf("options edns0", "b")
		c := l.client(&dnshedge.Client{
			Cache: new(dnshedge.Cache), ResolvConf: conf, Routes: map[string]dnshedge.Exchanger{"corp": &aliasServer{target: "bank.example."}},
		})
		for range 2 {
			r, _ := l.must(c, "www.corp.")
			assert.Equal(t, "192.0.2.66", addr(r))
		}
		require.NoError(t, os.Rename(next, conf))
		time.Sleep(5 * time.Second)
		r, _ := l.must(c, "www.corp.")
		assert.Equal(t, "192.0.2.1", addr(r))
	})
}

// The hosts file has a TTL of 30 s, and is read again within 5 s.
func TestCacheStoresNoAnswerWithPartOfHostsFile(t *testing.T) {
	bubble(t, func(l *lab) {
		file := hostsFile(t, "192.0.2.66 www.bank.example\n")
		c := l.client(&dnshedge.Client{
			Cache: &dnshedge.Cache{MinTTL: time.Hour}, Hosts: file,
			Routes: map[string]dnshedge.Exchanger{"corp": &aliasServer{target: "www.bank.example."}},
		})
		r, _ := l.must(c, "www.corp.")
		assert.Equal(t, "192.0.2.66", addr(r))
		write(t, file, "192.0.2.1 www.bank.example # the new one\n")
		time.Sleep(5 * time.Second)
		r, _ = l.must(c, "www.corp.")
		assert.Equal(t, "192.0.2.1", addr(r))
	})
}

// A resolver that has followed an alias may omit the SOA record of a NODATA response (RFC 2308 §2.2).
func TestClientFollowsNoAliasOfRecursiveRoute(t *testing.T) {
	bubble(t, func(l *lab) {
		public := l.serve("a", rcode(dns.RcodeNameError))
		for recursive, want := range map[bool]int{true: dns.RcodeSuccess, false: dns.RcodeNameError} {
			c := l.client(&dnshedge.Client{
				Routes: map[string]dnshedge.Exchanger{"corp": &aliasServer{target: "secret.internal.example.", recursive: recursive}},
			}, l.up("udp", "a"))
			before := public.Queries.Load()
			r, _ := l.must(c, "www.corp.")
			assert.Equal(t, want, r.Rcode)
			assert.Len(t, r.Answer, 1)
			assert.Equal(t, recursive, public.Queries.Load() == before)
		}
	})
}

// optionlessExchanger counts the EDNS options of the queries that it gets.
type optionlessExchanger struct {
	exchanger
	options int
}

func (*optionlessExchanger) IgnoresOptions() {}

func (e *optionlessExchanger) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	e.options += len(m.IsEdns0().Option)
	return e.exchanger.ExchangeContext(ctx, m, address)
}

func TestClientRemovesIgnoredOptionsFromAliasTargets(t *testing.T) {
	e := &optionlessExchanger{exchanger: exchanger{addr: "192.0.2.1"}}
	c := &dnshedge.Client{Exchanger: e, Routes: map[string]dnshedge.Exchanger{"corp": &aliasServer{target: "bank.example."}}}
	defer c.Close()
	m := question("www.corp.", dns.TypeA)
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(198, 51, 100, 0)}}
	r, _, err := c.Exchange(m, "")
	require.NoError(t, err)
	assert.Equal(t, "192.0.2.1", addr(r))
	assert.Len(t, e.asked, 1)
	assert.Zero(t, e.options)
}

// aliasChain answers the name n.corp with an alias to (n-1).corp, and the name 0.corp with an address.
type aliasChain struct{}

func (aliasChain) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	label, _, _ := strings.Cut(m.Question[0].Name, ".")
	n, err := strconv.Atoi(label)
	if err != nil || n == 0 {
		return dnstest.Answer(dnstest.Query{Msg: m}, "3600 A 192.0.2.1"), 0, err
	}
	r := dnstest.Answer(dnstest.Query{Msg: m}, fmt.Sprintf("3600 CNAME %d.corp.", n-1))
	r.Authoritative, r.RecursionAvailable = true, false
	return r, 0, nil
}

func TestClientFollows16AliasTargets(t *testing.T) {
	c := &dnshedge.Client{Exchanger: named1("x"), Routes: map[string]dnshedge.Exchanger{"corp": aliasChain{}}}
	defer c.Close()
	r, _, err := c.Exchange(question("16.corp.", dns.TypeA), "")
	require.NoError(t, err)
	assert.Equal(t, dns.RcodeSuccess, r.Rcode)
	assert.Equal(t, "192.0.2.1", addr(r))
	assert.Len(t, r.Answer, 17)
	r, _, err = c.Exchange(question("17.corp.", dns.TypeA), "")
	require.NoError(t, err)
	assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
}
