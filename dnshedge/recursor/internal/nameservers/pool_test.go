package nameservers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// newTask returns a task that accepts responses with NOERROR.
func newTask(servers ...netip.AddrPort) *Task {
	return &Task{
		Name:    "www.example.com.",
		Type:    dns.TypeA,
		Zone:    "example.com.",
		Servers: servers,
		CheckResponse: func(m *dns.Msg, _ netip.AddrPort) error {
			if m.Rcode != dns.RcodeSuccess {
				return ErrLame
			}
			return nil
		},
	}
}

// ask runs a task and returns its result and its time.
func (n *network) ask(f *Pool, t *Task) (*dns.Msg, time.Duration, error) {
	n.Helper()
	start := time.Now()
	m, err := f.QueryServers(context.Background(), t)
	return m, time.Since(start), err
}

func TestQueryIsIterativeWithEDNS(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a := n.serve("192.0.2.1", answerAfter(30*ms))
		x := newTask(a)
		x.DO, x.CD = true, true
		m, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, "www.example.com.", m.Question[0].Name)
		assert.Equal(t, 30*ms, took)
		q := n.queries()[0]
		assert.False(t, q.RecursionDesired)
		assert.False(t, q.AuthenticatedData)
		assert.True(t, q.CheckingDisabled)
		require.NotNil(t, q.IsEdns0())
		assert.EqualValues(t, 1232, q.IsEdns0().UDPSize())
		assert.True(t, q.IsEdns0().Do())
	})
}

func TestPoolAvoidsLameServerFor15Minutes(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		lame := n.serve("192.0.2.1", answerAfter(10*ms))
		ok := n.serve("192.0.2.2", answerAfter(50*ms))
		for _, a := range []netip.AddrPort{lame, ok} {
			_, _, err := n.ask(f, newTask(a))
			require.NoError(t, err)
		}
		n.serve("192.0.2.1", respondAfter(dns.RcodeRefused, 10*ms))
		_, took, err := n.ask(f, newTask(lame, ok))
		require.NoError(t, err)
		assert.Equal(t, 60*ms, took)
		for _, wait := range []time.Duration{0, lameTime - time.Second} {
			time.Sleep(wait)
			_, took, err = n.ask(f, newTask(lame, ok))
			require.NoError(t, err)
			assert.Equal(t, 50*ms, took)
		}
		other := newTask(lame, ok)
		other.Zone = "example."
		_, took, err = n.ask(f, other)
		require.NoError(t, err)
		assert.Equal(t, 60*ms, took, "the server may serve other zones")
		time.Sleep(time.Second)
		n.serve("192.0.2.1", answerAfter(10*ms))
		_, took, err = n.ask(f, newTask(lame, ok))
		require.NoError(t, err)
		assert.Equal(t, 10*ms, took)
	})
}

func TestPoolAsksNextServerAfterTimeout(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{Off: true}})
		a := n.serve("192.0.2.1", dead)
		b := n.serve("192.0.2.2", answerAfter(30*ms))
		x := newTask(a)
		x.FindServers = func(context.Context, SearchScope, <-chan struct{}) ([]netip.AddrPort, error) {
			return []netip.AddrPort{b}, nil
		}
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, 230*ms, took)
	})
}

func TestUnresponsiveZoneBacksOff(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a, b := n.serve("192.0.2.1", dead), n.serve("192.0.2.2", dead)
		_, took, err := n.ask(f, newTask(a, b))
		assert.ErrorIs(t, err, ErrNoServers)
		assert.Less(t, took, 5*time.Second)
		sent := len(n.queries())
		assert.Equal(t, 6, sent)
		_, took, err = n.ask(f, newTask(a, b))
		assert.ErrorIs(t, err, ErrNoServers)
		assert.Zero(t, took)
		assert.Len(t, n.queries(), sent)
		time.Sleep(zoneBackoffTime)
		_, _, err = n.ask(f, newTask(a, b))
		assert.ErrorIs(t, err, ErrNoServers)
		assert.Greater(t, len(n.queries()), sent)
	})
}

func TestPoolRepeatsTruncatedQueryOverTCP(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a := n.serve("192.0.2.1", func(q sent) []reply {
			r := new(dns.Msg).SetReply(q.Msg)
			r.Truncated = !q.tcp
			return []reply{{r, 20 * ms}}
		})
		b := n.serve("192.0.2.2", answerAfter(900*ms))
		_, _, err := n.ask(f, newTask(a))
		require.NoError(t, err)
		m, took, err := n.ask(f, newTask(a, b))
		require.NoError(t, err)
		assert.Equal(t, 40*ms, took)
		assert.False(t, m.Truncated)
		all := n.queries()
		require.Len(t, all, 4)
		assert.True(t, all[3].tcp)
		assert.Equal(t, a, all[3].to)
	})
}

func TestPoolDoesNotRepeatTruncatedTCPQuery(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		_, _, err := n.ask(f, newTask(n.serve("192.0.2.1", func(q sent) []reply {
			r := new(dns.Msg).SetReply(q.Msg)
			r.Truncated = true
			return []reply{{r, 20 * ms}}
		})))
		require.ErrorIs(t, err, ErrNoServers)
		assert.Len(t, n.queries(), 2)
	})
}

