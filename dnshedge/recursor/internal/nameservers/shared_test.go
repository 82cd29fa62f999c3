package nameservers

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/observe"
)

// newTaskFor returns a task for a name in a zone.
func newTaskFor(zone, name string, qtype uint16, servers ...netip.AddrPort) *Task {
	x := newTask(servers...)
	x.Zone, x.Name, x.Type = zone, name, qtype
	return x
}

// answerUnless answers after a while, but drops queries for which drops returns true.
func answerUnless(drops func(q dns.Question) bool, after time.Duration) handler {
	return func(q sent) []reply {
		if drops(q.Question[0]) {
			return nil
		}
		return answerAfter(after)(q)
	}
}

// TestDroppedQuestionCausesNoZoneBackoff has servers that drop queries for unknown types and for AAAA (RFC 4074
// §4.1).
func TestDroppedQuestionCausesNoZoneBackoff(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		h := answerUnless(func(q dns.Question) bool { return q.Qtype == dns.TypeHTTPS }, 30*ms)
		a, b := n.serve("192.0.2.1", h), n.serve("192.0.2.2", h)
		for i := range 5 {
			_, _, err := n.ask(f, newTaskFor("example.", fmt.Sprintf("n%d.example.", i), dns.TypeA, a, b))
			require.NoError(t, err, "question %d", i)
			_, _, err = n.ask(f, newTaskFor("example.", "www.example.", dns.TypeHTTPS, a, b))
			require.ErrorIs(t, err, ErrNoServers)
		}
	})
}

// TestForeignZonesOccupyNoSlotsOfUnresponsiveServers has foreign zones that name servers that do not serve them, and
// drop their queries.
func TestForeignZonesOccupyNoSlotsOfUnresponsiveServers(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		h := answerUnless(func(q dns.Question) bool { return dns.IsSubDomain("evil.", q.Name) }, 30*ms)
		var hoster []netip.AddrPort
		for i := range 4 {
			hoster = append(hoster, n.serve(fmt.Sprintf("192.0.2.%d", i), h))
		}
		for i := range 1000 {
			zone := fmt.Sprintf("z%d.evil.", i%8)
			time.AfterFunc(time.Duration(i)*10*ms, func() {
				_, _ = f.QueryServers(context.Background(), newTaskFor(zone, fmt.Sprintf("n%d.%s", i, zone), dns.TypeA, hoster...))
			})
		}
		for i := range 200 {
			_, took, err := n.ask(f, newTaskFor("example.", fmt.Sprintf("n%d.example.", i), dns.TypeA, hoster...))
			require.NoError(t, err)
			require.LessOrEqual(t, took, 100*ms, "after %v", time.Since(n.start))
			time.Sleep(50 * ms)
		}
		time.Sleep(10 * time.Second)
	})
}

func TestServerWithLaterAnswerIsNotUnresponsive(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{Off: true}})
		a := n.serve("192.0.2.1", answerAfter(30*ms))
		b := n.serve("192.0.2.2", answerAfter(90*ms))
		for _, at := range []netip.AddrPort{a, b} {
			_, _, err := n.ask(f, newTask(at))
			require.NoError(t, err)
		}
		n.serve("192.0.2.1", answerUnless(func(q dns.Question) bool { return dns.IsSubDomain("lost.example.", q.Name) }, 30*ms))
		for i := range 3 {
			go func() {
				_, _ = f.QueryServers(n.Context(), newTaskFor("example.", fmt.Sprintf("n%d.lost.example.", i), dns.TypeA, a, b))
			}()
		}
		time.Sleep(ms)
		_, _, err := n.ask(f, newTaskFor("example.", "www.example.", dns.TypeA, a, b))
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, took, err := n.ask(f, newTaskFor("example.", "www.example.", dns.TypeA, a, b))
		require.NoError(t, err)
		assert.Equal(t, 30*ms, took)
	})
}

// TestSlowFirstAnswersDelayNoOtherServers has zones with many deliberately slow servers.
func TestSlowFirstAnswersDelayNoOtherServers(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		for i := range 100 {
			_, _, _ = n.ask(f, newTask(n.serve(fmt.Sprintf("203.0.113.%d", i), answerAfter(1900*ms))))
		}
		h := handleInTurn(dead, answerAfter(30*ms))
		_, took, err := n.ask(f, newTask(n.serve("192.0.2.1", h), n.serve("192.0.2.2", h)))
		require.NoError(t, err)
		assert.LessOrEqual(t, took, maxFirstRTT+30*ms)
	})
}

// TestImportAcceptsAnyRTT exports very short and very long RTTs, as a coarse clock or a stopped process measures
// them.
func TestImportAcceptsAnyRTT(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		at := n.serve("192.0.2.1", answerAfter(ms))
		_, _, err := n.ask(f, newTask(at))
		require.NoError(t, err)
		for _, took := range []time.Duration{0, time.Hour} {
			f.mu.Lock()
			s := f.servers.getOrCreateServer(at, f.elapsed())
			for range 200 {
				s.recordRTT(f.elapsed(), took, f.firstRTTs.median)
			}
			f.mu.Unlock()
			var b bytes.Buffer
			require.NoError(t, f.Export(&b, "", nil))
			g := n.newPool(Config{})
			_, err := g.Import(&b, "")
			require.NoError(t, err, took)
			assert.Positive(t, g.servers.getOrCreateServer(at, g.elapsed()).rtt.SRTT, took)
		}
		stranger := n.serve("192.0.2.2", answerAfter(0))
		for range 2 {
			_, _, err = n.ask(f, newTask(stranger))
			require.NoError(t, err)
		}
		assert.EqualValues(t, 1, f.servers.getOrCreateServer(stranger, f.elapsed()).rtt.SRTT, "the server has a known RTT")
	})
}

