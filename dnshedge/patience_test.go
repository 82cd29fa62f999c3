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
	"github.com/gohedge/hedge/internal/netsim"
)

// Two of three servers refuse a question, and a datagram to the third is lost.
func TestClientAsksRefusingServerAfterUnansweredServer(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", script(drop, good))
		refusing := []*dnstest.Server{l.serve("b", rcode(dns.RcodeRefused)), l.serve("c", rcode(dns.RcodeRefused))}
		c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Off: true}}, l.up("udp", "b"), l.up("udp", "a"), l.up("udp", "c"))
		r, took := l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeSuccess, r.Rcode)
		assert.Equal(t, 1440*ms, took, "a is asked after 20 ms, c a second later, and then a again after twice the 200 ms of c, which has answered")
		for _, s := range refusing {
			assert.LessOrEqual(t, s.Queries.Load(), int64(1))
		}
	})
}

// Two servers have no samples yet. One is silent, and the other answers one question and loses another question twice.
// The last attempt begins as soon as the timeouts of the second server permit it.
func TestLastAttemptWaitsForTimeoutOfAskedServer(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		l.serve("b", about("x.example.", script(drop, drop, good), good))
		c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Off: true}, Timeout: 10 * time.Second}, l.up("udp", "a"), l.up("udp", "b"))
		go func() {
			time.Sleep(400 * ms)
			l.must(c, "y.example.")
		}()
		_, took := l.must(c, "x.example.")
		assert.Less(t, took, 2500*ms, "b is asked after a second, after 0.6 s, when it has answered y, and after four timeouts of 200 ms")
	})
}

// A server fails a question after some time: it responds to all queries at the same moment, to the latest query first.
func TestClientEndsWhenAllAttemptsHaveFailed(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		for _, failsAfter := range []time.Duration{time.Second, 2 * time.Second, 3500 * ms} {
			bubble(t, func(l *lab) {
				var start time.Time
				var queries atomic.Int64
				l.serve("a", about("x.example.", func(q dnstest.Query) dnstest.Reply {
					delay := failsAfter - time.Since(start) - time.Duration(queries.Add(1))*ms
					return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure), Delay: delay}
				}, good))
				c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{MaxHedges: 3}}, l.up(network, "a"))
				l.learn(c)
				time.Sleep(12 * time.Second)
				start = time.Now()
				r, took := l.must(c, "x.example.")
				assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
				assert.GreaterOrEqual(t, queries.Load(), int64(4), "%s, %v: all attempts are used up", network, failsAfter)
				assert.Equal(t, failsAfter+9*ms, took, "%s, %v: the response to the first query is the last one", network, failsAfter)
			})
		}
	}
}

// One server fails a question, and the other is silent for some time. The silent server gets a query at each timeout,
// because it is the only server that may still succeed.
func TestClientAsksSilentServerBeforeFailingServerAgain(t *testing.T) {
	for _, code := range []int{dns.RcodeRefused, dns.RcodeServerFailure} {
		for _, order := range []string{"a b", "b a"} {
			for _, hedge := range []dnshedge.Hedge{{}, {Off: true}, {Shadow: true}} {
				for _, silent := range []time.Duration{300 * ms, time.Second, 1500 * ms, 2500 * ms} {
					bubble(t, func(l *lab) {
						a, took := l.silentBesideOneThatFails(code, order, hedge, silent)
						assert.LessOrEqual(t, took, 2*silent+300*ms, "%d, %s, %+v, %v: timeouts double", code, order, hedge, silent)
						assert.LessOrEqual(t, a, int64(2), "%d, %s, %+v, %v: it is asked again when the other one has had three queries more", code, order, hedge, silent)
					})
				}
			}
		}
	}
}

