package dnshedge_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// keepalive answers with how long the connection may be idle, in units of 100 ms.
func keepalive(units uint16) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		r := good(q)
		if o := r.Msg.IsEdns0(); o != nil {
			o.Option = append(o.Option, &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE, Timeout: units, Length: 2})
		}
		return r
	}
}

func TestStreamClosesAfterKeepaliveZero(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} {
		bubble(t, func(l *lab) {
			s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
				r := keepalive(0)(q)
				if strings.HasPrefix(q.Question[0].Name, "slow") {
					r.Delay = 200 * ms
				}
				return r
			})
			c := l.client(off(), l.up(network, "a"))
			for range 50 {
				l.must(c, "x.example.")
			}
			assert.EqualValues(t, 50, s.Conns.Load())
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					l.must(c, fmt.Sprintf("slow%d.example.", i))
					l.must(c, fmt.Sprintf("x%d.example.", i))
				})
			}
			wg.Wait()
			st := c.Stats()
			assert.Zero(t, st.Retries, network)
			assert.Zero(t, st.Failures)
			assert.EqualValues(t, 250, st.Wire, "no query was sent twice")
		})
	}
}

func TestStreamDoesNotRepeatUpdate(t *testing.T) {
	bubble(t, func(l *lab) {
		updates := 0
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.Opcode == dns.OpcodeUpdate {
				updates++
				return dnstest.Reply{Close: true}
			}
			return good(q)
		})
		c := l.client(off(), l.up("tcp", "a"))
		l.must(c, "x.example.")
		m := new(dns.Msg)
		m.SetUpdate("example.")
		_, _, err := c.Exchange(m, "")
		require.Error(t, err)
		assert.Equal(t, 1, updates)
	})
}

// loopback starts a server on this machine's own sockets.
func loopback(t *testing.T, network string, h dnstest.Handler) (dnshedge.Upstream, *dnstest.Server) {
	s := &dnstest.Server{Handler: h}
	t.Cleanup(s.Close)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	up := dnshedge.Upstream{Net: network, Addr: ln.Addr().String()}
	if network == "tcp" {
		s.ServeTCP(ln)
	} else {
		up.ServerName = dnstest.Name
		s.ServeTLS(ln)
	}
	return up, s
}

// BIND with tcp-advertised-timeout 0 sends a keepalive of 0 in every response.
func TestStreamKeepaliveZeroFailsNoQuery(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} {
		up, _ := loopback(t, network, keepalive(0))
		c := trusting(off())
		c.Upstreams = []dnshedge.Upstream{up}
		for range 200 {
			_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
			require.NoError(t, err)
		}
		st := c.Stats()
		assert.Zero(t, st.Retries, network)
		assert.InDelta(t, 200, st.Wire, 20, "a query may be late, and sent again, on a busy machine")
		c.Close()
	}
}

// limited closes each connection after n answers.
func limited(n int, h dnstest.Handler) dnstest.Handler {
	var mu sync.Mutex
	got := make(map[int]int)
	return func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if got[q.Conn]++; got[q.Conn] > n {
			return dnstest.Reply{Close: true, Delay: ms}
		}
		return h(q)
	}
}

func TestStreamAnswersBurstDespiteQueryLimit(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	for _, network := range []string{"tcp", "tls"} {
		bubble(t, func(l *lab) {
			s := l.serve("a", limited(100, good))
			c := l.client(off(), l.up(network, "a"))
			burst := func() time.Duration {
				start := time.Now()
				var wg sync.WaitGroup
				for i := range 1000 {
					wg.Go(func() { l.must(c, fmt.Sprintf("x%d.example.", i)) })
				}
				wg.Wait()
				return time.Since(start)
			}
			l.must(c, "warm.example.")
			burst()
			first, conns := c.Stats(), s.Conns.Load()
			took := burst()
			again := c.Stats()
			t.Logf("%s: %d queries for 1001 questions; then %d for 1000 over %d connections in %v", network, first.Wire, again.Wire-first.Wire, s.Conns.Load()-conns, took)
			assert.Less(t, first.Wire, int64(4000))
			assert.LessOrEqual(t, again.Wire-first.Wire, int64(1500), "the limit is learned")
			assert.LessOrEqual(t, s.Conns.Load()-conns, int64(14))
		})
	}
}

