package dnshedge_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

func nxdomain(q dnstest.Query) dnstest.Reply {
	return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 60, 60)}
}

// resolvConf writes the hosts' addresses into a file.
func (l *lab) resolvConf(options string, hosts ...string) string {
	l.Helper()
	var b strings.Builder
	for _, h := range hosts {
		fmt.Fprintf(&b, "nameserver %s\n", l.net.Host(h).Addr())
	}
	fmt.Fprintln(&b, options)
	name := filepath.Join(l.TempDir(), "resolv.conf")
	require.NoError(l, os.WriteFile(name, []byte(b.String()), 0o600))
	return name
}

// The server of a VPN is the first in the order, and has names that the second server denies. The first server is
// slower and loses packets.
func TestClientAsksSystemServersInOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		options string
		order   dnshedge.Order
		strict  bool
	}{
		"auto": {strict: true}, "auto, other options": {options: "options ndots:2 edns0", strict: true}, "auto, rotate": {options: "options timeout:1 rotate"},
		"fastest": {order: dnshedge.OrderFastest}, "strict, rotate": {options: "options rotate", order: dnshedge.OrderStrict, strict: true},
	} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			l.serve("b", nxdomain)
			l.link("a", netsim.Profile{Delay: netsim.Constant(15 * ms), Loss: 0.01})
			l.link("b", netsim.Profile{Delay: netsim.Constant(5 * ms)})
			c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf(tc.options, "a", "b"), Order: tc.order})
			denied := 0
			for i := range 1000 {
				if r, _ := l.must(c, fmt.Sprintf("h%d.corp.example.", i)); r.Rcode == dns.RcodeNameError {
					denied++
				}
			}
			assert.Equal(t, tc.strict, denied == 0, "%s: %d", name, denied)
			if tc.strict {
				assert.Positive(t, c.Stats().HedgeWins, "%s: hedges go to the same server", name)
			}
		})
	}
}

func TestStrictOrderFailsOver(t *testing.T) {
	for name, bad := range map[string]dnstest.Handler{"REFUSED": rcode(dns.RcodeRefused), "SERVFAIL": rcode(dns.RcodeServerFailure), "silence": drop, "nothing there": nil} {
		bubble(t, func(l *lab) {
			if bad != nil {
				l.serve("a", bad)
			}
			l.serve("b", good)
			c := l.client(&dnshedge.Client{Order: dnshedge.OrderStrict}, l.up("udp", "a"), l.up("udp", "b"))
			r, took := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r), name)
			assert.LessOrEqual(t, took, 2520*ms, name)
			for range 5 {
				time.Sleep(time.Second)
				l.must(c, "x.example.")
			}
			_, took = l.must(c, "x.example.")
			assert.LessOrEqual(t, took, 40*ms, "%s: a server that is down is asked last", name)
		})
	}
}

// The first server drops queries for a second, and then answers with failures, while the client still waits for the
// lost queries.
func TestStrictOrderFailsOverAfterLostQueries(t *testing.T) {
	bubble(t, func(l *lab) {
		fails, failed := failsAfter(time.Now().Add(time.Second))
		l.serve("a", fails)
		l.serve("b", good)
		c := l.client(&dnshedge.Client{Order: dnshedge.OrderStrict}, l.up("udp", "a"), l.up("udp", "b"))
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		require.NotNil(t, failed.Load(), "the first server has failed")
		assert.LessOrEqual(t, time.Since(*failed.Load()), 300*ms, "the next one is asked then")
	})
}

func TestStrictOrderWaitsForSlowName(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "slow.corp.example." {
				return after(4*time.Second, good)(q)
			}
			return good(q)
		})
		b := l.serve("b", nxdomain)
		c := l.client(&dnshedge.Client{Order: dnshedge.OrderStrict}, l.up("udp", "a"), l.up("udp", "b"))
		l.must(c, "x.corp.example.")
		r, took := l.must(c, "slow.corp.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		assert.LessOrEqual(t, took, 4020*ms)
		assert.EqualValues(t, 1, b.Queries.Load(), "it is asked, and not believed while the first one answers others")
	})
}

// As in Go's resolver, the option has a different name on each system.
func TestResolvConfUseVCSelectsTCP(t *testing.T) {
	for _, option := range []string{"use-vc", "usevc", "tcp"} {
		bubble(t, func(l *lab) {
			var mu sync.Mutex
			var nets []string
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				mu.Lock()
				defer mu.Unlock()
				nets = append(nets, q.Net)
				return good(q)
			})
			c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf("options "+option+" timeout:1", "a")})
			l.must(c, "x.example.")
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, []string{"tcp"}, nets, option)
		})
	}
}

