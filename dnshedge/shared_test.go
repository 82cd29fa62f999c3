package dnshedge_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
	"github.com/gohedge/hedge/internal/race"
)

// subnet returns a question with a client's subnet, whose third byte is given.
func subnet(name string, third byte) *dns.Msg {
	m := question(name, dns.TypeA)
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(198, 51, third, 0)}}
	return m
}

// kinds are questions of which some may be cached and some may not. No two of them may share a response.
func kinds() map[string]*dns.Msg {
	chaos := question("version.bind.", dns.TypeTXT)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	signed := question("x.example.", dns.TypeA)
	signed.SetEdns0(1232, true)
	checking := question("x.example.", dns.TypeA)
	checking.CheckingDisabled = true
	return map[string]*dns.Msg{
		"A": question("x.example.", dns.TypeA), "ANY": question("x.example.", dns.TypeANY), "CH": chaos, "DO": signed, "CD": checking,
		"a subnet": subnet("x.example.", 1), "another subnet": subnet("x.example.", 2),
	}
}

// Rule R7 of the design.
func TestClientSharesOneExchangePerQuestion(t *testing.T) {
	for _, cache := range []*dnshedge.Cache{nil, new(dnshedge.Cache)} {
		bubble(t, func(l *lab) {
			s := l.serve("a", after(100*ms, good))
			c := off()
			c.Cache = cache
			l.client(c, l.up("udp", "a"))
			var wg sync.WaitGroup
			for range 20 {
				for name, m := range kinds() {
					wg.Go(func() {
						m := m.Copy()
						m.Id = dns.Id()
						ctx, cancel := context.WithTimeout(background, 10*time.Second)
						defer cancel()
						r, _, err := c.ExchangeContext(ctx, m, "")
						if assert.NoError(t, err, name) {
							assert.Equal(t, m.Id, r.Id)
							assert.Equal(t, m.Question, r.Question)
						}
					})
				}
			}
			wg.Wait()
			assert.EqualValues(t, len(kinds()), s.Queries.Load(), "with a cache: %t", cache != nil)
		})
	}
}

// A server without a recent response is probed. If it has never answered a caller, every other probe has the caller's
// question. A server that is sent the question itself needs no probe.
func TestProbeDoesNotRepeatQuestionInFlight(t *testing.T) {
	bubble(t, func(l *lab) {
		var asked sync.Map // by name
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if name := q.Question[0].Name; name != "." {
				n, _ := asked.LoadOrStore(name, new(atomic.Int64))
				n.(*atomic.Int64).Add(1)
				return drop(q)
			}
			return good(q)
		})
		l.serve("b", with("A 192.0.2.2"))
		l.link("b", netsim.Profile{Delay: netsim.Constant(100 * ms)})
		c := l.client(off(), l.up("udp", "a"), l.up("udp", "b"))
		for i := range 40 {
			name := fmt.Sprintf("x%d.example.", i)
			l.must(c, name)
			if n, ok := asked.Load(name); ok {
				assert.EqualValues(t, 1, n.(*atomic.Int64).Load(), name)
			}
			time.Sleep(10 * time.Minute)
		}
	})
}

func TestClientEndsForwardingLoopOfAnyQuestion(t *testing.T) {
	for name, m := range kinds() {
		for _, cache := range []*dnshedge.Cache{nil, new(dnshedge.Cache)} {
			bubble(t, func(l *lab) {
				c := l.client(&dnshedge.Client{Cache: cache}, l.up("udp", "c"))
				l.startServer(&dnshedge.Server{Client: c})
				require.NoError(t, l.connect("udp").WriteMsg(m))
				time.Sleep(30 * time.Second)
				n := c.Stats().Wire
				assert.LessOrEqual(t, n, int64(16), "%s, with a cache: %t", name, cache != nil)
				time.Sleep(time.Minute)
				assert.Equal(t, n, c.Stats().Wire, "%s, with a cache: %t", name, cache != nil)
			})
		}
	}
}