func TestWaitingQueryGetsEvictableSocket(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{Off: true}})
		for i := range maxSockets {
			x := newTask(netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), 1}), 53))
			x.Zone = x.Servers[0].String()
			go func() { _, _ = f.QueryServers(context.Background(), x) }()
		}
		time.Sleep(ms)
		_, took, err := n.ask(f, newTask(n.serve("192.0.2.1", answerAfter(10*ms))))
		require.NoError(t, err)
		assert.Equal(t, initialRTO-ms+10*ms, took)
		time.Sleep(10 * time.Second)
	})
}

// TestPoolReportsEndOfEveryQuery requires an OnQueryEnd call for each OnQueryStart call, also for evicted queries.
func TestPoolReportsEndOfEveryQuery(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	inBubble(t, func(n *network) {
		var begun, done atomic.Int64
		f := n.newPool(Config{
			OnQueryStart: func(context.Context, Attempt) { begun.Add(1) },
			OnQueryEnd:   func(context.Context, Attempt, time.Duration, error) { done.Add(1) },
		})
		for i := range 3 * maxSockets {
			x := newTask()
			for k := range 3 {
				x.Servers = append(x.Servers, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), byte(k)}), 53))
			}
			x.Zone = x.Servers[0].String()
			go func() { _, _ = f.QueryServers(context.Background(), x) }()
			if i%1000 == 999 {
				time.Sleep(250 * ms) // then the second query of each task is in flight
			}
		}
		time.Sleep(20 * time.Second)
		assert.Equal(t, begun.Load(), done.Load())
	})
}

// TestHangingDialerHoldsSlotBriefly has a Dialer that takes long, for example to open a tunnel.
func TestHangingDialerHoldsSlotBriefly(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{MaxPerServer: 1})
		a := n.serve("192.0.2.1", answerAfter(10*ms))
		f.conf.Dialer = hanging{}
		_, _, err := n.ask(f, newTask(a))
		require.ErrorIs(t, err, ErrNoServers)
		time.Sleep(zoneBackoffTime)
		var s observe.RecursorStats
		f.FillStats(&s)
		assert.Zero(t, s.InFlight)
		f.conf.Dialer = n
		_, _, err = n.ask(f, newTask(a))
		assert.NoError(t, err)
	})
}

type hanging struct{}

func (hanging) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestMaxPerSecondAcceptsAnyNumber(t *testing.T) {
	for _, most := range []float64{0.1, 1e10, 1e300, math.MaxFloat64, math.Inf(1)} {
		inBubble(t, func(n *network) {
			f := n.newPool(Config{Hedge: Hedge{MaxPerSecond: most}})
			hedges := 0
			for range 10 {
				if f.hedgeBudget.spendToken(true) {
					hedges++
				}
			}
			if most < 1 {
				assert.Equal(t, 1, hedges)
			} else {
				assert.Equal(t, 10, hedges, most)
			}
		})
	}
}

// TestServerWithNotImplementedIsNotLame has servers that answer NOTIMP to QTYPEs such as MAILA, which clients
// choose.
func TestServerWithNotImplementedIsNotLame(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		h := func(q sent) []reply {
			if q.Question[0].Qtype != dns.TypeA {
				return respondAfter(dns.RcodeNotImplemented, 10*ms)(q)
			}
			return answerAfter(10 * ms)(q)
		}
		a, b := n.serve("192.0.2.1", h), n.serve("192.0.2.2", answerAfter(90*ms))
		for _, at := range []netip.AddrPort{a, b} {
			_, _, err := n.ask(f, newTask(at))
			require.NoError(t, err)
		}
		_, _, err := n.ask(f, newTaskFor("example.com.", "www.example.com.", dns.TypeMAILA, a, b))
		require.NoError(t, err, "the other server supports the type")
		before := len(n.queries())
		_, took, err := n.ask(f, newTask(a, b))
		require.NoError(t, err)
		assert.Equal(t, 10*ms, took)
		assert.NotNil(t, n.queries()[before].IsEdns0())
	})
}

// TestAddressesWithoutQueryEvictFewServers has zones with 64 addresses each, to which no query is sent.
func TestAddressesWithoutQueryEvictFewServers(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{MaxBytes: 1 << 18})
		f.mu.Lock()
		defer f.mu.Unlock()
		at := func(net byte, i int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{net, byte(i >> 16), byte(i >> 8), byte(i)}), 53)
		}
		for i := range f.servers.max {
			f.servers.getOrCreateServer(at(198, i), f.elapsed()).recordRTT(f.elapsed(), 10*ms, initialMedian)
		}
		time.Sleep(time.Hour)
		for i := range 20 * f.servers.max {
			f.servers.getOrCreateServer(at(203, i), f.elapsed())
		}
		met := 0
		for _, s := range f.servers.all {
			if s.hasAnswered() {
				met++
			}
		}
		assert.Greater(t, met, f.servers.max/10)
		assert.Len(t, f.servers.all, f.servers.max)
	})
}

func TestPoolImportRejectsTooManyNamesOrAddresses(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		for i, want := range []error{nil, decode.ErrDamaged} {
			z := Delegation{Zone: "example.", Names: make([]string, MaxNames+i), Expires: time.Now().Add(time.Hour)}
			y := Delegation{Zone: "example.", Addrs: make([]netip.AddrPort, MaxAddrs+i), Expires: z.Expires}
			for i := range y.Addrs {
				y.Addrs[i] = netip.MustParseAddrPort("192.0.2.1:53")
			}
			for _, z := range []Delegation{z, y} {
				var b bytes.Buffer
				require.NoError(t, f.Export(&b, "", []Delegation{z}))
				_, err := f.Import(&b, "")
				assert.ErrorIs(t, err, want)
			}
		}
	})
}
