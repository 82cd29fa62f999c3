package nameservers

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/observe"
)

// answerOnlyZone answers questions about a zone after a while, and drops all others, as tinydns and firewalls do.
func answerOnlyZone(zone string, after time.Duration) handler {
	return answerUnless(func(q dns.Question) bool { return !dns.IsSubDomain(zone, q.Name) }, after)
}

// TestUnansweredForeignZoneAvoidsServerForThatZone has a foreign zone that names the servers of another zone. Any
// owner of a zone can do that.
func TestUnansweredForeignZoneAvoidsServerForThatZone(t *testing.T) {
	for _, met := range []bool{true, false} {
		inBubble(t, func(n *network) {
			f := n.newPool(Config{Hedge: Hedge{Off: true}})
			fast, slow := n.serve("192.0.2.1", answerOnlyZone("example.", 10*ms)), n.serve("192.0.2.2", answerAfter(300*ms))
			_, _, err := n.ask(f, newTaskFor("example.", "www.example.", dns.TypeA, slow))
			require.NoError(t, err)
			zones := 1
			if met {
				_, _, err = n.ask(f, newTaskFor("example.", "www.example.", dns.TypeA, fast))
				require.NoError(t, err)
				zones = 20
			}
			for i := range 20 {
				for z := range zones {
					zone := fmt.Sprintf("z%d.evil.", z)
					_, _, err := n.ask(f, newTaskFor(zone, fmt.Sprintf("n%d.%s", i, zone), dns.TypeA, fast))
					require.ErrorIs(t, err, ErrNoServers)
				}
				time.Sleep(answerTimeout) // until no query is in flight
				_, took, err := n.ask(f, newTaskFor("example.", fmt.Sprintf("n%d.example.", i), dns.TypeA, fast, slow))
				require.NoError(t, err)
				assert.Equal(t, 10*ms, took, "met %v, question %d", met, i)
				time.Sleep(time.Minute)
			}
		})
	}
}

func TestServerThatDropsOneTypeIsQueriedForOtherTypes(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{Off: true}})
		fast := n.serve("192.0.2.1", answerUnless(func(q dns.Question) bool { return q.Qtype == dns.TypeHTTPS }, 10*ms))
		slow := n.serve("192.0.2.2", answerAfter(300*ms))
		for _, at := range []netip.AddrPort{fast, slow} {
			_, _, err := n.ask(f, newTaskFor("example.", "www.example.", dns.TypeA, at))
			require.NoError(t, err)
		}
		for i := range 20 {
			name := fmt.Sprintf("n%d.example.", i)
			_, took, err := n.ask(f, newTaskFor("example.", name, dns.TypeHTTPS, fast, slow))
			require.NoError(t, err)
			if i == 5 {
				assert.Equal(t, 300*ms, took, "the server is in backoff for these zones")
			}
			_, took, err = n.ask(f, newTaskFor("example.", name, dns.TypeA, fast, slow))
			require.NoError(t, err)
			assert.Equal(t, 10*ms, took)
			time.Sleep(time.Second)
		}
	})
}

func TestUnansweredForeignZoneSpendsNoHedge(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		only := n.serve("192.0.2.1", answerOnlyZone("example.", 50*ms))
		for i := range 20 {
			_, _, err := n.ask(f, newTaskFor("example.", fmt.Sprintf("n%d.example.", i), dns.TypeA, only))
			require.NoError(t, err)
		}
		_, _, err := n.ask(f, newTaskFor("evil.", "www.evil.", dns.TypeA, only))
		require.ErrorIs(t, err, ErrNoServers)
		n.serve("192.0.2.1", handleInTurn(dead, answerAfter(50*ms)))
		_, took, err := n.ask(f, newTaskFor("example.", "www.example.", dns.TypeA, only))
		require.NoError(t, err)
		assert.Less(t, took, 120*ms, "a lost query is hedged")
	})
}

