package dnshedge_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
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
	"github.com/gohedge/hedge/internal/netsim"
)

func TestClientReportsDeadServersWithinTimeout(t *testing.T) {
	bubble(t, func(l *lab) {
		c := l.client(&dnshedge.Client{Timeout: 3 * time.Second}, l.up("udp", "a"), l.up("tcp", "b"))
		for _, h := range []string{"a", "b"} {
			l.link(h, netsim.Profile{BlackHole: true})
		}
		_, took, err := l.ask(c, "x.example.")
		assert.Equal(t, 3*time.Second, took)
		var e *dnshedge.Error
		require.ErrorAs(t, err, &e)
		assert.True(t, e.Timeout())
		assert.Equal(t, "x.example.", e.Name)
		assert.Equal(t, dns.TypeA, e.Type)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualError(t, err, "dnshedge: x.example. A: upstream udp://10.77.0.2:53: context deadline exceeded")
	})
}

func TestClientErrorNamesFailedServer(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("b", drop) // and nothing at a
		c := l.client(off(), l.up("udp", "a"), l.up("udp", "b"))
		_, _, err := l.ask(c, "x.example.")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var e *dnshedge.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, l.up("udp", "b"), e.Upstream)
	})
}

func TestClientReportsInvalidFields(t *testing.T) {
	for want, c := range map[string]*dnshedge.Client{
		"Client.Timeout is -1ns":            {Timeout: -1},
		"Client.MaxInFlight is -1":          {MaxInFlight: -1},
		"Client.Order is 3":                 {Order: 3},
		"Exchanger is set, and so":          {Exchanger: new(dns.Client), Fallback: []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}},
		`Routes has domain ""`:              {Routes: map[string]dnshedge.Exchanger{"": nil}},
		`Routes has domain "a..b"`:          {Routes: map[string]dnshedge.Exchanger{"a..b": nil}},
		`domain "corp.example." twice`:      {Routes: map[string]dnshedge.Exchanger{"corp.example": nil, "Corp.example.": nil}},
		"Client.UDPSize is 100":             {UDPSize: 100},
		"Client.UDPSize is 65535":           {UDPSize: 65535},
		"Hedge.Percentile is 1":             {Hedge: dnshedge.Hedge{Percentile: 1}},
		"Hedge.Percentile is NaN":           {Hedge: dnshedge.Hedge{Percentile: math.NaN()}},
		"Hedge.MaxHedges is 4":              {Hedge: dnshedge.Hedge{MaxHedges: 4}},
		"Hedge.BudgetPercent is 101":        {Hedge: dnshedge.Hedge{BudgetPercent: 101}},
		"Hedge.MaxHedgesPerSecond is -1":    {Hedge: dnshedge.Hedge{MaxHedgesPerSecond: -1}},
		"Hedge.MinDelay is -2ns":            {Hedge: dnshedge.Hedge{MinDelay: -2}},
		"Hedge.MaxDelay is 1ns":             {Hedge: dnshedge.Hedge{MinDelay: 2, MaxDelay: 1}},
		"Hedge.Fixed is -1ns":               {Hedge: dnshedge.Hedge{Fixed: -1}},
		`Net "quic"`:                        {Upstreams: []dnshedge.Upstream{{Net: "quic", Addr: "192.0.2.1:853"}}},
		"missing port":                      {Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1"}}},
		`Path "dns-query"`:                  {Fallback: []dnshedge.Upstream{{Net: "https", Addr: "192.0.2.1:443", Path: "dns-query"}}},
		`udp://192.0.2.1:0: port "0"; want`: {Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1:0"}}},
	} {
		_, _, err := c.Exchange(question("x.", dns.TypeA), "")
		require.ErrorContains(t, err, want)
		_, err = c.Dial(background, "udp", "192.0.2.1:53")
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, c.Warm(background), want)
		assert.Zero(t, c.Stats())
		assert.NoError(t, c.Close())
	}
}

func TestClientReportsThatItIsClosed(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up(network, "a"))
			l.must(c, "x.example.")
			require.NoError(t, c.Close())
			require.NoError(t, c.Close())
			_, _, err := l.ask(c, "y.example.")
			require.ErrorContains(t, err, "client is closed")
		})
	}
}

func TestClientCloseEndsWaitingExchanges(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", drop)
			c := l.client(&dnshedge.Client{}, l.up(network, "a"))
			time.AfterFunc(500*ms, func() { c.Close() })
			_, took, err := l.ask(c, "x.example.")
			require.ErrorContains(t, err, "client is closed", network)
			assert.Equal(t, 500*ms, took)
		})
	}
}