// The kernel of a server resets a connection that is closed with unread queries. Writing then fails at once, although
// responses can still be read.
func TestStreamReadsAnswersBeforeReset(t *testing.T) {
	var mu sync.Mutex
	answers := make(map[int]int) // of each connection
	up, _ := loopback(t, "tcp", func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		defer mu.Unlock()
		r := good(q)
		answers[q.Conn]++
		r.Close = answers[q.Conn] == 100
		return r
	})
	for range 5 { // each time the first connection is new
		c := off()
		c.Upstreams = []dnshedge.Upstream{up}
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				_, _, err := c.Exchange(question(fmt.Sprintf("x%d.example.", i), dns.TypeA), "")
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		c.Close()
	}
}

func TestStreamLearnsNoQueryLimitFromRestart(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", after(100*ms, good))
		c := l.client(off(), l.up("tcp", "a"))
		burst := func() {
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() { l.must(c, fmt.Sprintf("x%d.example.", i)) })
			}
			wg.Wait()
		}
		l.must(c, "x.example.")
		time.AfterFunc(50*ms, s.CloseConns)
		burst()
		n := s.Conns.Load()
		burst()
		assert.Equal(t, n, s.Conns.Load(), "one connection carries all again")
	})
}

func TestStreamRepeatsQuestionsAfterServerCloses(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		for _, known := range []bool{false, true} {
			bubble(t, func(l *lab) {
				s := l.serve("a", after(100*ms, good))
				c := l.client(off(), l.up(network, "a"))
				if known {
					l.must(c, "known.example.")
				}
				time.AfterFunc(110*ms, s.CloseConns)
				most := l.askAll(c, "x", 5)
				assert.Less(t, most, 120*ms+180*ms, "%s, known: %v", network, known)
			})
		}
	}
}

func TestStreamGivesUpQueryThatEndsConnections(t *testing.T) {
	bubble(t, func(l *lab) {
		poison := 0
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "poison.example." {
				poison++
				return dnstest.Reply{Close: true, Delay: 10 * ms}
			}
			return good(q)
		})
		c := l.client(off(), l.up("tcp", "a"))
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for j := range 50 {
					l.must(c, fmt.Sprintf("x%d-%d.example.", i, j))
				}
			})
		}
		_, _, err := l.ask(c, "poison.example.")
		require.Error(t, err)
		wg.Wait()
		assert.LessOrEqual(t, poison, 9+2*8, "after each of eight pauses over a new connection, and before that over one that was open")
	})
}

func TestStreamSurvivesSlowAnswer(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			var probes atomic.Int64
			s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
				r := good(q)
				switch q.Question[0].Name {
				case "slow.example.":
					r.Delay = 1400 * ms
				case ".":
					probes.Add(1)
				}
				return r
			})
			c := l.client(off(), l.up(network, "a"))
			c.Timeout = 1900 * ms
			l.learn(c)
			for range 5 {
				_, _, err := l.ask(c, "slow.example.")
				require.NoError(t, err, network)
				_, took := l.must(c, "fast.example.")
				assert.Equal(t, 20*ms, took)
			}
			assert.LessOrEqual(t, s.Conns.Load(), int64(2), "%s: one, and one for what is sent again", network)
			assert.LessOrEqual(t, probes.Load(), int64(10), network)
		})
	}
}

func TestStreamHonorsTimeout(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if q.Question[0].Name == "." {
					return dnstest.Reply{} // the server works on one question at a time
				}
				return after(25*time.Second, good)(q)
			})
			c := l.client(off(), l.up(network, "a"))
			c.Timeout = 30 * time.Second
			_, took, err := l.ask(c, "slow.example.")
			require.NoError(t, err, network)
			assert.Less(t, took, 26*time.Second)
		})
	}
}

// A server that has forgotten a question still answers other questions on the same connection.
func TestStreamRepeatsForgottenQuestionAfterHalfOfTime(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			var forgotten atomic.Bool
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if q.Question[0].Name == "forgotten.example." && !forgotten.Swap(true) {
					return dnstest.Reply{}
				}
				return good(q)
			})
			c := l.client(off(), l.up(network, "a"))
			l.must(c, "x.example.")
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					case <-time.After(100 * ms):
						_, _, _ = c.Exchange(question(fmt.Sprintf("x%d.example.", i), dns.TypeA), "")
					}
				}
			}()
			_, took, err := l.ask(c, "forgotten.example.")
			require.NoError(t, err, network)
			assert.InDelta(t, 2500, took.Milliseconds(), 100, network)
		})
	}
}