func TestClientFlightSurvivesLeavingCaller(t *testing.T) {
	for _, cache := range []*dnshedge.Cache{nil, new(dnshedge.Cache)} {
		bubble(t, func(l *lab) {
			s := l.serve("a", after(300*ms, good))
			c := off()
			c.Cache = cache
			l.client(c, l.up("udp", "a"))
			var wg sync.WaitGroup
			ask := func(patience time.Duration) {
				wg.Go(func() {
					ctx, cancel := context.WithCancel(background)
					defer time.AfterFunc(patience, cancel).Stop()
					start := time.Now()
					_, _, err := c.ExchangeContext(ctx, subnet("x.example.", 0), "")
					if patience < 300*ms {
						assert.ErrorIs(t, err, context.Canceled)
						assert.Equal(t, patience, time.Since(start))
					} else {
						assert.NoError(t, err)
						assert.Less(t, time.Since(start), 330*ms)
					}
				})
				time.Sleep(ms)
			}
			ask(100 * ms)
			ask(200 * ms)
			ask(time.Second)
			wg.Wait()
			assert.EqualValues(t, 1, s.Queries.Load())
			ask(10 * ms)
			wg.Wait()
			ask(time.Second)
			wg.Wait()
			assert.EqualValues(t, 3, s.Queries.Load(), "a question that nobody waits for is asked anew")
		})
	}
}

func TestClientShortDeadlineLeavesTimeForFallback(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		l.serve("b", good)
		c := l.client(&dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "b")}}, l.up("udp", "a"))
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { _, _, _ = c.Exchange(question("x.example.", dns.TypeA), "") })
		time.Sleep(ms)
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		_, _, err := c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
		assert.NoError(t, err, "half of the second is for the fallback, also while another caller has more time")
	})
}

// A question without RD is answered from local data. Cached answers of other clients are not revealed.
func TestClientWithoutRDUsesOnlyHostsZonesAndRoutes(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", good)
		route := &exchanger{addr: "192.0.2.9"}
		c := l.client(&dnshedge.Client{
			Cache: new(dnshedge.Cache), Hosts: hostsFile(t, "192.0.2.7 printer.example\n"), SpecialUse: dnshedge.SpecialUseForwarder,
			Routes: map[string]dnshedge.Exchanger{"route.example": route},
		}, l.up("udp", "a"))
		l.startServer(&dnshedge.Server{Client: c})
		conn := l.connect("udp")
		l.must(c, "cached.example.")
		asked := s.Queries.Load()
		for name, want := range map[string]string{
			"cached.example.": "REFUSED", "other.example.": "REFUSED", "printer.example.": "192.0.2.7", "localhost.": "127.0.0.1", "x.route.example.": "192.0.2.9",
		} {
			for range 2 {
				m := question(name, dns.TypeA)
				m.RecursionDesired = false
				m.SetEdns0(1232, false)
				direct, _, err := c.Exchange(m, "")
				require.NoError(t, err)
				for _, r := range []*dns.Msg{direct, put(t, conn, m), serve(t, c, "udp", m)} {
					if want == "REFUSED" {
						assert.Equal(t, dns.RcodeRefused, r.Rcode, name)
						assert.Equal(t, []uint16{20}, edes(r), "RFC 8914 §4.21")
					} else {
						assert.Equal(t, want, addr(r), name)
					}
					assert.False(t, r.RecursionDesired)
				}
			}
		}
		chaos := kinds()["CH"]
		chaos.RecursionDesired = false
		assert.Equal(t, dns.RcodeRefused, put(t, conn, chaos).Rcode)
		assert.Equal(t, asked, s.Queries.Load())
		assert.Len(t, route.asked, 6, "what a route says without RD is not kept")

		m := question("cached.example.", dns.TypeA)
		m.RecursionDesired = false
		r, _, err := c.Exchange(m, l.net.Host("a").Addr().String()+":53")
		require.NoError(t, err)
		assert.Equal(t, "192.0.2.1", addr(r), "a server that the caller names is asked as the caller asks")
	})
}