func TestClientSeparatesUpstreamsByAddrs(t *testing.T) {
	for network, port := range map[string]string{"udp": "53", "tls": "853", "https": "443"} {
		bubble(t, func(l *lab) {
			l.serve("a", drop)
			l.serve("b", good)
			up := func(host string) dnshedge.Upstream {
				return dnshedge.Upstream{Net: network, Addr: dnstest.Name + ":" + port, Addrs: []netip.Addr{l.net.Host(host).Addr()}}
			}
			c := l.client(&dnshedge.Client{}, up("a"), up("b"))
			l.must(c, "x.example.")
			assert.Len(t, c.Stats().Upstreams, 2, network)
		})
	}
}

func TestUpstreamAddrsSkipBlackHole(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		for name, there := range map[string]bool{"black hole": true, "nothing there": false} {
			bubble(t, func(l *lab) {
				l.serve("b", good)
				if there {
					l.serve("a", good)
					l.link("a", netsim.Profile{BlackHole: true})
				}
				up := l.up(network, "a")
				up.Addrs = []netip.Addr{l.net.Host("a").Addr(), l.net.Host("b").Addr()}
				c := l.client(&dnshedge.Client{}, up)
				_, took := l.must(c, "x.example.")
				assert.LessOrEqual(t, took, 400*ms, "%s, %s", network, name)
				for range 10 {
					_, took = l.must(c, "x.example.")
					assert.Equal(t, 20*ms, took, "%s, %s: the address that answers is preferred", network, name)
				}
			})
		}
	}
}

func TestClientAsksAtMostThreeServersAfterSERVFAIL(t *testing.T) {
	bubble(t, func(l *lab) {
		var queries atomic.Int64
		var ups []dnshedge.Upstream
		for i := range 8 {
			s := &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply { queries.Add(1); return rcode(dns.RcodeServerFailure)(q) }}
			pc, err := l.net.Host("a").ListenPacket("udp", fmt.Sprintf(":%d", 7000+i))
			require.NoError(t, err)
			s.ServeUDP(pc)
			l.Cleanup(s.Close)
			ups = append(ups, dnshedge.Upstream{Addr: pc.LocalAddr().String()})
		}
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, ups...)
		r, _ := l.must(c, "bogus.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		assert.EqualValues(t, 3, queries.Load(), "RFC 9520 §3.1")
	})
}

// After SERVFAIL from three servers, no further server is tried. After other failures, the fourth server is.
func TestClientAsksFourthServerUnlessThreeReturnSERVFAIL(t *testing.T) {
	for _, codes := range [][]int{
		{dns.RcodeServerFailure, dns.RcodeNotImplemented, dns.RcodeServerFailure},
		{dns.RcodeRefused, dns.RcodeRefused, dns.RcodeServerFailure},
		{dns.RcodeServerFailure, dns.RcodeServerFailure, dns.RcodeNotAuth},
	} {
		bubble(t, func(l *lab) {
			var ups []dnshedge.Upstream
			for i := range 4 {
				h := dnstest.Handler(good)
				if i < len(codes) {
					h = rcode(codes[i])
				}
				s := &dnstest.Server{Handler: h}
				pc, err := l.net.Host("a").ListenPacket("udp", fmt.Sprintf(":%d", 7000+i))
				require.NoError(t, err)
				s.ServeUDP(pc)
				l.Cleanup(s.Close)
				ups = append(ups, dnshedge.Upstream{Addr: pc.LocalAddr().String()})
			}
			r, took := l.must(l.client(off(), ups...), "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r), "%v", codes)
			assert.Equal(t, 80*ms, took, "%v: a round trip for each", codes)
		})
	}
}

func TestClientAsksRefusingServerLast(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		l.serve("b", rcode(dns.RcodeRefused))
		l.link("b", netsim.Profile{Delay: netsim.Constant(ms)})
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		_ = c.Warm(background)
		before := c.Stats().Wire
		for i := range 1000 {
			r, _ := l.must(c, fmt.Sprintf("x%d.example.", i))
			assert.Equal(t, "192.0.2.1", addr(r))
			time.Sleep(100 * ms)
		}
		assert.LessOrEqual(t, c.Stats().Wire-before, int64(1025), "probes, ever less often")
	})
}

// about returns a handler that passes questions about one name to the first handler, and all others to the second.
func about(name string, told, otherwise dnstest.Handler) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		if q.Question[0].Name == name {
			return told(q)
		}
		return otherwise(q)
	}
}

