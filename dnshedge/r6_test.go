package dnshedge_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// A company's server refuses questions about the root, and cannot resolve the names of a broken zone. It remains the
// only server for the company's names.
func TestProbeRefusalProvesNothing(t *testing.T) {
	for name, fallback := range map[string]bool{"Fallback": true, "the next of resolv.conf": false} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				switch n := q.Question[0].Name; {
				case n == ".":
					return rcode(dns.RcodeRefused)(q)
				case strings.HasSuffix(n, ".broken.example."):
					return rcode(dns.RcodeServerFailure)(q)
				}
				return with("A 10.0.0.5")(q)
			})
			l.serve("b", nxdomain)
			var c *dnshedge.Client
			if fallback {
				c = l.client(&dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "b")}}, l.up("udp", "a"))
			} else {
				c = l.client(&dnshedge.Client{ResolvConf: l.resolvConf("", "a", "b")})
			}
			l.must(c, "wiki.corp.example.")
			for i := range 300 {
				_, _, _ = l.ask(c, fmt.Sprintf("x%d.broken.example.", i))
				_, _, _ = l.ask(c, fmt.Sprintf("y%d.broken.example.", i))
				_, _, _ = l.ask(c, fmt.Sprintf("z%d.broken.example.", i))
				time.Sleep(500 * ms)
				r, _ := l.must(c, fmt.Sprintf("wiki%d.corp.example.", i))
				require.Equal(t, "10.0.0.5", addr(r), "%s, round %d", name, i)
			}
		})
	}
}

// A server is down until it has loaded its zones. It always refuses the question of probes.
func TestClientTriesServerThatIsDown(t *testing.T) {
	bubble(t, func(l *lab) {
		start := time.Now()
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "." || time.Since(start) < 80*time.Second {
				return rcode(dns.RcodeRefused)(q)
			}
			return with("A 10.0.0.5")(q)
		})
		l.serve("b", nxdomain)
		c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf("", "a", "b")})
		for i := range 60 {
			r, _ := l.must(c, fmt.Sprintf("x%d.example.", i))
			require.Equal(t, dns.RcodeNameError, r.Rcode)
			time.Sleep(time.Second)
		}
		require.True(t, c.Stats().Upstreams[0].Down)
		time.Sleep(20 * time.Second)
		wrong := 0
		for i := range 60 {
			if r, _ := l.must(c, fmt.Sprintf("y%d.example.", i)); r.Rcode == dns.RcodeNameError {
				wrong++
			}
			time.Sleep(time.Second)
		}
		assert.LessOrEqual(t, wrong, 12, "a probe each ten seconds, of which every other one is a caller's question")
	})
}

// A failure for all questions describes the server or this client, and not the names.
func TestClientAttributesGeneralFailuresToServer(t *testing.T) {
	ede := func(code int, info uint16) dnstest.Handler {
		return func(q dnstest.Query) dnstest.Reply {
			return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, code), info)}
		}
	}
	for name, tc := range map[string]struct {
		bad  dnstest.Handler
		lost int // questions, until the server is in doubt
	}{
		"it does not admit us":           {ede(dns.RcodeRefused, dns.ExtendedErrorCodeProhibited), 0},
		"it does not have the zone":      {rcode(dns.RcodeNotAuth), 0},
		"its clock is wrong":             {ede(dns.RcodeServerFailure, dns.ExtendedErrorCodeSignatureExpired), 0},
		"its trust anchor is an old one": {ede(dns.RcodeServerFailure, dns.ExtendedErrorCodeDNSKEYMissing), 0},
		"its trust anchor expires":       {laterEDE(ede(dns.RcodeServerFailure, dns.ExtendedErrorCodeDNSKEYMissing)), 3},
	} {
		for _, who := range []string{"group", "strict", "fallback"} {
			bubble(t, func(l *lab) {
				l.serve("a", tc.bad)
				l.serve("b", good)
				c := new(dnshedge.Client)
				switch who {
				case "group":
					l.client(c, l.up("udp", "a"), l.up("udp", "b"))
				case "strict":
					c.ResolvConf = l.resolvConf("", "a", "b")
					l.client(c)
				case "fallback":
					c.Fallback = []dnshedge.Upstream{l.up("udp", "b")}
					l.client(c, l.up("udp", "a"))
				}
				lost := 0
				for i := range 100 {
					if r, _, err := l.ask(c, fmt.Sprintf("n%d.example.", i)); err != nil || addr(r) == "" {
						lost++
					}
					time.Sleep(time.Second)
				}
				assert.LessOrEqual(t, lost, tc.lost, "%s, %s", name, who)
			})
		}
	}
}