// A question whose deadline is before Timeout is not cancelled by Close. It ends with the error of its connection, and
// is sent to no further server, although a socket for UDP could still be opened.
func TestClosedClientAsksNoFurtherServer(t *testing.T) {
	for name, client := range map[string]func(l *lab) *dnshedge.Client{
		"same group": func(l *lab) *dnshedge.Client {
			return l.client(off(), l.up("tcp", "a"), l.up("udp", "b"))
		},
		"fallback": func(l *lab) *dnshedge.Client {
			c := off()
			c.Fallback = []dnshedge.Upstream{l.up("udp", "b")}
			return l.client(c, l.up("tcp", "a"))
		},
	} {
		bubble(t, func(l *lab) {
			l.serve("a", drop)
			other := l.serve("b", good)
			c := client(l)
			time.AfterFunc(100*ms, func() { c.Close() })
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			start := time.Now()
			_, _, err := c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
			require.ErrorContains(t, err, "client is closed", name)
			assert.Equal(t, 100*ms, time.Since(start), name)
			assert.Zero(t, other.Queries.Load(), name)
		})
	}
}

// The Dialer of a Client uses another Client that is closed. The error of that Client does not end the questions of the
// first one.
func TestClientAsksNextServerAfterErrorOfOtherClosedClient(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("b", good)
		closed := l.client(new(dnshedge.Client), l.up("udp", "b"))
		closed.Close()
		for _, c := range []*dnshedge.Client{
			l.client(off(), l.up("tcp", "a"), l.up("udp", "b")),
			l.client(&dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "b")}}, l.up("tcp", "a")),
		} {
			inner := c.Dialer
			c.Dialer = dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
				if network == "tcp" {
					_, _, err := closed.ExchangeContext(ctx, question("a.example.", dns.TypeA), "")
					return nil, &net.OpError{Op: "dial", Net: network, Err: err}
				}
				return inner.DialContext(ctx, network, address)
			})
			l.must(c, "x.example.")
		}
	})
}

func TestClientCloseLeavesNoGoroutineOrSocket(t *testing.T) {
	// A synctest bubble does not end while one of its goroutines runs.
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", after(400*ms, good))
			c := &dnshedge.Client{Cache: new(dnshedge.Cache)}
			l.client(c, l.up(network, "a"))
			for i := range 10 {
				ctx, cancel := context.WithTimeout(background, 50*ms)
				_, _, err := c.ExchangeContext(ctx, question(fmt.Sprintf("n%d.example.", i), dns.TypeA), "")
				require.Error(t, err)
				cancel()
			}
			c.Close()
			synctest.Wait()
		})
	}
}

func TestClientErrorsWrapTransportErrors(t *testing.T) {
	bubble(t, func(l *lab) {
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
		_, _, err := l.ask(c, "x.example.")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		assert.False(t, errors.Is(err, context.Canceled))
	})
}

func TestClientReusesServersOfGivenAddresses(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", good)
		c := l.client(&dnshedge.Client{})
		to := "tcp://" + l.net.Host("a").Addr().String()
		for range 5 {
			_, _, err := c.Exchange(question("x.example.", dns.TypeA), to)
			require.NoError(t, err)
		}
		assert.EqualValues(t, 1, s.Conns.Load())
		// A program that queries many servers needs limited memory.
		s2 := &dnstest.Server{Handler: good}
		pc, err := l.net.Host("b").ListenPacket("udp", ":53")
		require.NoError(t, err)
		s2.ServeUDP(pc)
		defer s2.Close()
		for i := range 600 {
			time.Sleep(time.Second)
			up := dnshedge.Upstream{Addr: "192.0.2.1:53"}
			_ = up
			_, _, err := c.Exchange(question("x.example.", dns.TypeA), fmt.Sprintf("b:%d", 1000+i))
			require.Error(t, err)
		}
		assert.LessOrEqual(t, len(c.Stats().Upstreams), 256)
		c.Close()
	})
}

func TestClientResponseIsNotShared(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(off(), l.up("udp", "a"))
		m := question("SpElLiNg.Example.", dns.TypeA)
		m.Id = 4711
		before := *m
		r, _, err := c.Exchange(m, "")
		require.NoError(t, err)
		assert.Equal(t, before, *m, "the question is not changed")
		assert.Equal(t, uint16(4711), r.Id)
		assert.Equal(t, "SpElLiNg.Example.", r.Question[0].Name)
		assert.Nil(t, r.IsEdns0(), "no OPT for who sent none")
		m.SetEdns0(1232, true)
		r, _, err = c.Exchange(m, "")
		require.NoError(t, err)
		require.NotNil(t, r.IsEdns0())
		assert.True(t, r.IsEdns0().Do())
	})
}