func TestPoolRemembersServerWithoutEDNSForAnHour(t *testing.T) {
	for _, rcode := range []int{dns.RcodeFormatError, dns.RcodeNotImplemented} {
		inBubble(t, func(n *network) {
			f := n.newPool(Config{})
			a := n.serve("192.0.2.1", func(q sent) []reply {
				if q.IsEdns0() != nil {
					r := new(dns.Msg).SetRcode(q.Msg, rcode)
					r.Question = nil
					return []reply{{r, 20 * ms}}
				}
				return answerAfter(20 * ms)(q)
			})
			for range 2 {
				_, _, err := n.ask(f, newTask(a))
				require.NoError(t, err)
			}
			require.Len(t, n.queries(), 3)
			time.Sleep(time.Hour)
			_, _, err := n.ask(f, newTask(a))
			require.NoError(t, err)
			require.Len(t, n.queries(), 5)
		})
	}
}

// handleInTurn returns a handler for several servers. The first query to any of them is handled by the first of hs,
// and so on. The last of hs handles all further queries.
func handleInTurn(hs ...handler) handler {
	var n atomic.Int64
	return func(q sent) []reply { return hs[min(int(n.Add(1)), len(hs))-1](q) }
}

func TestPoolHedgesUnknownServerAtQuantileOfFirstAnswers(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		h := handleInTurn(answerAfter(300*ms), answerAfter(30*ms))
		a, b := n.serve("192.0.2.1", h), n.serve("192.0.2.2", h)
		_, took, err := n.ask(f, newTask(a, b))
		require.NoError(t, err)
		assert.Equal(t, initialHedgeDelay+30*ms, took)
		var s observe.RecursorStats
		f.FillStats(&s)
		assert.EqualValues(t, 1, s.Hedges)
		assert.EqualValues(t, 1, s.HedgeWins)
		assert.EqualValues(t, 2, s.Wire)
		assert.Equal(t, 1, s.InFlight, "the loser continues")
		time.Sleep(time.Second)
		f.FillStats(&s)
		assert.Zero(t, s.InFlight)
		_, took, err = n.ask(f, newTask(a, b))
		require.NoError(t, err)
		assert.Equal(t, 30*ms, took)
		q := n.queries()
		assert.Equal(t, q[1].to, q[2].to, "the loser's answer has shown that the server is slower")
	})
}

func TestPoolHedgesKnownServerAfterUsualRTT(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a, b := n.serve("192.0.2.1", answerAfter(40*ms)), n.serve("192.0.2.2", answerAfter(90*ms))
		for range 40 { // until the deviation is zero
			_, _, err := n.ask(f, newTask(a))
			require.NoError(t, err)
		}
		_, _, err := n.ask(f, newTask(b))
		require.NoError(t, err)
		n.serve("192.0.2.1", dead)
		_, took, err := n.ask(f, newTask(a, b))
		require.NoError(t, err)
		assert.InDelta(t, (40*ms + rttGranularity + 90*ms).Seconds(), took.Seconds(), 0.001)
	})
}

func TestHedgeGoesToUnknownServer(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a, b := n.serve("192.0.2.1", answerAfter(10*ms)), n.serve("192.0.2.2", answerAfter(15*ms))
		for _, at := range []netip.AddrPort{a, b, a, b} {
			_, _, err := n.ask(f, newTask(at))
			require.NoError(t, err)
		}
		c := n.serve("192.0.2.3", answerAfter(50*ms))
		n.serve("192.0.2.1", dead)
		before := len(n.queries())
		_, _, err := n.ask(f, newTask(a, b, c))
		require.NoError(t, err)
		q := n.queries()[before:]
		assert.Equal(t, a, q[0].to, "the best known server is queried first, not an unknown one")
		assert.Equal(t, c, q[1].to)
	})
}

func TestPoolWithoutHedgesAsksNextServerAfterTimeout(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{Off: true}})
		h := handleInTurn(dead, answerAfter(30*ms))
		_, took, err := n.ask(f, newTask(n.serve("192.0.2.1", h), n.serve("192.0.2.2", h)))
		require.NoError(t, err)
		assert.Equal(t, initialRTO+30*ms, took)
		var s observe.RecursorStats
		f.FillStats(&s)
		assert.Zero(t, s.Hedges)
		assert.EqualValues(t, 1, s.Timeouts)
		assert.False(t, f.hedgeBudget.spendToken(true))
	})
}

func TestHedgesStayWithinTheBudget(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		var s observe.RecursorStats
		for i := range 400 {
			h := handleInTurn(answerAfter(180*ms), answerAfter(30*ms))
			a := netip.AddrFrom4([4]byte{198, byte(i >> 8), byte(i), 1})
			b := a.Next()
			_, _, err := n.ask(f, newTask(n.serve(a.String(), h), n.serve(b.String(), h)))
			require.NoError(t, err)
		}
		f.FillStats(&s)
		assert.LessOrEqual(t, s.Hedges, int64(20+0.15*400))
		assert.Zero(t, s.Timeouts)
		assert.GreaterOrEqual(t, s.Hedges, int64(75))
		assert.Greater(t, s.Denied, int64(100))
		assert.Equal(t, 400+s.Hedges+s.Timeouts, s.Wire)
	})
}

func TestMaxPerSecondBoundsHedges(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{MaxPerSecond: 2}})
		var s observe.RecursorStats
		for range 10 {
			f.hedgeBudget.spendToken(true)
		}
		f.FillStats(&s)
		assert.EqualValues(t, 8, s.Denied)
		time.Sleep(time.Second)
		assert.True(t, f.hedgeBudget.spendToken(true))
	})
}