// silentBesideOneThatFails sends a question that server a fails and server b does not answer at first. The client has
// samples of both. It returns the number of queries to a, and the duration of the question.
func (l *lab) silentBesideOneThatFails(code int, order string, hedge dnshedge.Hedge, silent time.Duration) (queries int64, took time.Duration) {
	var back atomic.Bool
	knows := func(names string, x dnstest.Handler) dnstest.Handler {
		return func(q dnstest.Query) dnstest.Reply {
			switch name := q.Question[0].Name; {
			case name == "x.example.":
				return x(q)
			case strings.HasPrefix(name, names):
				return good(q)
			}
			return rcode(dns.RcodeRefused)(q)
		}
	}
	a := l.serve("a", knows("a", rcode(code)))
	l.serve("b", knows("b", func(q dnstest.Query) dnstest.Reply {
		if back.Load() {
			return good(q)
		}
		return drop(q)
	}))
	hosts := strings.Fields(order)
	c := l.client(&dnshedge.Client{Hedge: hedge}, l.up("udp", hosts[0]), l.up("udp", hosts[1]))
	for i := range 30 {
		l.must(c, fmt.Sprintf("a%d.example.", i))
		l.must(c, fmt.Sprintf("b%d.example.", i))
	}
	time.Sleep(12 * time.Second)
	before := a.Queries.Load()
	time.AfterFunc(silent, func() { back.Store(true) })
	r, took := l.must(c, "x.example.")
	assert.Equal(l, dns.RcodeSuccess, r.Rcode, "%d, %s, %+v, %v", code, order, hedge, silent)
	return a.Queries.Load() - before, took
}

// A server that restarts may take as long as the question's deadline permits.
func TestClientRetriesWhileServersRefuseConnections(t *testing.T) {
	for _, down := range []time.Duration{3200 * ms, 4 * time.Second, 4500 * ms} {
		bubble(t, func(l *lab) {
			c := l.client(new(dnshedge.Client), l.up("udp", "a"))
			time.AfterFunc(down, func() { l.serve("a", good) })
			_, took := l.must(c, "x.example.")
			assert.LessOrEqual(t, took, down+(5*time.Second-down)/2+300*ms)
		})
	}
}

// The second server answers after half of the time, and its answer is held back until shortly before the deadline.
func TestStrictOrderAgesHeldBackAnswer(t *testing.T) {
	for _, cache := range []*dnshedge.Cache{nil, new(dnshedge.Cache)} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if strings.HasPrefix(q.Question[0].Name, "slow") {
					return drop(q)
				}
				return good(q)
			})
			l.serve("b", with("100 A 192.0.2.2"))
			c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf("", "a", "b"), Cache: cache})
			l.learn(c)
			for i := range 8 {
				l.must(c, fmt.Sprintf("x%d.example.", i))
			}
			time.AfterFunc(3*time.Second, func() { l.must(c, "alive.example.") })
			r, took := l.must(c, "slow.example.")
			require.Equal(t, 4750*ms, took)
			assert.EqualValues(t, 98, ttl(r), "it came after 2.52 s")
		})
	}
}

// Three servers have no samples yet, and two of them do not respond in time. Each may take half of the remaining time.
func TestClientAsksUnmeasuredServerWhileTimeRemains(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		l.serve("b", after(time.Second, good))
		l.serve("c", with("A 192.0.2.2"))
		c := l.client(&dnshedge.Client{Timeout: 2 * time.Second, Hedge: dnshedge.Hedge{Off: true}}, l.up("udp", "a"), l.up("udp", "b"), l.up("udp", "c"))
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 1520*ms, took)
	})
}

// One of three servers restarts, and the others are silent. It is asked again before servers with an unanswered query.
func TestClientAsksARestartedServerBeforeSilentOnes(t *testing.T) {
	for _, order := range [][]string{{"a", "b", "c"}, {"a", "c", "b"}, {"b", "a", "c"}} {
		bubble(t, func(l *lab) {
			l.serve("a", drop)
			l.serve("c", drop)
			var ups []dnshedge.Upstream
			for _, host := range order {
				ups = append(ups, l.up("udp", host))
			}
			c := l.client(&dnshedge.Client{Timeout: 10 * time.Second, Hedge: dnshedge.Hedge{Off: true}}, ups...)
			time.AfterFunc(2*time.Second, func() { l.serve("b", good) })
			_, took := l.must(c, "x.example.")
			assert.LessOrEqual(t, took, 3040*ms, "%v", order)
		})
	}
}