// The first server responds to all questions with REFUSED, which is no decision. The second server is a filter.
func TestFallbackIsNotAskedAfterFilterBehindRefusingServer(t *testing.T) {
	for _, order := range []dnshedge.Order{dnshedge.OrderStrict, dnshedge.OrderFastest} {
		bubble(t, func(l *lab) {
			l.serve("a", rcode(dns.RcodeRefused))
			l.serve("b", about("blocked.example.", rcode(dns.RcodeRefused), good))
			fallback := l.serve("c", good)
			c := l.client(&dnshedge.Client{Order: order, Fallback: []dnshedge.Upstream{l.up("udp", "c")}}, l.up("udp", "a"), l.up("udp", "b"))
			l.must(c, "x.example.")
			r, _ := l.must(c, "blocked.example.")
			assert.Equal(t, dns.RcodeRefused, r.Rcode, "order %d", order)
			assert.Zero(t, fallback.Queries.Load(), "order %d", order)
		})
	}
}

// The race detector checks the use of the first server's response by both exchanges.
func TestClientFailsOverPastTwoServersAtOnce(t *testing.T) {
	for range 10 {
		bubble(t, func(l *lab) {
			l.serve("b", drop)
			l.serve("c", drop)
			c := l.client(&dnshedge.Client{Order: dnshedge.OrderStrict}, l.up("udp", "a"), l.up("udp", "b"), l.up("udp", "c"))
			_, took, err := l.ask(c, "x.example.")
			require.Error(t, err)
			assert.Equal(t, 5*time.Second, took)
		})
	}
}

// The first server, a filter, responds late, or while the client waits for a lost query. The second server does not
// respond.
func TestFallbackDoesNotOverrideLateDecision(t *testing.T) {
	servfail := rcode(dns.RcodeServerFailure)
	for name, first := range map[string]dnstest.Handler{
		"before the second is late": after(2*time.Second, servfail), "after that": after(3800*ms, servfail), "when a query is lost": script(drop, servfail),
	} {
		for other, second := range map[string]dnstest.Handler{"silent": drop, "nothing there": nil, "slow": after(500*ms, servfail)} {
			bubble(t, func(l *lab) {
				l.serve("a", about("blocked.example.", first, good))
				if second != nil {
					l.serve("b", second)
				}
				l.serve("c", good)
				c := off()
				c.Order, c.Fallback = dnshedge.OrderStrict, []dnshedge.Upstream{l.up("udp", "c")}
				c = l.client(c, l.up("udp", "a"), l.up("udp", "b"))
				l.must(c, "x.example.")
				r, _ := l.must(c, "blocked.example.")
				assert.Equal(t, dns.RcodeServerFailure, r.Rcode, "%s, second: %s", name, other)
			})
		}
	}
}

// The first server responds with a deliberate failure. The second server is silent until its time is over, and the
// Fallback is not tried.
func TestFallbackIsNotAskedAfterDecision(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", about("blocked.example.", rcode(dns.RcodeServerFailure), good))
		l.serve("b", drop)
		fallback := l.serve("c", good)
		c := l.client(&dnshedge.Client{Order: dnshedge.OrderStrict, Fallback: []dnshedge.Upstream{l.up("udp", "c")}}, l.up("udp", "a"), l.up("udp", "b"))
		l.must(c, "x.example.")
		r, took := l.must(c, "blocked.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		assert.LessOrEqual(t, took, 2520*ms)
		assert.Zero(t, fallback.Queries.Load())
	})
}

// The first server drops queries and then disappears. The client waits for the lost queries, and later queries are
// refused.
func TestStrictOrderFailsOverWhenServerDisappears(t *testing.T) {
	bubble(t, func(l *lab) {
		a := l.serve("a", drop)
		l.serve("b", good)
		c := l.client(&dnshedge.Client{Order: dnshedge.OrderStrict}, l.up("udp", "a"), l.up("udp", "b"))
		time.AfterFunc(150*ms, a.Close)
		_, took := l.must(c, "x.example.")
		assert.LessOrEqual(t, took, 500*ms, "the hedge after 200 ms is refused")
	})
}

// failsAfter drops queries before a time, and answers later ones with a failure. It records the time of the first
// failure.
func failsAfter(end time.Time) (h dnstest.Handler, failed *atomic.Pointer[time.Time]) {
	failed = new(atomic.Pointer[time.Time])
	return func(q dnstest.Query) dnstest.Reply {
		now := time.Now()
		if now.Before(end) {
			return drop(q)
		}
		failed.CompareAndSwap(nil, &now)
		return rcode(dns.RcodeServerFailure)(q)
	}, failed
}

