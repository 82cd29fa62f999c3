package dnshedge_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
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
)

func TestTransportWarmQueryTakesOneRoundTrip(t *testing.T) {
	for _, tr := range []struct {
		network string
		first   time.Duration // handshakes included
	}{{"udp", 20 * ms}, {"tcp", 40 * ms}, {"tls", 60 * ms}, {"https", 60 * ms}} {
		t.Run(tr.network, func(t *testing.T) {
			bubble(t, func(l *lab) {
				s := l.serve("a", good)
				c := l.client(off(), l.up(tr.network, "a"))
				r, took := l.must(c, "warm.example.")
				assert.Equal(t, "192.0.2.1", addr(r))
				assert.Equal(t, tr.first, took)
				for range 5 {
					_, took = l.must(c, "warm.example.")
					assert.Equal(t, 20*ms, took)
				}
				if tr.network != "udp" {
					assert.EqualValues(t, 1, s.Conns.Load(), "one connection")
				}
				assert.EqualValues(t, 6, c.Stats().Wire)
			})
		})
	}
}

func TestUDPUsesRandomPortAndID(t *testing.T) {
	bubble(t, func(l *lab) {
		pc, err := l.net.Host("a").ListenPacket("udp", ":53")
		require.NoError(t, err)
		defer pc.Close()
		ids, ports := make(map[uint16]bool), make(map[string]bool)
		go func() {
			buf := make([]byte, 512)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				ids[binary.BigEndian.Uint16(buf)] = true
				ports[from.String()] = true
				m := new(dns.Msg)
				_ = m.Unpack(buf[:n])
				b, _ := dnstest.Answer(dnstest.Query{Msg: m}, "A 192.0.2.1").Pack()
				_, _ = pc.WriteTo(b, from)
			}
		}()
		c := l.client(off(), l.up("udp", "a"))
		for range 50 {
			l.must(c, "x.example.")
		}
		synctest.Wait()
		assert.Len(t, ports, 50)
		assert.Greater(t, len(ids), 45)
	})
}

func TestUDPIgnoresAndCountsWrongDatagrams(t *testing.T) {
	wrong := map[string]func(q dnstest.Query) []byte{
		"ID": func(q dnstest.Query) []byte {
			m := dnstest.Answer(q, "A 203.0.113.9")
			m.Id++
			b, _ := m.Pack()
			return b
		},
		"question": func(q dnstest.Query) []byte {
			m := dnstest.Answer(q, "A 203.0.113.9")
			m.Question[0].Name = "y.example."
			b, _ := m.Pack()
			return b
		},
		"type": func(q dnstest.Query) []byte {
			m := dnstest.Answer(q, "A 203.0.113.9")
			m.Question[0].Qtype = 257
			b, _ := m.Pack()
			return b
		},
		"no question": func(q dnstest.Query) []byte {
			m := dnstest.Answer(q, "A 203.0.113.9")
			m.Question = nil
			b, _ := m.Pack()
			return b
		},
		"no response": func(q dnstest.Query) []byte {
			m := dnstest.Answer(q, "A 203.0.113.9")
			m.Response = false
			b, _ := m.Pack()
			return b
		},
		"other opcode": func(q dnstest.Query) []byte {
			m := dnstest.Answer(q, "A 203.0.113.9")
			m.Opcode = dns.OpcodeNotify
			b, _ := m.Pack()
			return b
		},
		"short":   func(dnstest.Query) []byte { return []byte{1, 2, 3} },
		"garbage": func(q dnstest.Query) []byte { return []byte(strings.Repeat("\xff", 300)) },
	}
	for name, forge := range wrong {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				l.serve("a", func(q dnstest.Query) dnstest.Reply {
					pc, err := l.net.Host("a").ListenPacket("udp", ":54")
					if err == nil {
						pc.Close()
					}
					return dnstest.Reply{Raw: forge(q)}
				})
				c := l.client(off(), l.up("udp", "a"))
				c.Timeout = 500 * ms
				_, took, err := l.ask(c, "x.example.")
				require.Error(t, err)
				assert.Equal(t, 500*ms, took, "not fatal, not an answer")
				assert.EqualValues(t, 1, c.Stats().Ignored)
			})
		})
	}
}

func TestUDPAcceptsAnswerAfterForgedOne(t *testing.T) {
	bubble(t, func(l *lab) {
		pc, err := l.net.Host("a").ListenPacket("udp", ":53")
		require.NoError(t, err)
		defer pc.Close()
		go func() {
			buf := make([]byte, 512)
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			_ = m.Unpack(buf[:n])
			forged := dnstest.Answer(dnstest.Query{Msg: m}, "A 203.0.113.9")
			forged.Id++
			for _, m := range []*dns.Msg{forged, dnstest.Answer(dnstest.Query{Msg: m}, "A 192.0.2.1")} {
				b, _ := m.Pack()
				_, _ = pc.WriteTo(b, from)
			}
		}()
		c := l.client(off(), l.up("udp", "a"))
		r, took := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		assert.Equal(t, 20*ms, took)
		assert.EqualValues(t, 1, c.Stats().Ignored)
	})
}