// TestLateTimerSendsNoHedge blocks in CheckResponse, as in a busy process, so that timers fire late.
func TestLateTimerSendsNoHedge(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		h := handleInTurn(answerAfter(130*ms), respondAfter(dns.RcodeRefused, 20*ms), answerAfter(10*ms))
		x := newTask(n.serve("192.0.2.1", h), n.serve("192.0.2.2", h), n.serve("192.0.2.3", h))
		judge := x.CheckResponse
		x.CheckResponse = func(m *dns.Msg, at netip.AddrPort) error {
			if m.Rcode != dns.RcodeSuccess {
				time.Sleep(200 * ms) // the third query is due, and its answer has come
			}
			return judge(m, at)
		}
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, (60+20+200)*ms, took)
		assert.EqualValues(t, 1, f.counters.hedges.Load())
	})
}

func TestPoolLimitsQueriesInFlight(t *testing.T) {
	for _, conf := range []Config{{MaxPerServer: 7}, {MaxPerZone: 7}} {
		inBubble(t, func(n *network) {
			f := n.newPool(conf)
			at, most := 0, 0
			a := n.serve("192.0.2.1", func(q sent) []reply {
				n.mu.Lock()
				defer n.mu.Unlock()
				at++
				most = max(most, at)
				time.AfterFunc(100*ms-1, func() {
					n.mu.Lock()
					defer n.mu.Unlock()
					at--
				})
				return answerAfter(100 * ms)(q)
			})
			order := make(chan int, 70)
			for i := range 70 {
				go func() {
					_, err := f.QueryServers(context.Background(), newTask(a))
					assert.NoError(t, err)
					order <- i
				}()
				time.Sleep(time.Microsecond)
			}
			for i := range 70 {
				assert.InDelta(t, i, <-order, 7, "queries get slots in order")
			}
			assert.Equal(t, 7, most)
			assert.InDelta(t, 1, time.Since(n.start).Seconds(), 0.001)
		})
	}
}

func TestWaitingQueryCanBeCanceled(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{MaxPerServer: 1})
		a := n.serve("192.0.2.1", answerAfter(500*ms))
		go func() { _, _ = f.QueryServers(context.Background(), newTask(a)) }()
		time.Sleep(ms)
		ctx, cancel := context.WithTimeout(context.Background(), 100*ms)
		defer cancel()
		_, err := f.QueryServers(ctx, newTask(a))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		_, took, err := n.ask(f, newTask(a))
		require.NoError(t, err)
		assert.Equal(t, 899*ms, took)
	})
}

func TestDeadZonesUseFewSockets(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		for i := range 3000 {
			go func() {
				x := newTask()
				x.Zone = "z" + string(rune('0'+i%10)) + x.Zone
				for k := range 3 {
					x.Servers = append(x.Servers, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), byte(k)}), 53))
				}
				x.Zone = x.Servers[0].String()
				_, _ = f.QueryServers(context.Background(), x)
			}()
			time.Sleep(2 * ms)
		}
		a := n.serve("192.0.2.1", answerAfter(10*ms))
		_, took, err := n.ask(f, newTask(a))
		require.NoError(t, err)
		assert.Equal(t, 10*ms, took)
		n.mu.Lock()
		assert.LessOrEqual(t, n.most, maxSockets+8)
		n.mu.Unlock()
		time.Sleep(10 * time.Second)
		n.mu.Lock()
		defer n.mu.Unlock()
		assert.Zero(t, n.open)
	})
}

func TestPoolSendsFewHedgesInOutage(t *testing.T) {
	count := func(h Hedge) (wire int64) {
		inBubble(t, func(n *network) {
			f := n.newPool(Config{Hedge: h})
			for i := range 300 {
				x := newTask()
				for k := range 1 + i%5 {
					x.Servers = append(x.Servers, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(i), byte(k)}), 53))
				}
				x.Zone = x.Servers[0].String()
				_, _, err := n.ask(f, x)
				require.ErrorIs(t, err, ErrNoServers)
			}
			wire = f.counters.wire.Load()
		})
		return wire
	}
	off, on := count(Hedge{Off: true}), count(Hedge{})
	t.Logf("%d datagrams without hedges, %d with", off, on)
	assert.LessOrEqual(t, float64(on), 1.15*float64(off))
}

func TestPoolAsksPrivateAddressesOnlyIfAllowed(t *testing.T) {
	for _, a := range []string{
		"0.0.0.1", "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.1.1", "224.0.0.1", "255.255.255.255",
		"::", "::1", "fc00::1", "fd12::1", "fe80::1", "ff02::1", "::ffff:10.1.2.3", "::ffff:127.0.0.1",
		"100.64.0.1", "100.127.255.255", "192.0.0.192", "fec0::1", "::10.1.2.3",
		"64:ff9b::10.1.2.3", "64:ff9b::127.0.0.1", "64:ff9b:1::1", "2002:a01:203::1", "2002:7f00:1::1",
	} {
		inBubble(t, func(n *network) {
			f := n.newPool(Config{})
			at := netip.AddrPortFrom(netip.MustParseAddr(a), 53)
			n.serve(at.Addr().Unmap().String(), answerAfter(ms))
			_, _, err := n.ask(f, newTask(at))
			assert.ErrorIs(t, err, ErrNoServers, a)
			assert.Empty(t, n.queries(), a)
			x := newTask(at)
			x.PrivateOK = true
			_, _, err = n.ask(f, x)
			assert.NoError(t, err, a)
			_, _, err = n.ask(n.newPool(Config{PrivateOK: true}), newTask(at))
			assert.NoError(t, err, a)
		})
	}
}