// laterEDE answers the first ten queries.
func laterEDE(then dnstest.Handler) dnstest.Handler {
	var n atomic.Int64
	return func(q dnstest.Query) dnstest.Reply {
		if n.Add(1) <= 10 {
			return good(q)
		}
		return then(q)
	}
}

// Repeated failures for one bogus name are a single piece of evidence against the server.
func TestClientCountsFailingNameOnce(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if strings.HasPrefix(strings.ToLower(q.Question[0].Name), "bogus") {
				return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, dns.RcodeServerFailure), dns.ExtendedErrorCodeDNSBogus)}
			}
			return good(q)
		})
		l.serve("b", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		l.learn(c)
		for i := range 20 {
			r, _ := l.must(c, []string{"bogus.example.", "BOGUS.example."}[i%2])
			assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		}
		assert.False(t, c.Stats().Upstreams[0].Failing)
	})
}

// The first server of resolv.conf, or the only server of Upstreams, answers one query in ten, or drops a type or a
// zone. It always answers other questions.
func TestClientFailsOverForNamesThatServerIgnores(t *testing.T) {
	doubles.SkipSimulation(t)
	tenth := func() dnstest.Handler {
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(1, 2))
		return func(q dnstest.Query) dnstest.Reply {
			mu.Lock()
			defer mu.Unlock()
			if rng.IntN(10) > 0 {
				return drop(q)
			}
			return good(q)
		}
	}
	no := func(dropped func(q dns.Question) bool) func() dnstest.Handler {
		return func() dnstest.Handler {
			return func(q dnstest.Query) dnstest.Reply {
				if dropped(q.Question[0]) {
					return drop(q)
				}
				return good(q)
			}
		}
	}
	for name, bad := range map[string]func() dnstest.Handler{
		"a tenth":        tenth,
		"no HTTPS":       no(func(q dns.Question) bool { return q.Qtype == dns.TypeHTTPS }),
		"no AAAA":        no(func(q dns.Question) bool { return q.Qtype == dns.TypeAAAA }),
		"not this zone":  no(func(q dns.Question) bool { return strings.HasSuffix(q.Name, ".far.example.") }),
		"not after this": no(func(dns.Question) bool { return true }),
	} {
		for _, fallback := range []bool{false, true} {
			bubble(t, func(l *lab) {
				l.serve("a", bad())
				l.serve("b", func(q dnstest.Query) dnstest.Reply {
					if q.Question[0].Qtype == dns.TypeA {
						return good(q)
					}
					return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeSuccess, 60, 60)}
				})
				c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf("", "a", "b")})
				if fallback {
					c = l.client(&dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "b")}}, l.up("udp", "a"))
				}
				var lost atomic.Int64
				var wg sync.WaitGroup
				for i := range 300 {
					for _, typ := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS} {
						wg.Go(func() {
							r, _, err := c.Exchange(question(fmt.Sprintf("n%d.%s.example.", i, []string{"near", "far"}[i%2]), typ), "")
							if err != nil || r.Rcode != dns.RcodeSuccess {
								lost.Add(1)
							}
						})
					}
					time.Sleep(10 * ms)
				}
				wg.Wait()
				assert.Zero(t, lost.Load(), "%s; Fallback: %t", name, fallback)
			})
		}
	}
}