// A server restarts within a moment.
func TestUDPRetriesRefusedPortWhileTimeRemains(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			c := l.client(off(), l.up(network, "a"))
			_, took, err := l.ask(c, "x.example.")
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.ErrorContains(t, err, network+"://10.77.0.2")
			require.ErrorContains(t, err, "x.example. A")
			// After 3.1 s, half of the remaining time is less: 950 ms, then 465 and 222.5 ms. Half of 202.5 ms is too little.
			assert.Equal(t, 3*time.Second+5*20*ms+970*ms+485*ms+242500*time.Microsecond, took, "after 200 ms, and each time twice as long")
		})
	}
}

func TestUDPRetriesTruncatedAnswerOverTCP(t *testing.T) {
	bubble(t, func(l *lab) {
		long := strings.Repeat("x", 255)
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			m := dnstest.Answer(q)
			if q.Net == "udp" {
				m.Truncated = true
				return dnstest.Reply{Msg: m}
			}
			for range 200 {
				m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: 1, Ttl: 9}, Txt: []string{long}})
			}
			m.Compress = true
			return dnstest.Reply{Msg: m}
		})
		c := l.client(off(), l.up("udp", "a"))
		start := time.Now()
		r, _, err := c.Exchange(question("big.example.", dns.TypeTXT), "")
		require.NoError(t, err)
		assert.Len(t, r.Answer, 200)
		assert.False(t, r.Truncated)
		assert.Equal(t, 60*ms, time.Since(start), "a round trip, a handshake, a round trip")
		assert.EqualValues(t, 2, c.Stats().Wire)
	})
}

func TestClientDropsEDNSForServersWithoutIt(t *testing.T) {
	bubble(t, func(l *lab) {
		plain := 0
		s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.IsEdns0() != nil {
				return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeFormatError)}
			}
			plain++
			return good(q)
		})
		c := l.client(off(), l.up("udp", "a"))
		for range 3 {
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
		}
		assert.EqualValues(t, 4, s.Queries.Load(), "it is remembered")
	})
}

func TestTransportFormatsQueries(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			var got *dns.Msg
			l.serve("a", func(q dnstest.Query) dnstest.Reply { got = q.Msg.Copy(); return good(q) })
			c := l.client(off(), l.up(network, "a"))
			m := question("x.example.", dns.TypeA)
			m.CheckingDisabled = true
			m.SetEdns0(4096, true)
			m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(198, 51, 100, 0).To4()})
			_, _, err := c.Exchange(m, "")
			require.NoError(t, err)
			opt := got.IsEdns0()
			require.NotNil(t, opt)
			assert.EqualValues(t, 1232, opt.UDPSize())
			assert.True(t, opt.Do())
			assert.True(t, got.CheckingDisabled && got.RecursionDesired)
			codes := make(map[uint16]bool)
			for _, o := range opt.Option {
				codes[o.Option()] = true
			}
			assert.True(t, codes[dns.EDNS0SUBNET])
			assert.Equal(t, network == "tcp" || network == "tls", codes[dns.EDNS0TCPKEEPALIVE], network)
			assert.Equal(t, network == "tls" || network == "https", codes[dns.EDNS0PADDING], network)
			if codes[dns.EDNS0PADDING] {
				b, err := got.Pack()
				require.NoError(t, err)
				assert.Zero(t, len(b)%128, "RFC 8467 §4.1")
			}
			if network == "https" {
				assert.Zero(t, got.Id, "RFC 8484 §4.1")
			}
		})
	}
}