func TestPoolSkipsDisabledFamily(t *testing.T) {
	inBubble(t, func(n *network) {
		four, six := n.serve("192.0.2.1", answerAfter(ms)), n.serve("2001:db8::1", answerAfter(ms))
		for f, want := range map[*Pool]netip.AddrPort{n.newPool(Config{NoIPv4: true}): six, n.newPool(Config{NoIPv6: true}): four} {
			for range 5 {
				before := len(n.queries())
				_, _, err := n.ask(f, newTask(four, six))
				require.NoError(t, err)
				assert.Equal(t, want, n.queries()[before].to)
			}
		}
	})
}

func TestPoolFailsOverFromUnreachableNetworkAtOnce(t *testing.T) {
	inBubble(t, func(n *network) {
		n.refuse = func(_ string, to netip.AddrPort) error {
			if to.Addr().Is6() {
				return syscall.ENETUNREACH
			}
			return nil
		}
		f := n.newPool(Config{})
		x := newTask(n.serve("2001:db8::1", answerAfter(ms)))
		four := n.serve("192.0.2.1", answerAfter(ms))
		x.FindServers = func(context.Context, SearchScope, <-chan struct{}) ([]netip.AddrPort, error) {
			return []netip.AddrPort{four}, nil
		}
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, ms, took)
	})
}

func TestPoolEvictsOverdueQueriesWithoutDescriptors(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		_, _, err := n.ask(f, newTask(n.serve("192.0.2.1", handleInTurn(dead, answerAfter(ms)))))
		require.NoError(t, err)
		n.refuse = func(string, netip.AddrPort) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.open > 0 {
				return syscall.EMFILE
			}
			return nil
		}
		_, took, err := n.ask(f, newTask(n.serve("192.0.2.2", answerAfter(10*ms))))
		require.NoError(t, err)
		assert.Equal(t, 10*ms, took)
		go func() { _, _ = f.QueryServers(context.Background(), newTask(n.serve("192.0.2.3", answerAfter(50*ms)))) }()
		time.Sleep(ms)
		before := f.counters.wire.Load()
		_, _, err = n.ask(f, newTask(n.serve("192.0.2.4", answerAfter(10*ms))))
		require.ErrorIs(t, err, ErrNoServers)
		assert.Equal(t, before+1, f.counters.wire.Load())
		time.Sleep(100 * ms)
		_, _, err = n.ask(f, newTask(n.serve("192.0.2.4", answerAfter(10*ms))))
		require.NoError(t, err, "neither the server nor its zone is avoided")
	})
}

func TestPoolAvoidsUnresponsiveFamily(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		for i := range familyBackoffThreshold {
			six := netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i)}), 53)
			x := newTask(six)
			x.Zone = fmt.Sprintf("z%d.", i)
			_, _, err := n.ask(f, x)
			require.ErrorIs(t, err, ErrNoServers)
		}
		four, six := n.serve("192.0.2.200", answerAfter(100*ms)), n.serve("2001:db8::200", answerAfter(ms))
		for range 3 {
			before := len(n.queries())
			_, _, err := n.ask(f, newTask(four, six))
			require.NoError(t, err)
			assert.Equal(t, four, n.queries()[before].to)
		}
		_, took, err := n.ask(f, newTask(six))
		require.NoError(t, err)
		assert.Equal(t, ms, took, "there is no other server, and this one answers")
		_, took, err = n.ask(f, newTask(four, six))
		require.NoError(t, err)
		assert.Equal(t, ms, took)
	})
}

func TestPoolIgnoresMismatchedMessages(t *testing.T) {
	wrongID := func(m *dns.Msg) { m.Id++ }
	wrongName := func(m *dns.Msg) { m.Question[0].Name = "www.example.net." }
	query := func(m *dns.Msg) { m.Response = false }
	for _, wrong := range []func(*dns.Msg){wrongID, wrongName, query} {
		inBubble(t, func(n *network) {
			f := n.newPool(Config{})
			forgeries := 2
			a := n.serve("192.0.2.1", func(q sent) (all []reply) {
				for i := range forgeries {
					m := new(dns.Msg).SetRcode(q.Msg, dns.RcodeNameError)
					wrong(m)
					all = append(all, reply{m, time.Duration(i+1) * ms})
				}
				return append(all, answerAfter(20*ms)(q)...)
			})
			m, took, err := n.ask(f, newTask(a))
			require.NoError(t, err)
			assert.Equal(t, dns.RcodeSuccess, m.Rcode)
			assert.Equal(t, 20*ms, took)
			assert.EqualValues(t, 2, f.counters.ignored.Load())
			forgeries = 3
			before := len(n.queries())
			b := n.serve("192.0.2.2", answerAfter(50*ms))
			m, took, err = n.ask(f, newTask(a, b))
			require.NoError(t, err)
			assert.Equal(t, dns.RcodeSuccess, m.Rcode)
			assert.Equal(t, 53*ms, took)
			assert.Len(t, n.queries(), before+2)
		})
	}
}

func TestPoolUsesNewSocketAndIDForEachQuery(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a := n.serve("192.0.2.1", answerAfter(ms))
		ids, sockets := map[uint16]bool{}, map[int]bool{}
		for range 100 {
			_, _, err := n.ask(f, newTask(a))
			require.NoError(t, err)
		}
		for _, q := range n.queries() {
			ids[q.Id], sockets[q.conn] = true, true
		}
		assert.Greater(t, len(ids), 95)
		assert.Len(t, sockets, 100)
	})
}