// The denial of a later server is held back while the first server answers other questions.
func TestStrictOrderHoldsBackDenialOfLaterServer(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if strings.HasPrefix(q.Question[0].Name, "slow") {
				return after(4*time.Second, good)(q)
			}
			return good(q)
		})
		l.serve("b", nxdomain)
		c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf("", "a", "b")})
		l.learn(c)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				r, _, err := c.Exchange(question(fmt.Sprintf("slow%d.corp.example.", i), dns.TypeA), "")
				if assert.NoError(t, err) {
					assert.Equal(t, "192.0.2.1", addr(r))
				}
			})
			l.must(c, fmt.Sprintf("fast%d.corp.example.", i))
			time.Sleep(100 * ms)
		}
		wg.Wait()
	})
}

// The first server leaves questions about one zone unanswered. A caller with a long timeout waits for it no longer than
// other resolvers do.
func TestStrictOrderAcceptsLaterServerAfterFiveSeconds(t *testing.T) {
	for _, timeout := range []time.Duration{10 * time.Second, 30 * time.Second} {
		for _, fallback := range []bool{false, true} {
			bubble(t, func(l *lab) {
				l.serve("a", func(q dnstest.Query) dnstest.Reply {
					if strings.HasSuffix(q.Question[0].Name, ".far.example.") {
						return dnstest.Reply{}
					}
					return good(q)
				})
				l.serve("b", with("A 192.0.2.2"))
				c := l.client(&dnshedge.Client{Timeout: timeout, ResolvConf: l.resolvConf("", "a", "b")})
				if fallback {
					c = l.client(&dnshedge.Client{Timeout: timeout, Fallback: []dnshedge.Upstream{l.up("udp", "b")}}, l.up("udp", "a"))
				}
				l.learn(c)
				var wg sync.WaitGroup
				wg.Go(func() {
					start := time.Now()
					r, _, err := c.Exchange(question("x.far.example.", dns.TypeA), "")
					if assert.NoError(t, err) {
						assert.Equal(t, "192.0.2.2", addr(r))
						assert.Equal(t, 5020*ms, time.Since(start), "%v, Fallback: %t", timeout, fallback)
					}
				})
				for i := range 100 {
					l.must(c, fmt.Sprintf("n%d.example.", i))
					time.Sleep(80 * ms)
				}
				wg.Wait()
			})
		}
	}
}

// Questions stop waiting for a server when other questions find that it is down.
func TestStrictOrderDoesNotWaitForServerThatIsDown(t *testing.T) {
	for _, fallback := range []bool{false, true} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			l.serve("b", with("A 192.0.2.2"))
			c := l.client(&dnshedge.Client{Timeout: 10 * time.Second, ResolvConf: l.resolvConf("", "a", "b")})
			if fallback {
				c = l.client(&dnshedge.Client{Timeout: 10 * time.Second, Fallback: []dnshedge.Upstream{l.up("udp", "b")}}, l.up("udp", "a"))
			}
			l.learn(c)
			l.link("a", netsim.Profile{BlackHole: true})
			start := time.Now()
			var wg sync.WaitGroup
			for i := range 60 {
				wg.Go(func() {
					r, _, err := c.Exchange(question(fmt.Sprintf("n%d.example.", i), dns.TypeA), "")
					if assert.NoError(t, err) {
						assert.Equal(t, "192.0.2.2", addr(r))
					}
				})
				time.Sleep(50 * ms)
			}
			wg.Wait()
			// It is silent within 0.6 s and probed for 2 s, and each question looks once a second.
			assert.LessOrEqual(t, time.Since(start), 4*time.Second, "Fallback: %t", fallback)
		})
	}
}

