package dnshedge_test

import (
	"fmt"
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
)

// Two UDP messages to one server are lost, and the other server refuses connections. The refusals use up no attempts.
func TestClientRefusedConnectionCostsNoAttempt(t *testing.T) {
	for _, hedge := range []dnshedge.Hedge{{}, {Off: true}} {
		for _, first := range []string{"a", "b"} {
			bubble(t, func(l *lab) {
				_, h := times("lost.example.", 2)
				l.serve("a", h)
				other := map[string]string{"a": "b", "b": "a"}[first]
				c := l.client(&dnshedge.Client{Timeout: 2 * time.Second, Hedge: hedge}, l.up("udp", first), l.up("udp", other))
				l.must(c, "known.example.")
				r, took := l.must(c, "lost.example.")
				assert.Equal(t, "192.0.2.1", addr(r))
				assert.LessOrEqual(t, took, 1700*ms, "timeouts of 200 ms and 400 ms, or of twice as much while it is silent, and 20 ms for each refusal")
			})
		}
	}
}

// The next server is down, and no budget permits a query to it. Another server that was silent and works again gets the
// query.
func TestClientAsksRecoveredServerWithoutBudget(t *testing.T) {
	bubble(t, func(l *lab) {
		var silent atomic.Bool
		l.serve("b", func(q dnstest.Query) dnstest.Reply {
			if silent.Load() {
				return drop(q)
			}
			return good(q)
		})
		c := l.client(new(dnshedge.Client), l.up("udp", "a"), l.up("udp", "b"))
		l.must(c, "known.example.")
		silent.Store(true)
		time.AfterFunc(time.Second, func() { silent.Store(false) })
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				_, _, err := c.Exchange(question(fmt.Sprintf("x%d.example.", i), dns.TypeA), "")
				assert.NoError(t, err, "question %d", i)
			})
			time.Sleep(7 * ms)
		}
		wg.Wait()
	})
}

// Three servers refuse every question. The budget pays for the queries to the third and the fourth server.
func TestAnsweredQuestionsCostNoFailoverBudget(t *testing.T) {
	bubble(t, func(l *lab) {
		var failed atomic.Int64
		l.serve("a", rcode(dns.RcodeRefused))
		l.serve("b", rcode(dns.RcodeRefused))
		l.serve("c", func(q dnstest.Query) dnstest.Reply {
			if strings.HasPrefix(q.Question[0].Name, "x.") {
				return good(q)
			}
			failed.Add(1)
			return rcode(dns.RcodeRefused)(q)
		})
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("tcp", "a"), l.up("udp", "b"), l.up("udp", "c"))
		for range 100 {
			r, _ := l.must(c, "x.example.")
			require.Equal(l, dns.RcodeSuccess, r.Rcode)
		}
		for range 100 {
			l.must(c, "fails.example.")
		}
		assert.LessOrEqual(l, failed.Load(), int64(20+200/20)/2, "the burst and a share of the queries")
		r, _ := l.must(c, "x.example.")
		assert.Equal(l, dns.RcodeRefused, r.Rcode, "nothing is left of the budget")
	})
}

// Two servers fail, and the hedge to the third server is lost. That hedge is retransmitted, as it would be without the
// failures.
func TestClientRetransmitsLostHedgeAfterPrimaryFailed(t *testing.T) {
	bubble(t, func(l *lab) {
		refuses, fails := script(good, rcode(dns.RcodeRefused)), after(130*ms, rcode(dns.RcodeServerFailure))
		l.serve("a", refuses)
		l.serve("b", fails)
		_, h := times("lost.example.", 2)
		l.serve("c", h)
		c := l.client(new(dnshedge.Client), l.up("udp", "a"), l.up("udp", "b"), l.up("udp", "c"))
		l.must(c, "known.example.")
		r, took := l.must(c, "lost.example.")
		require.Equal(t, dns.RcodeSuccess, r.Rcode)
		assert.Equal(t, "192.0.2.1", addr(r))
		assert.LessOrEqual(t, took, 3500*ms, "timeouts of 1 s and 2 s")
	})
}