func TestClosedPoolLeavesNothing(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{MaxPerServer: 3})
		a := n.serve("192.0.2.1", dead)
		for range 10 {
			go func() {
				x := newTask(a)
				x.FindServers = func(ctx context.Context, _ SearchScope, _ <-chan struct{}) ([]netip.AddrPort, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				_, err := f.QueryServers(context.Background(), x)
				assert.ErrorIs(t, err, net.ErrClosed)
			}()
		}
		time.Sleep(300 * ms)
		start := time.Now()
		f.Close()
		synctest.Wait()
		assert.Zero(t, time.Since(start))
		assert.Zero(t, n.open)
		_, _, err := n.ask(f, newTask(a))
		assert.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestContextEndsQuery(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		ctx, cancel := context.WithCancelCause(context.Background())
		mine := errors.New("mine")
		time.AfterFunc(30*ms, func() { cancel(mine) })
		_, err := f.QueryServers(ctx, newTask(n.serve("192.0.2.1", answerAfter(100*ms))))
		assert.ErrorIs(t, err, mine)
		assert.Equal(t, 30*ms, time.Since(n.start))
	})
}

func TestPoolSendsNothingAfterSpendQueryFails(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		limit := errors.New("limit")
		left := 2
		x := newTask(n.serve("192.0.2.1", dead), n.serve("192.0.2.2", dead), n.serve("192.0.2.3", dead))
		x.SpendQuery = func(bool) error {
			if left == 0 {
				return limit
			}
			left--
			return nil
		}
		_, took, err := n.ask(f, x)
		assert.ErrorIs(t, err, limit)
		assert.Len(t, n.queries(), 2)
		assert.Less(t, took, 400*ms)
	})
}

func TestServerTakes64Bytes(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(server{}), uintptr(64))
}

func TestPoolTablesAreBounded(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{MaxBytes: 1 << 18})
		kept := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 53)
		for i := range 20000 {
			time.Sleep(time.Microsecond)
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), 53)
			f.mu.Lock()
			f.servers.getOrCreateServer(at, f.elapsed())
			f.servers.getOrCreateServer(kept, f.elapsed()).lastQuery = f.elapsed()
			f.lame.recordResponse(lameKey{"example.", at}, "www.example.", ErrLame, f.elapsed())
			f.zones.releaseZone(f.zones.acquireZone(at.String()), f.elapsed())
			f.mu.Unlock()
		}
		var s observe.RecursorStats
		f.FillStats(&s)
		assert.LessOrEqual(t, s.Bytes, int64(1<<18))
		assert.Greater(t, s.Servers, 1000)
		assert.Contains(t, f.servers.all, kept)
	})
}

func TestPoolBacksOffFromUnresponsiveServer(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{Off: true}})
		a, b := n.serve("192.0.2.1", answerAfter(10*ms)), n.serve("192.0.2.2", answerAfter(90*ms))
		for _, at := range []netip.AddrPort{a, b} {
			_, _, err := n.ask(f, newTask(at))
			require.NoError(t, err)
		}
		n.serve("192.0.2.1", dead)
		slow := func() bool {
			_, took, err := n.ask(f, newTask(a, b))
			require.NoError(t, err)
			return took > 90*ms
		}
		assert.True(t, slow(), "one timeout may be a lost packet")
		assert.True(t, slow())
		assert.False(t, slow())
		time.Sleep(minBackoff - time.Second)
		assert.False(t, slow())
		time.Sleep(time.Second)
		assert.True(t, slow(), "the server is queried again")
		assert.False(t, slow())
		time.Sleep(minBackoff)
		assert.False(t, slow(), "the backoff is twice as long")
		time.Sleep(minBackoff)
		n.serve("192.0.2.1", answerAfter(10*ms))
		for range 3 {
			_, took, err := n.ask(f, newTask(a, b))
			require.NoError(t, err)
			assert.Equal(t, 10*ms, took)
		}
	})
}

func TestPoolHedgesOnlyServerByServerSearch(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		x := newTask(n.serve("192.0.2.1", dead))
		b := n.serve("192.0.2.2", answerAfter(30*ms))
		x.FindServers = func(_ context.Context, e SearchScope, _ <-chan struct{}) ([]netip.AddrPort, error) {
			assert.Equal(t, GluelessNames, e)
			time.Sleep(40 * ms)
			return []netip.AddrPort{b}, nil
		}
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, initialHedgeDelay+(40+30)*ms, took)
		assert.EqualValues(t, 1, f.counters.hedges.Load())
		assert.Less(t, f.hedgeBudget.account.Tokens(), float64(hedgeBurst))
	})
}

func TestServerSearchWithoutResultRefundsHedge(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		x := newTask(n.serve("192.0.2.1", answerAfter(100*ms)))
		x.FindServers = func(context.Context, SearchScope, <-chan struct{}) ([]netip.AddrPort, error) { return nil, nil }
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, 100*ms, took)
		assert.EqualValues(t, hedgeBurst, f.hedgeBudget.account.Tokens())
	})
}

func TestServerSearchMayOutliveTask(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		x := newTask(n.serve("192.0.2.1", answerAfter(100*ms)))
		ended := make(chan time.Duration, 1)
		x.FindServers = func(ctx context.Context, _ SearchScope, _ <-chan struct{}) ([]netip.AddrPort, error) {
			<-ctx.Done()
			ended <- time.Since(n.start)
			return nil, ctx.Err()
		}
		_, _, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, 100*ms+answerTimeout, <-ended)
	})
}

