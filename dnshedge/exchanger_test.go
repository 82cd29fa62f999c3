package dnshedge_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/race"
)

// exchanger answers every question with the same address.
type exchanger struct {
	addr string
	err  error

	mu    sync.Mutex // guards asked while questions are under way
	asked []*dns.Msg
}

func (e *exchanger) ExchangeContext(_ context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	if address != "" {
		return nil, 0, errors.New("an address: " + address)
	}
	e.mu.Lock()
	e.asked = append(e.asked, m)
	e.mu.Unlock()
	if e.err != nil {
		return nil, 0, e.err
	}
	return dnstest.Answer(dnstest.Query{Msg: m}, "60 A "+e.addr), time.Millisecond, nil
}

func TestClientAsksExchangerInsteadOfServers(t *testing.T) {
	e := &exchanger{addr: "192.0.2.9"}
	c := &dnshedge.Client{Exchanger: e, Cache: new(dnshedge.Cache)}
	defer c.Close()
	for range 3 {
		m := question("X.example.", dns.TypeA)
		r, _, err := c.Exchange(m, "")
		require.NoError(t, err)
		assert.Equal(t, "192.0.2.9", addr(r))
		assert.Equal(t, m.Id, r.Id)
		assert.Equal(t, "X.example.", r.Question[0].Name)
	}
	assert.Len(t, e.asked, 1, "and the answer is kept")
	assert.NotNil(t, e.asked[0].IsEdns0())
	assert.Zero(t, c.Stats().Wire)
}

// contextsOf is an Exchanger that calls itself with the context of each query.
type contextsOf func(context.Context)

func (f contextsOf) ExchangeContext(ctx context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	f(ctx)
	return dnstest.Answer(dnstest.Query{Msg: m}, "60 A 192.0.2.9"), time.Millisecond, nil
}

// A caller permits hedges of a question. That permission does not apply to requests, such as a POST, that an Exchanger
// sends to answer the question.
func TestClientPassesNoCallOverridesToExchanger(t *testing.T) {
	var seen []race.Overrides
	c := &dnshedge.Client{Exchanger: contextsOf(func(ctx context.Context) { seen = append(seen, race.OverridesFrom(ctx)) })}
	defer c.Close()
	for _, asked := range []race.Overrides{{}, {Allow: true}, {Delay: time.Second}, {Allow: true, Delay: 1, Never: true, Hedge: 1}} {
		ctx := race.WithOverrides(t.Context(), func(o *race.Overrides) { *o = asked })
		_, _, err := c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
		require.NoError(t, err)
		assert.Equal(t, race.Overrides{Never: asked.Never, Hedge: asked.Hedge}, seen[len(seen)-1])
	}
}

func TestClientErrorWrapsExchangerError(t *testing.T) {
	e := &exchanger{err: net.ErrClosed}
	c := &dnshedge.Client{Exchanger: e}
	defer c.Close()
	_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorContains(t, err, "x.example. A")
	assert.EqualValues(t, 1, c.Stats().Failures)
}

func TestClientRejectsExchangerResponseToOtherQuestion(t *testing.T) {
	for want, reply := range map[string]func(*dns.Msg) *dns.Msg{
		"neither a response nor an error": func(*dns.Msg) *dns.Msg { return nil },
		"another ID":                      func(m *dns.Msg) *dns.Msg { m.Id++; return m },
		"another question":                func(m *dns.Msg) *dns.Msg { m.Question[0].Name = "y.example."; return m },
	} {
		c := &dnshedge.Client{Exchanger: exchangeFunc(func(m *dns.Msg) *dns.Msg { return reply(new(dns.Msg).SetReply(m)) })}
		_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
		require.ErrorContains(t, err, want)
		c.Close()
	}
}

type exchangeFunc func(*dns.Msg) *dns.Msg

func (f exchangeFunc) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	return f(m), 0, nil
}

func TestClientUsesLongestRoute(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		corp, deep := &exchanger{addr: "192.0.2.2"}, &exchanger{addr: "192.0.2.3"}
		c := l.client(&dnshedge.Client{Routes: map[string]dnshedge.Exchanger{
			"Corp.example": corp, "deep.corp.example.": deep, "public.corp.example": nil,
		}}, l.up("udp", "a"))
		for name, want := range map[string]string{
			"corp.example.": "192.0.2.2", "a.b.CORP.example.": "192.0.2.2", "deep.corp.example.": "192.0.2.3", "x.deep.corp.example.": "192.0.2.3",
			"x.public.corp.example.": "192.0.2.1", "xcorp.example.": "192.0.2.1", "example.": "192.0.2.1", ".": "192.0.2.1",
		} {
			r, _ := l.must(c, name)
			assert.Equal(t, want, addr(r), name)
		}
	})
}