// All servers fail. The failure is returned as soon as the last server has failed.
func TestClientReturnsFailureWhenLastServerFailed(t *testing.T) {
	bubble(t, func(l *lab) {
		for _, h := range []string{"a", "b", "c"} {
			l.serve(h, after(130*ms, rcode(dns.RcodeServerFailure)))
		}
		c := l.client(new(dnshedge.Client), l.up("udp", "a"), l.up("udp", "b"), l.up("udp", "c"))
		r, took := l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		assert.LessOrEqual(t, took, 450*ms)
	})
}

// One server fails temporarily. It gets another query after the other server has left some queries unanswered.
func TestClientAsksFailedServerAgainIfOthersAreSilent(t *testing.T) {
	for _, order := range []string{"a b", "b a"} {
		for _, hedge := range []dnshedge.Hedge{{}, {Off: true}} {
			bubble(t, func(l *lab) {
				l.serve("a", script(good, drop))
				s := l.serve("b", script(good, rcode(dns.RcodeServerFailure), good))
				hosts := strings.Fields(order)
				c := l.client(&dnshedge.Client{Hedge: hedge}, l.up("udp", hosts[0]), l.up("udp", hosts[1]))
				l.must(c, "known.example.")
				before := s.Queries.Load()
				r, took := l.must(c, "x.example.")
				assert.Equal(t, dns.RcodeSuccess, r.Rcode, "%s, %+v", order, hedge)
				assert.Less(t, took, 4*time.Second, "%s, %+v", order, hedge)
				assert.LessOrEqual(t, s.Queries.Load()-before, int64(2), "%s, %+v", order, hedge)
			})
		}
	}
}

// The responses of both servers are too long for UDP, and their TCP ports are closed. The servers do not restart, so
// they get no further queries.
func TestClientDoesNotWaitForServerWithoutTCP(t *testing.T) {
	bubble(t, func(l *lab) {
		var queries atomic.Int64
		for _, h := range []string{"a", "b"} {
			pc, err := l.net.Host(h).ListenPacket("udp", ":53")
			require.NoError(t, err)
			s := &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
				queries.Add(1)
				m := dnstest.Answer(q)
				m.Truncated = true
				return dnstest.Reply{Msg: m}
			}}
			s.ServeUDP(pc)
			l.Cleanup(s.Close)
		}
		c := l.client(off(), l.up("udp", "a"), l.up("udp", "b"))
		_, took, err := l.ask(c, "long.example.")
		require.ErrorContains(t, err, "connection refused")
		assert.Equal(t, 80*ms, took, "each is asked once, and over TCP")
		assert.EqualValues(t, 2, queries.Load())
	})
}

// One server restarts. The other server has no TCP, and its response is too long for UDP.
func TestClientWaitsForRestartBesideServerWithoutTCP(t *testing.T) {
	for name, order := range map[string][]string{"first": {"a", "b"}, "second": {"b", "a"}} {
		for _, strict := range []dnshedge.Order{dnshedge.OrderAuto, dnshedge.OrderStrict} {
			bubble(t, func(l *lab) {
				pc, err := l.net.Host("b").ListenPacket("udp", ":53")
				require.NoError(t, err)
				b := &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
					m := dnstest.Answer(q)
					m.Truncated = true
					return dnstest.Reply{Msg: m}
				}}
				b.ServeUDP(pc)
				l.Cleanup(b.Close)
				c := off()
				c.Order = strict
				l.client(c, l.up("udp", order[0]), l.up("udp", order[1]))
				time.AfterFunc(2*time.Second, func() { l.serve("a", good) })
				r, took, err := l.ask(c, "long.example.")
				if assert.NoError(t, err, "it is the %s, %v", name, strict) {
					assert.Equal(t, "192.0.2.1", addr(r))
					assert.LessOrEqual(t, took, 2*time.Second+1600*ms+100*ms, "the fourth pause, and a round trip for each")
				}
			})
		}
	}
}

// One server restarts. The other server closes the connection when it receives the question.
func TestClientWaitsForRestartBesideClosingServer(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} {
		for name, order := range map[string][]string{"first": {"a", "b"}, "second": {"b", "a"}} {
			for _, strict := range []dnshedge.Order{dnshedge.OrderAuto, dnshedge.OrderStrict} {
				bubble(t, func(l *lab) {
					var queries atomic.Int64
					l.serve("b", func(dnstest.Query) dnstest.Reply {
						queries.Add(1)
						return dnstest.Reply{Close: true}
					})
					c := off()
					c.Order = strict
					l.client(c, l.up(network, order[0]), l.up(network, order[1]))
					time.AfterFunc(2*time.Second, func() { l.serve("a", good) })
					r, took, err := l.ask(c, "x.example.")
					if assert.NoError(t, err, "%s: it is the %s, %v", network, name, strict) {
						assert.Equal(t, "192.0.2.1", addr(r))
						assert.LessOrEqual(t, took, 2*time.Second+1600*ms+400*ms, "the fourth pause, and three round trips for each of four times")
					}
					assert.LessOrEqual(t, queries.Load(), int64(2*5), "it is asked again with the other one, and each time once more over a connection of its own")
				})
			}
		}
	}
}