// TestFinishedServerSearchEndsWithTask requires that no timer remains of a search that has nothing left to do. Each timer
// that fires wakes an idle process.
func TestFinishedServerSearchEndsWithTask(t *testing.T) {
	for name, tc := range map[string]struct {
		hasRunningLookups func() bool
		want              time.Duration // end of the context of the search
	}{
		"no function":         {nil, 100 * ms},
		"no running lookups":  {func() bool { return false }, 100 * ms},
		"has running lookups": {func() bool { return true }, 100*ms + answerTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(n *network) {
				f := n.newPool(Config{})
				x := newTask(n.serve("192.0.2.1", answerAfter(100*ms)))
				searches := make(chan context.Context, 1)
				x.HasRunningLookups = tc.hasRunningLookups
				x.FindServers = func(ctx context.Context, _ SearchScope, _ <-chan struct{}) ([]netip.AddrPort, error) {
					searches <- ctx
					return nil, nil
				}
				_, _, err := n.ask(f, x)
				require.NoError(t, err)
				<-(<-searches).Done()
				assert.Equal(t, tc.want, time.Since(n.start))
			})
		})
	}
}

func TestPoolAsksEveryFoundServer(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		x := newTask(n.serve("192.0.2.1", dead), n.serve("192.0.2.2", dead), n.serve("192.0.2.3", dead))
		found := 0
		x.FindServers = func(context.Context, SearchScope, <-chan struct{}) ([]netip.AddrPort, error) {
			if found++; found < 8 {
				return []netip.AddrPort{n.serve(fmt.Sprintf("192.0.2.%d", 10+found), dead)}, nil
			}
			return []netip.AddrPort{n.serve("192.0.2.100", answerAfter(10*ms))}, nil
		}
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Less(t, took, 5*time.Second)
	})
}

func TestPoolSearchesAlternativesToSlowServer(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		slow, fast := n.serve("192.0.2.1", answerAfter(300*ms)), n.serve("192.0.2.2", answerAfter(10*ms))
		x := newTask(slow)
		for range 2 {
			_, _, err := n.ask(f, x)
			require.NoError(t, err)
		}
		x.FindServers = func(context.Context, SearchScope, <-chan struct{}) ([]netip.AddrPort, error) {
			return []netip.AddrPort{fast}, nil
		}
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, initialHedgeDelay+10*ms, took)
	})
}

func TestPoolPrefersAnsweringServerToPendingOne(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		h := handleInTurn(answerAfter(240*ms), answerAfter(90*ms))
		x := newTask(n.serve("192.0.2.1", h), n.serve("192.0.2.2", h))
		for range 3 {
			_, _, err := n.ask(f, x)
			require.NoError(t, err)
		}
		q := n.queries()
		assert.NotEqual(t, q[0].to, q[1].to)
		assert.Equal(t, q[1].to, q[2].to)
	})
}

func TestPoolBacksOffFromUnknownServerAfterFirstMiss(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		h := handleInTurn(dead, answerAfter(70*ms))
		x := newTask(n.serve("192.0.2.1", h), n.serve("192.0.2.2", h))
		_, _, err := n.ask(f, x)
		require.NoError(t, err)
		time.Sleep(answerTimeout)
		var s observe.RecursorStats
		f.FillStats(&s)
		assert.Equal(t, 1, s.Resting)
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, 70*ms, took)
		assert.Equal(t, n.queries()[1].to, n.queries()[2].to)
	})
}

func TestPoolHedgesWhenAllServersAreInBackoff(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		x := newTask(n.serve("192.0.2.1", dead), n.serve("192.0.2.2", dead))
		_, _, err := n.ask(f, x)
		require.ErrorIs(t, err, ErrNoServers)
		time.Sleep(zoneBackoffTime)
		h := handleInTurn(dead, answerAfter(30*ms))
		n.serve("192.0.2.1", h)
		n.serve("192.0.2.2", h)
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, initialHedgeDelay+30*ms, took)
	})
}

func TestPoolKeepsEDNSAfterTimeouts(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		_, _, err := n.ask(f, newTask(n.serve("192.0.2.1", dead)))
		require.ErrorIs(t, err, ErrNoServers)
		assert.Len(t, n.queries(), maxAttempts)
		for _, q := range n.queries() {
			assert.NotNil(t, q.IsEdns0())
			assert.False(t, q.tcp)
		}
	})
}

func TestPoolGivesUpConnectionThatDoesNotOpen(t *testing.T) {
	for _, refused := range []bool{false, true} {
		inBubble(t, func(n *network) {
			n.refuse = func(network string, _ netip.AddrPort) error {
				switch {
				case network == "udp":
					return nil
				case refused:
					return syscall.ECONNREFUSED
				}
				time.Sleep(dialTimeout)
				return syscall.ETIMEDOUT
			}
			f := n.newPool(Config{Hedge: Hedge{Off: true}})
			x := newTask(n.serve("192.0.2.1", func(q sent) []reply {
				r := new(dns.Msg).SetReply(q.Msg)
				r.Truncated = true
				return []reply{{r, 10 * ms}}
			}))
			b := n.serve("192.0.2.2", answerAfter(30*ms))
			x.FindServers = func(context.Context, SearchScope, <-chan struct{}) ([]netip.AddrPort, error) {
				return []netip.AddrPort{b}, nil
			}
			_, took, err := n.ask(f, x)
			require.NoError(t, err)
			if refused {
				assert.Equal(t, (10+30)*ms, took)
			} else {
				assert.Equal(t, 10*ms+3*initialRTO+30*ms, took)
			}
		})
	}
}