func TestStreamAnswersTenThousandPipelinedQueries(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	for _, network := range []string{"tcp", "tls"} {
		bubble(t, func(l *lab) {
			rng := rand.New(rand.NewPCG(1, 1))
			var mu sync.Mutex
			s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
				mu.Lock()
				d := time.Duration(rng.IntN(100)) * ms
				mu.Unlock()
				var n int
				_, _ = fmt.Sscanf(q.Question[0].Name, "q%d.example.", &n)
				return dnstest.Reply{Msg: dnstest.Answer(q, fmt.Sprintf("A 10.%d.%d.%d", n>>16, n>>8&255, n&255)), Delay: d}
			})
			c := l.client(off(), l.up(network, "a"))
			c.MaxInFlight = 10_000
			var wg sync.WaitGroup
			wrong := 0
			for n := range 10_000 {
				wg.Go(func() {
					r, _, err := c.Exchange(question(fmt.Sprintf("q%d.example.", n), dns.TypeA), "")
					if err != nil || addr(r) != fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255) {
						mu.Lock()
						wrong++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			assert.Zero(t, wrong)
			assert.EqualValues(t, 1, s.Conns.Load())
			st := c.Stats()
			assert.EqualValues(t, 10_000, st.Wire)
			assert.Zero(t, st.Ignored)
			assert.Zero(t, st.Resends)
		})
	}
}

func TestStreamHonorsKeepaliveOfServer(t *testing.T) {
	for idle, want := range map[int]time.Duration{-1: 10 * time.Second, 30: 3 * time.Second, 600: time.Minute, 9000: 2 * time.Minute} {
		bubble(t, func(l *lab) {
			h := good
			if idle >= 0 {
				h = keepalive(uint16(idle))
			}
			s := l.serve("a", h)
			c := l.client(off(), l.up("tcp", "a"))
			l.must(c, "x.example.")
			l.must(c, "x.example.")
			time.Sleep(want - 30*ms)
			l.must(c, "x.example.")
			assert.EqualValues(t, 1, s.Conns.Load())
			time.Sleep(want + ms)
			l.must(c, "x.example.")
			assert.EqualValues(t, 2, s.Conns.Load())
			assert.Zero(t, c.Stats().Retries)
		})
	}
}

func TestStreamRetriesOnceAfterClose(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			s := l.serve("a", script(good, func(q dnstest.Query) dnstest.Reply { return dnstest.Reply{Close: true} }, good))
			c := l.client(off(), l.up(network, "a"))
			l.must(c, "x.example.")
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
			assert.EqualValues(t, 1, c.Stats().Retries)
			assert.EqualValues(t, 2, s.Conns.Load())
		})
	}
}

func TestStreamReportsServerThatAlwaysCloses(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", func(q dnstest.Query) dnstest.Reply { return dnstest.Reply{Close: true} })
		c := l.client(off(), l.up("tcp", "a"))
		_, took, err := l.ask(c, "x.example.")
		require.ErrorContains(t, err, "EOF")
		assert.Less(t, took, 5*time.Second)
		assert.LessOrEqual(t, s.Queries.Load(), int64(1+8))
		assert.Zero(t, c.Stats().Retries, "only a connection that was used before")
		time.Sleep(time.Second)
		before := s.Queries.Load()
		_, took, err = l.ask(c, "y.example.")
		require.ErrorContains(t, err, "EOF")
		assert.Less(t, took, 100*ms, "it has ended connections for as long as a question has time")
		assert.EqualValues(t, 1, s.Queries.Load()-before)
	})
}

func TestStreamReconnectsAfterCloseBetweenQueries(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			s := l.serve("a", good)
			c := l.client(off(), l.up(network, "a"))
			for range 5 {
				l.must(c, "x.example.")
				s.CloseConns()
				time.Sleep(time.Second)
			}
			assert.Zero(t, c.Stats().Failures)
		})
	}
}

func TestStreamIgnoresUnsolicitedMessages(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			other := dnstest.Answer(q, "A 203.0.113.9")
			other.Id += 7
			b, _ := dnstest.Answer(q, "A 192.0.2.1").Pack()
			return dnstest.Reply{Msg: other, Raw: b}
		})
		c := l.client(off(), l.up("tcp", "a"))
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		assert.EqualValues(t, 1, c.Stats().Ignored)
	})
}

func TestStreamClosesAfterShortFrame(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", script(func(q dnstest.Query) dnstest.Reply { return dnstest.Reply{Raw: []byte{1, 2, 3}} }, good))
		c := l.client(off(), l.up("tcp", "a"))
		_, _, err := l.ask(c, "x.example.")
		require.ErrorContains(t, err, "frame shorter than a header")
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r), "the next query works")
		assert.EqualValues(t, 2, s.Conns.Load())
		assert.EqualValues(t, 1, c.Stats().Ignored)
	})
}

func TestStreamReplacesSilentConnection(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			var dead sync.Map
			s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if _, frozen := dead.Load(q.Conn); frozen || q.Net == "https" && q.Question[0].Name != "x.example." {
					return dnstest.Reply{}
				}
				return good(q)
			})
			c := l.client(off(), l.up(network, "a"))
			l.must(c, "x.example.")
			dead.Store(1, true)
			ctx, cancel := context.WithTimeout(background, 190*ms) // before anything is sent again
			defer cancel()
			_, _, err := c.ExchangeContext(ctx, question("lost.example.", dns.TypeA), "")
			require.Error(t, err)
			time.Sleep(900 * ms)
			_, took := l.must(c, "x.example.")
			assert.Less(t, took, 100*ms)
			assert.EqualValues(t, 2, s.Conns.Load(), network)
		})
	}
}