// One server closes its connection on some questions. The other server is silent until no budget permits a query to it.
// No server has answered about these names, so the silent server gets a query for each name, and answers once it works
// again.
func TestClientAsksSilentServerWhenOtherClosesConnections(t *testing.T) {
	for _, order := range []string{"a b", "b a"} {
		bubble(t, func(l *lab) {
			var silent atomic.Bool
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if strings.HasPrefix(q.Question[0].Name, "x") {
					return dnstest.Reply{Close: true}
				}
				return good(q)
			})
			l.serve("b", func(q dnstest.Query) dnstest.Reply {
				if silent.Load() {
					return drop(q)
				}
				return good(q)
			})
			hosts := strings.Fields(order)
			c := l.client(off(), l.up("tcp", hosts[0]), l.up("tcp", hosts[1]))
			l.must(c, "known.example.")
			silent.Store(true)
			var wg sync.WaitGroup
			for i := range 60 {
				wg.Go(func() { _, _, _ = c.Exchange(question(fmt.Sprintf("x%d.example.", i), dns.TypeA), "") })
				time.Sleep(100 * ms)
				l.must(c, fmt.Sprintf("y%d.example.", i))
			}
			wg.Wait()
			l.must(c, "y.example.")
			silent.Store(false)
			_, _, err := l.ask(c, "x.example.")
			assert.NoError(t, err, order)
		})
	}
}

// Three names fail on all servers. Then the first server answers another name, so that only the second server is
// unhealthy. When the first server closes the connection, the second server gets the question.
func TestClientAsksDoubtfulServerWhenOtherClosesConnection(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} {
		bubble(t, func(l *lab) {
			fails := func(q dnstest.Query) bool { return strings.HasPrefix(q.Question[0].Name, "fails") }
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if strings.HasPrefix(q.Question[0].Name, "x") {
					return dnstest.Reply{Close: true}
				}
				if fails(q) {
					return rcode(dns.RcodeServerFailure)(q)
				}
				return good(q)
			})
			l.serve("b", func(q dnstest.Query) dnstest.Reply {
				if strings.HasPrefix(q.Question[0].Name, "x") {
					return good(q)
				}
				return rcode(dns.RcodeServerFailure)(q)
			})
			c := l.client(off(), l.up(network, "a"), l.up(network, "b"))
			for i := range 3 {
				l.must(c, fmt.Sprintf("fails%d.example.", i))
			}
			l.must(c, "known.example.")
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
		})
	}
}

// The last attempt gets a failure from its server, and another server has lost two queries. That server gets a third
// query.
func TestLastAttemptContinuesAfterFailure(t *testing.T) {
	bubble(t, func(l *lab) {
		_, h := times("lost.example.", 2)
		l.serve("a", h)
		l.serve("b", rcode(dns.RcodeNotAuth))
		c := l.client(off(), l.up("udp", "a"), l.up("udp", "b"))
		l.must(c, "known.example.")
		r, took := l.must(c, "lost.example.")
		assert.Equal(t, dns.RcodeSuccess, r.Rcode)
		assert.LessOrEqual(t, took, 4500*ms, "after 200 ms, 600 ms, and half of the time that is left")
	})
}

// The first question of a Client, to which 300 ms of datagrams are lost, leaves time for an answer to the last attempt.
func TestLastAttemptLeavesTimeForAnswer(t *testing.T) {
	bubble(t, func(l *lab) {
		_, h := times("lost.example.", 3)
		l.serve("a", after(1500*ms, h))
		c := l.client(new(dnshedge.Client), l.up("udp", "a"))
		_, took := l.must(c, "lost.example.")
		assert.LessOrEqual(t, took, 2500*ms+1600*ms)
	})
}