func TestPoolSpreadsLoadOverServers(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{MaxPerServer: 10})
		x := newTask(n.serve("192.0.2.1", answerAfter(100*ms)), n.serve("192.0.2.2", answerAfter(100*ms)), n.serve("192.0.2.3", answerAfter(100*ms)))
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				_, err := f.QueryServers(context.Background(), x)
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		assert.Equal(t, 100*ms, time.Since(n.start))
	})
}

func TestPoolReportsAllQueries(t *testing.T) {
	inBubble(t, func(n *network) {
		var mu sync.Mutex
		var told []Attempt
		var ends []error
		f := n.newPool(Config{
			OnQueryStart: func(_ context.Context, i Attempt) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, i)
			},
			OnQueryEnd: func(_ context.Context, _ Attempt, _ time.Duration, err error) {
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, err)
			},
		})
		h := handleInTurn(dead, respondAfter(dns.RcodeRefused, 10*ms), answerAfter(10*ms))
		_, _, err := n.ask(f, newTask(n.serve("192.0.2.1", h), n.serve("192.0.2.2", h), n.serve("192.0.2.3", h)))
		require.NoError(t, err)
		require.Len(t, told, 3)
		for i, a := range told {
			assert.Equal(t, Attempt{Name: "www.example.com.", Type: dns.TypeA, Zone: "example.com.", Server: n.queries()[i].to, Attempt: i, Hedge: i == 1}, a)
		}
		assert.Equal(t, []error{ErrLame, nil, race.ErrLost}, ends)
	})
}

// newWarmPool returns a Pool that has measured the RTTs of servers.
func (n *network) newWarmPool(servers ...netip.AddrPort) *Pool {
	f := n.newPool(Config{})
	for _, a := range servers {
		_, _, err := n.ask(f, newTask(a))
		require.NoError(n, err)
	}
	return f
}

func TestExportHasKnownServers(t *testing.T) {
	inBubble(t, func(n *network) {
		all := []netip.AddrPort{n.serve("192.0.2.1", answerAfter(70*ms)), n.serve("2001:db8::1", answerAfter(20*ms))}
		for i := range byte(30) {
			all = append(all, n.serve(netip.AddrFrom4([4]byte{192, 0, 2, 50 + i}).String(), answerAfter(90*ms)))
		}
		f := n.newWarmPool(all...)
		zones := []Delegation{
			{"com.", []string{"a.gtld-servers.net."}, all[:2], time.Now().Add(time.Hour), [][]byte{{1, 2}, {3}}},
			{"old.", nil, nil, time.Now().Add(10 * time.Minute), nil},
		}
		var b bytes.Buffer
		require.NoError(t, f.Export(&b, "", zones))
		time.Sleep(20 * time.Minute)
		g := n.newWarmPool(n.serve("2001:db8::1", answerAfter(10*ms)))
		got, err := g.Import(bytes.NewReader(b.Bytes()), "")
		require.NoError(t, err)
		require.Len(t, got, 1, "the other zone has expired")
		assert.WithinDuration(t, zones[0].Expires, got[0].Expires, 0)
		got[0].Expires = zones[0].Expires
		assert.Equal(t, zones[0], got[0])
		none, err := g.Import(bytes.NewReader(b.Bytes()), "another source")
		require.NoError(t, err)
		assert.Empty(t, none)
		require.Len(t, g.servers.all, 32)
		assert.InDelta(t, 70*ms, g.servers.all[all[0]].rtt.SRTT, 1000)
		assert.InDelta(t, 10*ms, g.servers.all[all[1]].rtt.SRTT, 1000, "a known RTT is not replaced")
		assert.InDelta(t, 90*ms, g.firstRTTs.median, float64(2*ms))
		assert.InDelta(t, 90*ms, g.firstRTTs.hedgeDelay, float64(2*ms))
		before := len(n.queries())
		_, _, err = n.ask(g, newTask(all[0], all[1], all[2]))
		require.NoError(t, err)
		assert.Equal(t, all[1], n.queries()[before].to)
	})
}

func TestPoolImportsExportWithOldRoundTripTimes(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newWarmPool(n.serve("192.0.2.1", answerAfter(70*ms)))
		time.Sleep(1_001 * time.Hour)
		var b bytes.Buffer
		require.NoError(t, f.Export(&b, "", nil))
		g := n.newPool(Config{})
		_, err := g.Import(&b, "")
		require.NoError(t, err)
		assert.NotZero(t, g.firstRTTs.window.Len())
	})
}

func TestPoolImportOfInvalidExportChangesNothing(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newWarmPool(n.serve("192.0.2.1", answerAfter(70*ms)))
		var b bytes.Buffer
		require.NoError(t, f.Export(&b, "", []Delegation{{"com.", []string{"a."}, nil, time.Now().Add(100 * time.Hour), nil}}))
		g := n.newPool(Config{})
		for i := range b.Len() {
			bad := bytes.Clone(b.Bytes())
			bad[i] ^= 4
			_, err := g.Import(bytes.NewReader(bad), "")
			require.Error(t, err, i)
			_, err = g.Import(bytes.NewReader(b.Bytes()[:i]), "")
			require.Error(t, err, i)
		}
		_, err := g.Import(bytes.NewReader(append(bytes.Clone(b.Bytes()), 0)), "")
		require.ErrorContains(t, err, "damaged")
		_, err = g.Import(strings.NewReader("hedge dns 1\n"), "")
		require.ErrorIs(t, err, errNotExport)
		_, err = g.Import(strings.NewReader("hedge recursor 9\nx"), "")
		require.ErrorContains(t, err, `version "9"`)
		_, err = g.Import(io.LimitReader(neverEnding('x'), 1<<30), "")
		require.ErrorContains(t, err, "larger than 16 MiB")
		time.Sleep(decode.MaxAge + time.Second)
		_, err = g.Import(bytes.NewReader(b.Bytes()), "")
		require.ErrorContains(t, err, "24h0m1s old")
		assert.Empty(t, g.servers.all)
		assert.Zero(t, g.firstRTTs.window.Len())
	})
}