func TestClientLosesNoQuestionDuringRestart(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		for _, down := range []time.Duration{100 * ms, 500 * ms, 2900 * ms} {
			bubble(t, func(l *lab) {
				c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up(network, "a"))
				time.AfterFunc(down, func() { l.serve("a", good) })
				_, took := l.must(c, "x.example.")
				assert.LessOrEqual(t, took, 2*down+300*ms, "%s, %v", network, down)
			})
		}
	}
}

// An error of the local network says nothing about a name, so it is returned at once and not cached.
func TestCacheStoresNoLocalNetworkError(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.EADDRNOTAVAIL, syscall.EPERM} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
			up, down := c.Dialer, true
			c.Dialer = dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
				if down {
					return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", errno)}
				}
				return up.DialContext(ctx, network, address)
			})
			for range 10 {
				_, took, err := l.ask(c, "x.example.")
				require.ErrorIs(t, err, errno)
				assert.Zero(t, took)
			}
			down = false
			_, took := l.must(c, "x.example.")
			assert.Equal(t, 20*ms, took, "%v", errno)
		})
	}
}

// A server without TCP, to which four packets in a row are lost.
func TestClientRetransmitsWhileTimeRemains(t *testing.T) {
	for _, hedge := range []dnshedge.Hedge{{}, {Off: true}} {
		bubble(t, func(l *lab) {
			seen, h := times("lost.example.", 4)
			pc, err := l.net.Host("a").ListenPacket("udp", ":53")
			require.NoError(t, err)
			s := &dnstest.Server{Handler: h}
			s.ServeUDP(pc)
			l.Cleanup(s.Close)
			c := l.client(&dnshedge.Client{Hedge: hedge, Timeout: 10 * time.Second}, l.up("udp", "a"))
			l.learn(c)
			r, took := l.must(c, "lost.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
			assert.Less(t, took, 7*time.Second)
			assert.Len(t, *seen, 5, "and one over TCP, which is refused")
		})
	}
}

func TestClientRetransmitsUntilTimeout(t *testing.T) {
	for _, hedge := range []dnshedge.Hedge{{}, {Off: true}} {
		bubble(t, func(l *lab) {
			seen, h := times("lost.example.", 100)
			l.serve("a", h)
			c := l.client(&dnshedge.Client{Hedge: hedge, Timeout: 30 * time.Second}, l.up("udp", "a"))
			l.learn(c)
			start := time.Now()
			_, took, err := l.ask(c, "lost.example.")
			require.Error(t, err)
			assert.Equal(t, 30*time.Second, took)
			synctest.Wait()
			assert.GreaterOrEqual(t, len(*seen), 8)
			pause := 800 * ms
			for i, at := range (*seen)[1:] {
				gap := at.Sub((*seen)[i])
				assert.LessOrEqual(t, gap, 2*pause+100*ms, "query %d", i+1)
				pause = max(pause, gap)
			}
			assert.Less(t, 30*time.Second-(*seen)[len(*seen)-1].Sub(start), 2*pause, "the next one would be too late")
		})
	}
}

// A server converts names to lower case, or does not return cookies, and has no TCP. A single forged message must not
// make it unusable.
func TestClientKeepsServerAfterStrayDatagram(t *testing.T) {
	for name, tcp := range map[string]netsim.Profile{"refused": path20, "lost": {BlackHole: true}} {
		bubble(t, func(l *lab) {
			pc, err := l.net.Host("a").ListenPacket("udp", ":53")
			require.NoError(t, err)
			s := &dnstest.Server{Handler: alarmed(func(q dnstest.Query) dnstest.Reply {
				r := good(q)
				r.Msg.Question[0].Name = strings.ToLower(r.Msg.Question[0].Name)
				r.Msg.Answer[0].Header().Name = r.Msg.Question[0].Name
				return r
			})}
			s.ServeUDP(pc)
			l.Cleanup(s.Close)
			c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
			if tcp.BlackHole {
				c.Dialer = dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
					if network == "tcp" {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return l.net.Host("client").DialContext(ctx, network, address)
				})
			}
			l.must(c, "first.example.")
			for i := range 60 {
				r, took := l.must(c, fmt.Sprintf("a-long-name-%d.example.", i))
				assert.Equal(t, "192.0.2.1", addr(r))
				assert.LessOrEqual(t, took, 1100*ms, name)
				time.Sleep(time.Second)
			}
		})
	}
}