// Over TCP, responses that arrive after the deadline are still read. So the server is not silent, but its
// retransmission timeout exceeds the time of a question.
func TestClientAsksOtherServerWhenAnswersComeTooLate(t *testing.T) {
	bubble(t, func(l *lab) {
		var late atomic.Bool
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			r := good(q)
			if late.Load() {
				r.Delay = 7 * time.Second
			}
			return r
		})
		l.serve("b", func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Qtype == dns.TypeAAAA {
				return rcode(dns.RcodeNotAuth)(q)
			}
			return with("A 192.0.2.2")(q)
		})
		c := l.client(off(), l.up("tcp", "a"), l.up("tcp", "b"))
		for i := range 8 {
			l.must(c, fmt.Sprintf("x%d.example.", i))
		}
		late.Store(true)
		ask := func(at time.Duration, name string, typ uint16) {
			time.AfterFunc(at, func() {
				start := time.Now()
				r, _, err := c.ExchangeContext(background, question(name, typ), "")
				if typ == dns.TypeA && assert.NoError(t, err, name) {
					assert.Equal(t, dns.RcodeSuccess, r.Rcode)
					assert.LessOrEqual(t, time.Since(start), 2500*ms+60*ms, "half of the time, a handshake, and a round trip")
				}
			})
		}
		time.Sleep(12 * time.Second)
		for i := range 7 { // b fails, and so a is asked each time
			ask(time.Duration(i)*7*time.Second, "six.example.", dns.TypeAAAA)
		}
		ask(6600*ms, "one.example.", dns.TypeA)
		ask(9600*ms, "two.example.", dns.TypeA)
		ask(29600*ms, "three.example.", dns.TypeA)
		time.Sleep(time.Minute)
	})
}

// The timeout was doubled when a question was asked, and an answer comes a moment later.
func TestClientResetsTimeoutBackoffAfterAnswer(t *testing.T) {
	bubble(t, func(l *lab) {
		var seen sync.Map
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if _, before := seen.LoadOrStore(q.Question[0].Name, true); !before {
				return drop(q)
			}
			return good(q)
		})
		c := l.client(&dnshedge.Client{Timeout: 2 * time.Second, Hedge: dnshedge.Hedge{Off: true}}, l.up("udp", "a"))
		var wg sync.WaitGroup
		wg.Go(func() {
			_, took := l.must(c, "one.example.")
			assert.Equal(t, 1020*ms, took)
		})
		time.Sleep(time.Second + ms)
		_, took := l.must(c, "two.example.")
		assert.Equal(t, 1020*ms, took)
		wg.Wait()
	})
}

// Hedges have used up the other attempts, and the last attempt began after the timeout had been doubled six times.
func TestLastAttemptSkipsExpiredTimeout(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(&dnshedge.Client{Timeout: 20 * time.Second}, l.up("udp", "a"))
		l.learn(c)
		l.link("a", netsim.Profile{BlackHole: true})
		_, _, err := l.ask(c, "lost.example.")
		require.Error(t, err)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, took := l.must(c, "x.example.")
			assert.LessOrEqual(t, took, 900*ms, "it looks each 200 ms, and it is a round trip")
		})
		time.Sleep(600 * ms)
		l.link("a", path20)
		_, took := l.must(c, "y.example.")
		require.Equal(t, 20*ms, took)
		wg.Wait()
	})
}

// A server suddenly takes seven seconds for three queries, and then a second for each query. That is longer than the
// four retransmission timeouts of 200 ms after which the last attempt sends the question again. Its first query stays in
// flight, and its response is used.
func TestLastAttemptKeepsEarlierQueriesInFlight(t *testing.T) {
	for name, hedge := range map[string]dnshedge.Hedge{"hedged": {}, "not hedged": {Off: true}} {
		bubble(t, func(l *lab) {
			slow, slower := after(time.Second, good), after(7*time.Second, good)
			l.serve("a", about("x.example.", script(slower, slower, slower, slow), good))
			c := l.client(&dnshedge.Client{Timeout: 10 * time.Second, Hedge: hedge}, l.up("udp", "a"))
			l.learn(c)
			_, took := l.must(c, "x.example.")
			assert.LessOrEqual(t, took, 4*time.Second, name)
		})
	}
}