func TestClientPassesHostNameToDialer(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(off())
		r, _, err := c.Exchange(question("x.example.", dns.TypeA), "a:53")
		require.NoError(t, err)
		assert.Equal(t, "192.0.2.1", addr(r))
		up := dnshedge.Upstream{Net: "udp", Addr: "nowhere.invalid:53", Addrs: []netip.Addr{l.net.Host("a").Addr()}}
		c2 := l.client(off(), up)
		l.must(c2, "x.example.")
	})
}

func TestClientRepeatsOnlyQueries(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", drop)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		m := new(dns.Msg)
		m.SetNotify("example.")
		_, took, err := func() (*dns.Msg, time.Duration, error) {
			start := time.Now()
			r, _, err := c.Exchange(m, "")
			return r, time.Since(start), err
		}()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 5*time.Second, took)
		assert.EqualValues(t, 1, s.Queries.Load())
		assert.EqualValues(t, 1, c.Stats().Wire)
	})
}

func TestClientRejectsTransfersAndSignedMessages(t *testing.T) {
	c := new(dnshedge.Client)
	defer c.Close()
	_, _, err := c.Exchange(question("example.", dns.TypeAXFR), "127.0.0.1:1")
	require.ErrorContains(t, err, "AXFR")
	m := question("example.", dns.TypeA)
	m.SetTsig("key.", dns.HmacSHA256, 300, time.Now().Unix())
	_, _, err = c.Exchange(m, "127.0.0.1:1")
	require.ErrorContains(t, err, "TSIG")
	_, _, err = c.Exchange(new(dns.Msg), "127.0.0.1:1")
	require.ErrorContains(t, err, "0 questions")
	_, _, err = c.Exchange(question(strings.Repeat("x", 70)+".", dns.TypeA), "127.0.0.1:1")
	require.ErrorContains(t, err, "xxx")
	_, _, err = c.Exchange(question("example.", dns.TypeA), "no port here")
	require.ErrorContains(t, err, "no port here")
}

// Every address leads to the same server.
func TestClientForgetsServersOfGivenAddresses(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "slow.example." {
				return after(4*time.Second, good)(q)
			}
			return good(q)
		})
		c := l.client(off(), l.up("udp", "a"))
		at := l.net.Host("a").Addr().String() + ":53"
		c.Dialer = dialFunc(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return l.net.Host("client").DialContext(ctx, network, at)
		})
		l.must(c, "x.example.")
		ask := func(name string, i int) {
			r, _, err := c.Exchange(question(name, dns.TypeA), fmt.Sprintf("198.51.%d.%d:53", 100+i/250, 1+i%250))
			if assert.NoError(t, err, i) {
				assert.Equal(t, "192.0.2.1", addr(r))
			}
		}
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() { ask("slow.example.", i) })
		}
		time.Sleep(100 * ms)
		for i := range 100 {
			ask("x.example.", 300+i)
		}
		assert.Equal(t, 302, len(c.Stats().Upstreams), "those that are being asked, the last one, and the Client's own")
		wg.Wait()
		ask("x.example.", 400)
		assert.Equal(t, 256, len(c.Stats().Upstreams))
		l.must(c, "x.example.")
	})
}

// A question may be sent to the second server after the first has failed.
func TestClientKeepsSystemServersDuringQuestion(t *testing.T) {
	bubble(t, func(l *lab) {
		fails := false
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if fails && q.Question[0].Name == "x.example." {
				return after(time.Second, rcode(dns.RcodeServerFailure))(q)
			}
			return good(q)
		})
		l.serve("b", good)
		l.serve("c", good)
		c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf("options use-vc", "a", "b"), Hedge: dnshedge.Hedge{Off: true}})
		at := l.net.Host("c").Addr().String() + ":53"
		c.Dialer = dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, "198.51.") {
				address = at
			}
			return l.net.Host("client").DialContext(ctx, network, address)
		})
		l.must(c, "y.example.")
		time.Sleep(time.Minute)
		fails = true
		var wg sync.WaitGroup
		wg.Go(func() {
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, dns.RcodeSuccess, r.Rcode)
		})
		time.Sleep(100 * ms)
		for i := range 260 {
			wg.Go(func() {
				_, _, err := c.Exchange(question("z.example.", dns.TypeA), fmt.Sprintf("198.51.%d.%d:53", 100+i/250, 1+i%250))
				assert.NoError(t, err)
			})
		}
		wg.Wait()
	})
}

func TestClientMergesDuplicateUpstreams(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", rcode(dns.RcodeServerFailure))
		c := l.client(new(dnshedge.Client), l.up("udp", "a"), l.up("udp", "a"))
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		assert.EqualValues(t, 1, s.Queries.Load())
	})
}