func TestHTTPSQueriesWaitForFreeStream(t *testing.T) {
	bubble(t, func(l *lab) {
		ln, err := l.net.Host("b").Listen("tcp", ":443")
		require.NoError(t, err)
		s := &dnstest.Server{Handler: after(20*ms, good), Streams: 10}
		l.Cleanup(s.Close)
		s.ServeHTTPS(ln)
		c := l.client(off(), l.up("https", "b"))
		l.must(c, "x.example.")
		var wg sync.WaitGroup
		for i := range 150 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(background, 900*ms)
				if i < 50 {
					ctx, cancel = context.WithTimeout(background, 70*ms)
				}
				defer cancel()
				_, _, err := c.ExchangeContext(ctx, question(fmt.Sprintf("x%d.example.", i), dns.TypeA), "")
				assert.True(t, err == nil || i < 50, "%v", err)
			})
		}
		wg.Wait()
		time.Sleep(3 * time.Second)
		assert.LessOrEqual(t, s.Conns.Load(), int64(8), "as many as shorten the wait")
		assert.Equal(t, s.Queries.Load(), c.Stats().Wire, "a query counts when it is sent")
	})
}

func TestUpstreamPinsIdentifyServer(t *testing.T) {
	server, _ := dnstest.Certificate()
	sum := sha256.Sum256(server.Certificates[0].Leaf.RawSubjectPublicKeyInfo)
	right := base64.StdEncoding.EncodeToString(sum[:])
	for _, network := range []string{"tls", "https"} {
		for _, tc := range []struct {
			name  string // of the server
			trust bool
			pins  []string
			want  string // the error
		}{
			{dnstest.Name, true, []string{somePin, right}, ""},
			{dnstest.Name, true, []string{somePin}, "its own is " + right},
			{dnstest.Name, false, []string{right}, "certificate"}, // a pin does not replace the check of the name
			{"", false, []string{right}, ""},                      // but a pin replaces the check of an address
			{"", false, []string{somePin}, "none of the pinned keys"},
			{"", false, nil, "certificate"},
		} {
			bubble(t, func(l *lab) {
				l.serve("a", good)
				up := l.up(network, "a")
				up.ServerName, up.Pins = tc.name, tc.pins
				c := l.client(off(), up)
				if !tc.trust {
					c.TLSConfig = nil
				}
				for range 2 {
					_, _, err := l.ask(c, "x.example.")
					if tc.want == "" {
						require.NoError(t, err, "%s %+v", network, tc)
					} else {
						require.ErrorContains(t, err, tc.want, "%s %+v", network, tc)
					}
					time.Sleep(time.Minute) // the next connection resumes the session
				}
			})
		}
	}
}

func TestUpstreamPostSendsPOST(t *testing.T) {
	bubble(t, func(l *lab) {
		var methods []string
		s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
			methods = append(methods, q.Method)
			return good(q)
		})
		up := l.up("https", "a")
		up.Post = true
		c := l.client(off(), up)
		l.must(c, "x.example.")
		s.CloseConns()
		time.Sleep(time.Second)
		l.must(c, "x.example.")
		assert.Equal(t, []string{"POST", "POST"}, methods)

		get := l.client(off(), l.up("https", "a"))
		l.must(get, "x.example.")
		m := new(dns.Msg)
		m.SetUpdate("example.")
		_, _, err := get.Exchange(m, "")
		require.NoError(t, err)
		assert.Equal(t, []string{"GET", "POST"}, methods[2:], "what is not safe to repeat is not sent by GET")
	})
}

func TestClientCloseEndsDrainingConnections(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if q.Question[0].Name == "lost.example." {
					return dnstest.Reply{}
				}
				return keepalive(0)(q)
			})
			c := l.client(off(), l.up(network, "a"))
			c.Timeout = time.Minute
			done := make(chan error)
			go func() {
				_, _, err := l.ask(c, "lost.example.")
				done <- err
			}()
			time.Sleep(100 * ms)
			l.must(c, "x.example.") // ends the connection for further queries
			start := time.Now()
			c.Close()
			require.Error(t, <-done)
			assert.Less(t, time.Since(start), 100*ms, network)
		})
	}
}