// RFC 4035 §3.1.4.1: the servers of a zone do not have the parent's DS records.
func TestClientAsksParentForDSOfRoute(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		var corp, deep []string
		note := func(to *[]string) exchangeFunc {
			return func(m *dns.Msg) *dns.Msg {
				*to = append(*to, m.Question[0].Name+" "+dns.TypeToString[m.Question[0].Qtype])
				return new(dns.Msg).SetReply(m)
			}
		}
		c := l.client(&dnshedge.Client{Routes: map[string]dnshedge.Exchanger{"corp.example": note(&corp), "deep.corp.example": note(&deep)}}, l.up("udp", "a"))
		for _, q := range []string{"corp.example. DS", "deep.corp.example. DS", "www.deep.corp.example. DS", "deep.corp.example. DNSKEY", "corp.example. SOA"} {
			name, qtype, _ := strings.Cut(q, " ")
			_, _, err := c.ExchangeContext(context.Background(), new(dns.Msg).SetQuestion(name, dns.StringToType[qtype]), "")
			require.NoError(t, err, q)
		}
		assert.Equal(t, []string{"deep.corp.example. DS", "corp.example. SOA"}, corp)
		assert.Equal(t, []string{"www.deep.corp.example. DS", "deep.corp.example. DNSKEY"}, deep)
	})
}

// The servers for the DS records of a route's domain may deny a name that exists on the route, and the reverse.
func TestCacheDSDenialDoesNotDenyRouteName(t *testing.T) {
	denies := exchangeFunc(func(m *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetRcode(m, dns.RcodeNameError)
		r.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 300}, Ns: "ns.", Mbox: "nobody.", Minttl: 300}}
		return r
	})
	signed := exchangeFunc(func(m *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetReply(m)
		if m.Question[0].Qtype == dns.TypeDS {
			r.Answer = []dns.RR{&dns.DS{Hdr: dns.RR_Header{Name: "corp.example.", Rrtype: dns.TypeDS, Class: dns.ClassINET, Ttl: 300}, Digest: "00"}}
		}
		return r
	})
	rcode := func(c *dnshedge.Client, typ uint16) int {
		r, _, err := c.Exchange(question("corp.example.", typ), "")
		require.NoError(t, err)
		return r.Rcode
	}
	for _, order := range [][]uint16{{dns.TypeDS, dns.TypeA, dns.TypeDS, dns.TypeA}, {dns.TypeA, dns.TypeDS, dns.TypeA, dns.TypeDS}} {
		private := &dnshedge.Client{Exchanger: denies, Cache: new(dnshedge.Cache), Routes: map[string]dnshedge.Exchanger{"corp.example": &exchanger{addr: "10.0.0.2"}}}
		defer private.Close()
		public := &dnshedge.Client{Exchanger: signed, Cache: new(dnshedge.Cache), Routes: map[string]dnshedge.Exchanger{"corp.example": denies}}
		defer public.Close()
		for _, typ := range order {
			known, denied := dns.RcodeSuccess, dns.RcodeNameError
			if typ == dns.TypeDS {
				known, denied = denied, known
			}
			assert.Equal(t, known, rcode(private, typ), dns.Type(typ))
			assert.Equal(t, denied, rcode(public, typ), dns.Type(typ))
		}
	}
}

func TestClientRoutesToAnotherClient(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		l.serve("b", with("A 10.0.0.7"))
		vpn := l.client(&dnshedge.Client{}, l.up("udp", "b"))
		c := l.client(&dnshedge.Client{Routes: map[string]dnshedge.Exchanger{"corp.example": vpn, "168.192.in-addr.arpa": vpn}}, l.up("udp", "a"))
		r, _ := l.must(c, "h.corp.example.")
		assert.Equal(t, "10.0.0.7", addr(r))
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
	})
}

// RFC 9520 §3.2.
func TestCacheStoresExchangerFailuresFor5To20Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &alwaysServfail{}
		c := &dnshedge.Client{Exchanger: e, Cache: new(dnshedge.Cache)}
		defer c.Close()
		for n, keep := range []time.Duration{5, 10, 20, 20, 20, 20, 20, 20, 20} {
			for range 2 {
				r, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
				require.NoError(t, err)
				assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
				require.Equal(t, n+1, e.asked)
				time.Sleep(keep*time.Second/2 - ms)
			}
			time.Sleep(3 * ms)
		}
		time.Sleep(15 * time.Minute) // long after, all begins anew
		for n := range 2 {
			_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
			require.NoError(t, err)
			assert.Equal(t, 10+n, e.asked)
			time.Sleep(5*time.Second + ms)
		}
	})
}

// alwaysServfail answers every question with SERVFAIL.
type alwaysServfail struct{ asked int }

func (e *alwaysServfail) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	e.asked++
	return new(dns.Msg).SetRcode(m, dns.RcodeServerFailure), 0, nil
}

// An Exchanger may return the same response to all callers. Run with -race.
func TestClientDoesNotModifyExchangerResponse(t *testing.T) {
	shared := dnstest.Answer(dnstest.Query{Msg: question("x.example.", dns.TypeA)}, "60 A 192.0.2.1")
	shared.SetEdns0(1232, false)
	want := shared.String()
	c := &dnshedge.Client{Exchanger: exchangeFunc(func(m *dns.Msg) *dns.Msg {
		r := *shared
		r.Id = m.Id
		return &r
	})}
	defer c.Close()
	var wg sync.WaitGroup
	for i := range 8 {
		m := question("x.example.", dns.TypeA)
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: []byte{byte(i)}}} // different options, so that no exchange is shared
		wg.Go(func() {
			for range 50 {
				_, _, err := c.Exchange(m.Copy(), "")
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, want, shared.String())
}