type neverEnding byte

func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

// FuzzImport corrects the checksum, so that the content is decoded.
func FuzzImport(f *testing.F) {
	g := NewPool(Config{})
	defer g.Close()
	at := netip.MustParseAddrPort("[2001:db8::1]:53")
	*g.servers.getOrCreateServer(at, 0) = server{rtt: rtt.Estimate[float32]{SRTT: 1e6, RTTVAR: 1e5}}
	f.Add(g.encodeExport("", []Delegation{{"com.", []string{"a."}, []netip.AddrPort{at}, time.Now().Add(time.Hour), [][]byte{{1}}}}, time.Now()))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 4 {
			end := len(b) - 4
			b = binary.BigEndian.AppendUint32(bytes.Clone(b[:end]), crc32.ChecksumIEEE(b[:end]))
		}
		g := NewPool(Config{})
		defer g.Close()
		if _, err := g.Import(bytes.NewReader(b), ""); err != nil {
			assert.Empty(t, g.servers.all)
			return
		}
		_, err := g.Import(bytes.NewReader(g.encodeExport("", nil, time.Now())), "")
		assert.NoError(t, err)
	})
}

func TestPoolRepeatsLostQueryToOnlyServer(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		x := newTask(n.serve("192.0.2.1", answerAfter(50*ms)))
		for range 20 {
			_, _, err := n.ask(f, x)
			require.NoError(t, err)
		}
		n.serve("192.0.2.1", handleInTurn(dead, answerAfter(50*ms)))
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.InDelta(t, (50*ms + rttGranularity + 50*ms).Seconds(), took.Seconds(), 0.001)
		assert.EqualValues(t, 1, f.counters.hedges.Load())
	})
}

func TestPoolRepeatsUnknownServerOnlyAfterTimeout(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		_, took, err := n.ask(f, newTask(n.serve("192.0.2.1", handleInTurn(dead, answerAfter(50*ms)))))
		require.NoError(t, err)
		assert.Equal(t, initialRTO+50*ms, took)
	})
}

func TestPoolSendsNoHedgeInOutage(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{BudgetPercent: 100}})
		ask := func(i byte, h handler) {
			x := newTask(n.serve(fmt.Sprintf("198.51.100.%d", i), h), n.serve(fmt.Sprintf("203.0.113.%d", i), h))
			x.Zone = fmt.Sprintf("z%d.", i)
			_, _, _ = n.ask(f, x)
		}
		for i := range byte(80) {
			ask(i, answerAfter(10*ms))
			time.Sleep(time.Second)
		}
		for i := range byte(40) {
			ask(i, dead)
		}
		before := f.counters.hedges.Load()
		for i := range byte(40) {
			ask(40+i, dead)
		}
		assert.Equal(t, before, f.counters.hedges.Load())
		for i := range byte(30) {
			ask(200+i, answerAfter(10*ms))
		}
		before = f.counters.hedges.Load()
		ask(250, handleInTurn(dead, answerAfter(ms)))
		assert.Equal(t, before+1, f.counters.hedges.Load())
	})
}

// TestServerWithoutQueryIsNotUnresponsive has a Dialer that opens a socket later than an answer is due, as a proxy
// or a busy machine may do.
func TestServerWithoutQueryIsNotUnresponsive(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a := n.serve("192.0.2.1", answerAfter(10*ms))
		n.refuse = func(string, netip.AddrPort) error { time.Sleep(1500 * ms); return nil }
		for range 3 {
			_, took, err := n.ask(f, newTask(a))
			require.NoError(t, err)
			assert.Equal(t, 1510*ms, took)
		}
	})
}

func TestHedgeBudgetKeepsTokensForReliableServers(t *testing.T) {
	h := newHedgeBudget(Hedge{})
	hedges := func(isReliable bool) (n int) {
		for h.spendToken(isReliable) {
			n++
		}
		return n
	}
	assert.Equal(t, hedgeBurst-hedgeReserve, hedges(false))
	assert.False(t, h.checkToken())
	assert.Equal(t, hedgeReserve, hedges(true))
}

// TestReserveOfHedgesIsForZonesWhoseServersAnswer has a server that answers for one zone and drops queries about others.
func TestReserveOfHedgesIsForZonesWhoseServersAnswer(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a, b := n.serve("192.0.2.1", answerAfter(10*ms)), n.serve("192.0.2.2", answerAfter(10*ms))
		for _, server := range []netip.AddrPort{a, b} {
			_, _, err := n.ask(f, newTask(server))
			require.NoError(t, err)
		}
		for f.hedgeBudget.spendToken(false) {
		}
		n.serve("192.0.2.1", dead)
		n.serve("192.0.2.2", dead)
		hedges := func(x *Task) int64 {
			before := f.counters.hedges.Load()
			_, _, err := n.ask(f, x)
			assert.ErrorIs(t, err, ErrNoServers)
			return f.counters.hedges.Load() - before
		}
		other := newTask(a, b)
		other.Zone = "example."
		assert.Zero(t, hedges(other))
		assert.Positive(t, hedges(newTask(a, b)))
	})
}