func TestHTTP1QueriesRunConcurrently(t *testing.T) {
	bubble(t, func(l *lab) {
		ln, err := l.net.Host("b").Listen("tcp", ":443")
		require.NoError(t, err)
		s := &dnstest.Server{Handler: after(20*ms, good), HTTP1: true}
		l.Cleanup(s.Close)
		s.ServeHTTPS(ln)
		c := l.client(off(), l.up("https", "b"))
		l.must(c, "x.example.")
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() { l.must(c, fmt.Sprintf("x%d.example.", i)) })
		}
		wg.Wait()
		assert.LessOrEqual(t, time.Since(start), 220*ms, "a handshake, and four rounds over eight connections")
		assert.LessOrEqual(t, s.Conns.Load(), int64(1+8+8+8), "and eight more, at most twice, while a query would wait for longer than 50 ms")
	})
}

func TestHTTPSConnectionSurvivesManySlowAnswers(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "." || q.Question[0].Name == "fast.example." {
				return good(q)
			}
			return after(1400*ms, good)(q)
		})
		c := l.client(off(), l.up("https", "a"))
		l.must(c, "fast.example.")
		var wg sync.WaitGroup
		for i := range 99 {
			wg.Go(func() { l.must(c, fmt.Sprintf("x%d.example.", i)) })
		}
		time.Sleep(1350 * ms)
		l.must(c, "fast.example.")
		wg.Wait()
		assert.LessOrEqual(t, s.Conns.Load(), int64(2), "one, and one for what is sent again")
	})
}

func TestStreamReusesIDsOfUnansweredQueries(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	bubble(t, func(l *lab) {
		s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if strings.HasSuffix(q.Question[0].Name, ".dead.example.") {
				return drop(q)
			}
			return good(q)
		})
		c := l.client(off(), l.up("tcp", "a"))
		open := &openConns{Dialer: c.Dialer}
		c.Dialer = open
		l.must(c, "x.example.")
		for i := range 18 {
			ctx, cancel := context.WithTimeout(background, 150*ms) // before anything is sent again
			for j := range 2000 {
				go func() {
					_, _, _ = c.ExchangeContext(ctx, question(fmt.Sprintf("x%d-%d.dead.example.", i, j), dns.TypeA), "")
				}()
			}
			synctest.Wait()
			_, took := l.must(c, "x.example.")
			assert.LessOrEqual(t, took, 60*ms)
			<-ctx.Done()
			cancel()
			synctest.Wait()
		}
		assert.LessOrEqual(t, s.Conns.Load(), int64(36_000/4096+3))
		assert.LessOrEqual(t, open.most.Load(), int64(3))
	})
}

// A server closes the connection on one question. All questions in flight on that connection are sent again.
func TestStreamQuestionThatEndsConnectionFailsNoOther(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		for _, known := range []bool{false, true} {
			bubble(t, func(l *lab) {
				var ends atomic.Int64
				l.serve("a", func(q dnstest.Query) dnstest.Reply {
					if strings.HasPrefix(q.Question[0].Name, "ends") {
						ends.Add(1)
						return dnstest.Reply{Close: true}
					}
					return good(q)
				})
				c := l.client(off(), l.up(network, "a"))
				if known {
					l.learn(c)
				}
				var wg sync.WaitGroup
				for i := range 40 {
					name := fmt.Sprintf("x%d.example.", i)
					if i%20 == 10 {
						name = fmt.Sprintf("ends%d.example.", i)
					}
					wg.Go(func() {
						_, took, err := l.ask(c, name)
						assert.Equal(t, strings.HasPrefix(name, "ends"), err != nil, "%s: %v", name, err)
						if err == nil {
							assert.LessOrEqual(t, took, time.Second)
						}
					})
				}
				wg.Wait()
				assert.LessOrEqual(t, ends.Load(), int64(2*(1+8+2+1+8)), "%s: eight more for connections that carried answers, one of its own, another one if that was known, one that is sent again, as its timeout may pass meanwhile, and eight after pauses", network)
			})
		}
	}
}