// The answer of the second server is held back because the first server answers other questions. Then the first server
// fails.
func TestStrictOrderReleasesAnswerWhenEarlierServerFails(t *testing.T) {
	bubble(t, func(l *lab) {
		fails, failed := failsAfter(time.Now().Add(2700 * ms))
		l.serve("a", about("lost.example.", fails, good))
		l.serve("b", good)
		c := l.client(&dnshedge.Client{Order: dnshedge.OrderStrict}, l.up("udp", "a"), l.up("udp", "b"))
		for range 5 {
			l.must(c, "x.example.")
		}
		l.must(c, "lost.example.")
		require.NotNil(t, failed.Load(), "the first server has failed")
		assert.LessOrEqual(t, time.Since(*failed.Load()), 300*ms)
	})
}

// The Upstreams are down, so the fallback server is tried first. It fails while the client waits for a lost query.
func TestClientAsksRecoveredUpstreamsWhenFallbackFails(t *testing.T) {
	bubble(t, func(l *lab) {
		begin := time.Now()
		var back atomic.Bool
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if back.Load() {
				return good(q)
			}
			return drop(q)
		})
		fails, failed := failsAfter(begin.Add(9 * time.Second))
		l.serve("b", about("lost.example.", fails, good))
		c := l.client(&dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "b")}}, l.up("udp", "a"))
		for time.Since(begin) < 8*time.Second {
			l.must(c, "x.example.")
			time.Sleep(250 * ms)
		}
		require.True(t, c.Stats().Upstreams[0].Down)
		back.Store(true)
		l.must(c, "lost.example.")
		require.NotNil(t, failed.Load(), "the fallback server has failed")
		assert.LessOrEqual(t, time.Since(*failed.Load()), 300*ms)
	})
}

// A message with an opcode other than QUERY is sent once, even if the first server is late or closes the connection. If
// the first server refuses the connection, the message is sent to another server.
func TestClientSendsUpdateToOneServer(t *testing.T) {
	closes := func(dnstest.Query) dnstest.Reply { return dnstest.Reply{Close: true} }
	for name, tc := range map[string]struct {
		network  string
		first    dnstest.Handler
		fallback bool
	}{
		"late": {"udp", drop, false}, "late, before a fallback": {"udp", drop, true}, "closes": {"tcp", closes, false}, "closes, before a fallback": {"tcp", closes, true},
		"refuses": {"udp", nil, false}, "refuses, before a fallback": {"udp", nil, true},
	} {
		bubble(t, func(l *lab) {
			var updates atomic.Int64
			update := func(h dnstest.Handler) dnstest.Handler {
				return func(q dnstest.Query) dnstest.Reply {
					if q.Opcode != dns.OpcodeUpdate {
						return good(q)
					}
					updates.Add(1)
					return h(q)
				}
			}
			if tc.first != nil {
				l.serve("a", update(tc.first))
			}
			l.serve("b", update(good))
			l.serve("c", update(good))
			c := &dnshedge.Client{Order: dnshedge.OrderStrict}
			ups := []dnshedge.Upstream{l.up(tc.network, "a"), l.up(tc.network, "b"), l.up(tc.network, "c")}
			if tc.fallback {
				c, ups = &dnshedge.Client{Fallback: ups[1:]}, ups[:1]
			}
			m := new(dns.Msg)
			m.SetUpdate("example.")
			_, _, err := l.client(c, ups...).Exchange(m, "")
			assert.Equal(t, tc.first == nil, err == nil, "%s: %v", name, err)
			assert.EqualValues(t, 1, updates.Load(), name)
		})
	}
}

func TestClientDoesNotRepeatUpdateWhenSystemServersChange(t *testing.T) {
	bubble(t, func(l *lab) {
		var updates atomic.Int64
		for _, host := range []string{"a", "b"} {
			l.serve(host, func(q dnstest.Query) dnstest.Reply {
				if q.Opcode == dns.OpcodeUpdate {
					updates.Add(1)
				}
				return drop(q)
			})
		}
		conf := l.resolvConf("", "a")
		c := l.client(&dnshedge.Client{ResolvConf: conf, Timeout: 30 * time.Second})
		time.AfterFunc(2*time.Second, func() {
			assert.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, "nameserver %s\noptions ndots:1\n", l.net.Host("b").Addr()), 0o600))
		})
		m := new(dns.Msg)
		m.SetUpdate("example.")
		_, _, err := c.Exchange(m, "")
		require.Error(t, err)
		assert.EqualValues(t, 1, updates.Load())
	})
}
