package nameservers

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFewUnresponsiveZonesAreNoOutage has zones with many unresponsive servers.
func TestFewUnresponsiveZonesAreNoOutage(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{BudgetPercent: 100}})
		a, b := n.serve("192.0.2.1", answerAfter(10*ms)), n.serve("192.0.2.2", answerAfter(10*ms))
		for range 20 {
			_, _, err := n.ask(f, newTask(a, b))
			require.NoError(t, err)
			_, _, err = n.ask(f, newTask(b))
			require.NoError(t, err)
		}
		for z := range 8 {
			var silent []netip.AddrPort
			for i := range 8 {
				silent = append(silent, n.serve(fmt.Sprintf("203.0.113.%d", z*8+i), dead))
			}
			zone := fmt.Sprintf("z%d.", z)
			_, _, err := n.ask(f, newTaskFor(zone, "www."+zone, 1, silent...))
			require.ErrorIs(t, err, ErrNoServers)
		}
		assert.False(t, f.hedgeBudget.outage.Load())
		h := handleInTurn(dead, answerAfter(10*ms))
		n.serve("192.0.2.1", h)
		n.serve("192.0.2.2", h)
		_, took, err := n.ask(f, newTask(a, b))
		require.NoError(t, err)
		assert.Less(t, took, 40*ms, "a hedge")
	})
}

// TestOneUnresponsiveZoneIsNoOutage has a zone whose servers answer at first, and then do not.
func TestOneUnresponsiveZoneIsNoOutage(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		var all []netip.AddrPort
		for i := range 20 {
			at := n.serve(fmt.Sprintf("203.0.113.%d", i), answerAfter(10*ms))
			_, _, err := n.ask(f, newTaskFor("evil.", "www.evil.", 1, at))
			require.NoError(t, err)
			n.serve(fmt.Sprintf("203.0.113.%d", i), dead)
			all = append(all, at)
		}
		for i := range 3 {
			_, _, err := n.ask(f, newTaskFor("evil.", fmt.Sprintf("w%d.evil.", i), 1, all...))
			require.ErrorIs(t, err, ErrNoServers)
			time.Sleep(zoneBackoffTime)
		}
		assert.False(t, f.hedgeBudget.outage.Load())
	})
}

func TestOneZoneCausesNoFamilyBackoff(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{Off: true}})
		four, six := n.serveBoth(f)
		for z := range 12 {
			var silent []netip.AddrPort
			for i := range 12 {
				silent = append(silent, n.serve(fmt.Sprintf("203.0.%d.%d", 113+z, i), dead))
			}
			zone := fmt.Sprintf("z%d.", z)
			_, _, err := n.ask(f, newTaskFor(zone, "www."+zone, 1, silent...))
			require.ErrorIs(t, err, ErrNoServers)
		}
		_, took, err := n.ask(f, newTask(four, six))
		require.NoError(t, err)
		assert.Equal(t, 10*ms, took)
	})
}

// TestDroppedQuestionsFailNoOtherQuestion queries names and types that the servers of a zone drop. Other questions
// for the zone still succeed.
func TestDroppedQuestionsFailNoOtherQuestion(t *testing.T) {
	for _, minutes := range []int{0, 1} {
		inBubble(t, func(n *network) {
			f := n.newPool(Config{})
			h := answerUnless(func(q dns.Question) bool { return q.Qtype == dns.TypeHTTPS || q.Name == "bad.example." }, 30*ms)
			a, b := n.serve("192.0.2.1", h), n.serve("192.0.2.2", h)
			_, _, err := n.ask(f, newTaskFor("example.", "www.example.", dns.TypeA, a, b))
			require.NoError(t, err)
			for i := range 4 {
				_, _, err = n.ask(f, newTaskFor("example.", fmt.Sprintf("n%d.example.", i), dns.TypeHTTPS, a, b))
				require.ErrorIs(t, err, ErrNoServers)
				_, _, err = n.ask(f, newTaskFor("example.", "bad.example.", dns.TypeAAAA, a, b))
				require.ErrorIs(t, err, ErrNoServers)
				time.Sleep(time.Duration(minutes) * time.Minute)
			}
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeMX} {
				if minutes == 0 && qtype == dns.TypeMX {
					continue // the group of HTTPS may be in backoff
				}
				_, _, err = n.ask(f, newTaskFor("example.", "mail.example.", qtype, a, b))
				assert.NoError(t, err, dns.Type(qtype))
			}
		})
	}
}

// TestZoneWithDeadServersBacksOff requires a backoff after two unanswered names.
func TestZoneWithDeadServersBacksOff(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a, b := n.serve("192.0.2.1", answerAfter(30*ms)), n.serve("192.0.2.2", answerAfter(30*ms))
		for range 9 {
			_, _, err := n.ask(f, newTaskFor("example.", "www.example.", dns.TypeA, a, b))
			require.NoError(t, err)
		}
		n.serve("192.0.2.1", dead)
		n.serve("192.0.2.2", dead)
		for i, rests := range []bool{false, false, true, true} {
			name := fmt.Sprintf("n%d.example.", i)
			before := len(n.queries())
			_, _, err := n.ask(f, newTaskFor("example.", name, dns.TypeA, a, b))
			require.ErrorIs(t, err, ErrNoServers)
			assert.Equal(t, rests, len(n.queries()) == before, name)
		}
		time.Sleep(zoneBackoffTime)
		n.serve("192.0.2.1", answerAfter(30*ms))
		for i := range 3 {
			_, _, err := n.ask(f, newTaskFor("example.", fmt.Sprintf("m%d.example.", i), dns.TypeA, a, b))
			require.NoError(t, err)
		}
	})
}

func TestUnansweredZoneSpendsTwoHedges(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		var silent []netip.AddrPort
		for i := range 8 {
			silent = append(silent, n.serve(fmt.Sprintf("203.0.113.%d", i), dead))
		}
		_, _, err := n.ask(f, newTask(silent...))
		require.ErrorIs(t, err, ErrNoServers)
		assert.EqualValues(t, maxUnansweredHedges, f.counters.hedges.Load())
	})
}