type unoptional struct{ exchanger }

func (*unoptional) IgnoresOptions() {}

func TestClientDropsUnusedOptions(t *testing.T) {
	bubbleOnly(t, func(t *testing.T) {
		plain := &unoptional{exchanger{addr: "192.0.2.1"}}
		uses := &exchanger{addr: "192.0.2.2"}
		c := &dnshedge.Client{Cache: new(dnshedge.Cache), Exchanger: plain, Routes: map[string]dnshedge.Exchanger{"cdn.example": uses}}
		defer c.Close()
		for third := range byte(10) {
			for _, name := range []string{"x.example.", "cdn.example."} {
				_, _, err := c.Exchange(subnet(name, third), "")
				require.NoError(t, err)
				serve(t, c, "udp", subnet(name, third))
			}
		}
		require.Len(t, plain.asked, 1)
		assert.Empty(t, plain.asked[0].IsEdns0().Option)
		require.Len(t, uses.asked, 20)
		assert.Len(t, uses.asked[0].IsEdns0().Option, 1)
	})
}

func TestClientHonorsWithoutHedgingWithCache(t *testing.T) {
	for name, forbid := range map[string]func(context.Context) context.Context{
		"WithoutHedging": hedge.WithoutHedging,
		"a hedge":        func(ctx context.Context) context.Context { return race.HedgeContext(ctx, 1) },
	} {
		for _, wait := range []time.Duration{0, 10 * time.Second} { // without a deadline, the caller's goroutine asks
			bubble(t, func(l *lab) {
				l.serve("a", script(drop, good))
				c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
				ctx := forbid(background)
				if wait > 0 {
					later, cancel := context.WithTimeout(ctx, wait)
					defer cancel()
					ctx = later
				}
				_, _, err := c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
				require.NoError(t, err)
				assert.Zero(t, c.Stats().Hedges, name)
			})
		}
	}
}

func TestClientUnhedgedQuestionDelaysNoOther(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", script(drop, drop, good))
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
		var wg sync.WaitGroup
		defer wg.Wait()
		never := hedge.WithoutHedging(background)
		wg.Go(func() { _, _, _ = c.ExchangeContext(never, question("x.example.", dns.TypeA), "") })
		time.Sleep(ms)
		_, took := l.must(c, "x.example.")
		assert.Less(t, took, 500*ms, "hedged, although the same question is under way without hedges")
		wg.Wait()
		n := s.Queries.Load()

		slow := question("y.example.", dns.TypeA)
		for i, ctx := range []context.Context{background, never, never} {
			wg.Go(func() { _, _, err := c.ExchangeContext(ctx, slow.Copy(), ""); assert.NoError(t, err, i) })
			time.Sleep(ms)
		}
		wg.Wait()
		assert.Equal(t, n+1, s.Queries.Load(), "who forbids hedges shares what others ask")
	})
}

// The mark of a lookup for an upstream's own name goes through a flight.
func TestClientReportsBootstrapLoopWithCaches(t *testing.T) {
	bubble(t, func(l *lab) {
		var one, two dnshedge.Client
		dial := func(other *dnshedge.Client) dnshedge.Dialer {
			return dialFunc(func(ctx context.Context, _, address string) (net.Conn, error) {
				host, _, _ := net.SplitHostPort(address)
				_, err := other.Resolver().LookupNetIP(ctx, "ip4", host+".")
				if err == nil {
					err = net.ErrClosed
				}
				return nil, err
			})
		}
		for c, other := range map[*dnshedge.Client]*dnshedge.Client{&one: &two, &two: &one} {
			c.Upstreams, c.Dialer, c.Cache = []dnshedge.Upstream{{Addr: fmt.Sprintf("server%p.example:53", c)}}, dial(other), new(dnshedge.Cache)
			l.Cleanup(func() { c.Close() })
		}
		_, took, err := l.ask(&one, "x.example.")
		require.ErrorContains(t, err, "own name must not be resolved through it")
		assert.Less(t, took, time.Second)
	})
}