// An upstream has a host name with two addresses. The address that was used first then drops all packets.
func TestDialerForgetsBlackHoleAddress(t *testing.T) {
	bubble(t, func(l *lab) {
		first := l.serve("a", good)
		l.serve("b", good)
		a, b := l.net.Host("a").Addr().String()+":53", l.net.Host("b").Addr().String()+":53"
		hole, host := false, l.net.Host("client")
		c := l.client(&dnshedge.Client{}, dnshedge.Upstream{Net: "tcp", Addr: "dns.example:53"})
		c.Dialer = dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			switch {
			case !hole:
				return host.DialContext(ctx, network, a)
			case address == a:
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return host.DialContext(ctx, network, b)
		})
		l.must(c, "x.example.")
		hole = true
		first.CloseConns()
		for i := range 10 {
			_, took := l.must(c, fmt.Sprintf("n%d.example.", i))
			assert.LessOrEqual(t, took, 400*ms)
			time.Sleep(time.Second)
		}
	})
}

func TestResolvConfIgnoresNames(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		path := hostsFile(t, "nameserver one.example\nnameserver two.example\nnameserver 010.0.0.1\nnameserver "+l.net.Host("a").Addr().String()+"\n")
		c := l.client(&dnshedge.Client{ResolvConf: path})
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 20*ms, took)
		assert.Len(t, c.Stats().Upstreams, 1)
	})
}

// On a busy machine scutil takes most of a second.
func TestClientDoesNotWaitForSystemConfiguration(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		l.serve("b", with("A 192.0.2.2"))
		c := l.client(&dnshedge.Client{})
		out := func(host string) string {
			return fmt.Sprintf("DNS configuration\n\nresolver #1\n  nameserver[0] : %s\n", l.net.Host(host).Addr())
		}
		var now atomic.Value
		now.Store(out("a"))
		require.NoError(t, dnshedge.AskScutil(c, func() (string, error) {
			time.Sleep(800 * ms)
			return now.Load().(string), nil
		}))
		l.must(c, "first.example.")
		now.Store(out("b"))
		time.Sleep(6 * time.Second)
		for range 3 {
			_, took := l.must(c, "x.example.")
			assert.LessOrEqual(t, took, 30*ms)
		}
		time.Sleep(time.Second)
		r, took := l.must(c, "x.example.")
		assert.LessOrEqual(t, took, 20*ms)
		assert.Equal(t, "192.0.2.2", addr(r))
	})
}

// One question starts a new read of the configuration, and no question is sent to removed servers.
func TestConcurrentQuestionsUseSameSystemServers(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		l.serve("b", with("A 192.0.2.2"))
		c := l.client(&dnshedge.Client{})
		var now atomic.Value
		now.Store("a")
		require.NoError(t, dnshedge.AskScutil(c, func() (string, error) {
			time.Sleep(5 * ms)
			return fmt.Sprintf("DNS configuration\n\nresolver #1\n  nameserver[0] : %s\n", l.net.Host(now.Load().(string)).Addr()), nil
		}))
		l.must(c, "first.example.")
		now.Store("b")
		time.Sleep(6 * time.Second)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * ms)
				r, took := l.must(c, fmt.Sprintf("x%d.example.", i))
				assert.Equal(t, "192.0.2.2", addr(r), "question %d", i)
				assert.Equal(t, time.Duration(25-i)*ms, took, "question %d", i)
			})
		}
		wg.Wait()
	})
}

func TestClosedClientReadsNoSystemConfiguration(t *testing.T) {
	c := new(dnshedge.Client)
	_ = c.Stats()
	c.Close()
	_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
	require.Error(t, err)
}