func TestHTTPSChecksStatusAndContentType(t *testing.T) {
	for name, tc := range map[string]struct {
		reply dnstest.Reply
		want  string
	}{
		"status":       {dnstest.Reply{Status: http.StatusBadGateway}, "HTTP status 502"},
		"content type": {dnstest.Reply{Raw: []byte("<html>"), Header: http.Header{"Content-Type": {"text/html"}}}, "text/html"},
		"too long":     {dnstest.Reply{Raw: make([]byte, 70_000)}, "longer than a message"},
		"garbage":      {dnstest.Reply{Raw: []byte("garbage garbage")}, "another ID"},
		"empty":        {dnstest.Reply{Status: 200}, "shorter than a header"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				l.serve("a", script(func(dnstest.Query) dnstest.Reply { return tc.reply }, good))
				c := l.client(off(), l.up("https", "a"))
				_, _, err := l.ask(c, "x.example.")
				require.ErrorContains(t, err, tc.want)
				var status *dnshedge.StatusError
				assert.Equal(t, name == "status", errors.As(err, &status))
				r, _ := l.must(c, "x.example.")
				assert.Equal(t, "192.0.2.1", addr(r), "the next query works")
			})
		})
	}
}

func TestHTTPSAgeLowersTTLs(t *testing.T) {
	for age, ttl := range map[string]uint32{
		"250": 50, "300": 0, "2147483648": 0, "99999999999999999999": 0, // as large as can be (RFC 9111 §1.2.2)
		"": 300, "-1": 300, "soon": 300,
	} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				r := good(q)
				r.Header = http.Header{"Age": {age}}
				return r
			})
			c := l.client(off(), l.up("https", "a"))
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, ttl, r.Answer[0].Header().Ttl, "RFC 8484 §5.1, Age: %s", age)
		})
	}
}

func TestTLSChecksCertificateName(t *testing.T) {
	for _, network := range []string{"tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			up := l.up(network, "a")
			up.ServerName = "other.example"
			c := l.client(off(), up)
			_, _, err := l.ask(c, "x.example.")
			var bad *tls.CertificateVerificationError
			require.ErrorAs(t, err, &bad)
		})
	}
}

func TestTLSResumesSession(t *testing.T) {
	bubble(t, func(l *lab) {
		resumed := make(chan bool, 4)
		server, _ := dnstest.Certificate()
		server = server.Clone()
		server.VerifyConnection = func(s tls.ConnectionState) error {
			resumed <- s.DidResume
			return nil
		}
		server.NextProtos = []string{"dot"}
		s := &dnstest.Server{Handler: good, TLS: server}
		ln, err := l.net.Host("a").Listen("tcp", ":853")
		require.NoError(t, err)
		s.ServeTLS(ln)
		defer s.Close()
		c := l.client(off(), l.up("tls", "a"))
		l.must(c, "x.example.")
		time.Sleep(11 * time.Second)
		l.must(c, "x.example.")
		assert.False(t, <-resumed)
		assert.True(t, <-resumed)
		c.Close()
	})
}

func TestTransportsEndWithContext(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", after(time.Minute, good))
			c := l.client(off(), l.up(network, "a"))
			ctx, cancel := context.WithTimeout(background, 333*ms)
			defer cancel()
			start := time.Now()
			_, _, err := c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			var ne net.Error
			require.ErrorAs(t, err, &ne)
			assert.True(t, ne.Timeout())
			assert.Equal(t, 333*ms, time.Since(start))

			cause := errors.New("the caller's reason")
			ctx2, stop := context.WithCancelCause(background)
			time.AfterFunc(100*ms, func() { stop(cause) })
			start = time.Now()
			_, _, err = c.ExchangeContext(ctx2, question("x.example.", dns.TypeA), "")
			require.ErrorIs(t, err, cause, network)
			assert.Equal(t, 100*ms, time.Since(start))
		})
	}
}

func TestTransportMeasuresAbandonedQuery(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", after(400*ms, good))
			c := l.client(off(), l.up(network, "a"))
			ctx, cancel := context.WithTimeout(background, 100*ms)
			defer cancel()
			_, _, err := c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
			require.Error(t, err)
			time.Sleep(time.Second)
			st := c.Stats()
			assert.EqualValues(t, 1, st.Abandoned, network)
			assert.InDelta(t, 420*ms, st.Upstreams[0].P50, float64(5*ms), network)
		})
	}
}

func TestTransportsDoNotShareTLSConfig(t *testing.T) {
	// Package net/http writes to the TLS configuration. Only -race detects that.
	bubble(t, func(l *lab) {
		l.serve("a", after(300*ms, good))
		for range 10 {
			c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Fixed: 10 * ms}}, l.up("https", "a"))
			var wg sync.WaitGroup
			for i := range 32 {
				wg.Go(func() { l.must(c, fmt.Sprintf("n%d.example.", i)) })
			}
			wg.Wait()
			assert.Positive(t, c.Stats().Hedges)
		}
	})
}