func TestForeignZonesCauseNoFamilyBackoff(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{Off: true}})
		four, six := n.serveBoth(f)
		for i := range 3 * familyBackoffThreshold {
			zone := fmt.Sprintf("z%d.", i)
			at := n.serve(fmt.Sprintf("198.51.100.%d", i), answerOnlyZone(zone, 10*ms))
			_, _, err := n.ask(f, newTaskFor(zone, "www."+zone, dns.TypeA, at))
			require.NoError(t, err)
		}
		for i := range 3 * familyBackoffThreshold { // foreign zones name these servers
			zone := fmt.Sprintf("evil%d.", i)
			_, _, err := n.ask(f, newTaskFor(zone, "www."+zone, dns.TypeA, netip.MustParseAddrPort(fmt.Sprintf("198.51.100.%d:53", i))))
			require.ErrorIs(t, err, ErrNoServers)
		}
		_, took, err := n.ask(f, newTask(four, six))
		require.NoError(t, err)
		assert.Equal(t, 10*ms, took)
	})
}

// TestPoolAvoidsDeadServerInAllZones requires that a server that has died costs one zone a timeout, and no other
// zone.
func TestPoolAvoidsDeadServerInAllZones(t *testing.T) {
	for _, met := range []bool{true, false} {
		inBubble(t, func(n *network) {
			f := n.newPool(Config{Hedge: Hedge{Off: true}})
			a, b := n.serve("192.0.2.1", answerAfter(10*ms)), n.serve("192.0.2.2", answerAfter(90*ms))
			round := func() (asked int, took []time.Duration) {
				before := len(n.queries())
				for z := range 200 {
					zone := fmt.Sprintf("z%d.", z)
					_, d, err := n.ask(f, newTaskFor(zone, "www."+zone, dns.TypeA, a, b))
					require.NoError(t, err)
					took = append(took, d)
				}
				for _, q := range n.queries()[before:] {
					if q.to == a {
						asked++
					}
				}
				return asked, took
			}
			if !met {
				n.serve("192.0.2.1", dead)
			} else {
				round()
				n.serve("192.0.2.1", dead)
			}
			sum := 0
			for range 10 { // three minutes
				asked, _ := round()
				sum += asked
			}
			assert.LessOrEqual(t, sum, 8, "two zones, and after 10, 20, 40, 80 seconds")
			if !met {
				return
			}
			n.serve("192.0.2.1", answerAfter(10*ms))
			time.Sleep(maxBackoff)
			round()
			_, took := round()
			for _, d := range took {
				assert.Equal(t, 10*ms, d, "the server is used again")
			}
		})
	}
}

func TestStatsCountServerInBackoffOnce(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a := n.serve("192.0.2.1", dead)
		for i := range 4 {
			zone := fmt.Sprintf("z%d.", i)
			_, _, err := n.ask(f, newTaskFor(zone, "www."+zone, dns.TypeA, a))
			require.ErrorIs(t, err, ErrNoServers)
		}
		var s observe.RecursorStats
		f.FillStats(&s)
		assert.Equal(t, 1, s.Resting)
	})
}

// TestHealthTableIsBounded queries any number of zones and servers.
func TestHealthTableIsBounded(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{MaxBytes: 1 << 18})
		a := n.serve("192.0.2.1", answerAfter(ms))
		var wg sync.WaitGroup
		for i := range 3000 {
			zone := fmt.Sprintf("z%d.", i)
			wg.Go(func() { _, _ = f.QueryServers(context.Background(), newTaskFor(zone, "www."+zone, dns.TypeA, a)) })
			if i%50 == 49 {
				wg.Wait()
			}
		}
		var s observe.RecursorStats
		f.FillStats(&s)
		assert.LessOrEqual(t, s.Bytes, int64(1<<18))
		assert.Len(t, f.healthByZone.all, f.healthByZone.max)
	})
}
