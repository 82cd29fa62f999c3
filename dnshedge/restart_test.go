package dnshedge_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge"
)

// A server that restarts is waited for. One that has refused connections for as long as a question has time does not restart, and
// the error is told at once, as any resolver tells it.
func TestWhoRefusesConnectionsForLongIsNotWaitedFor(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		for name, answered := range map[string]bool{"from the start": false, "after answers": true} {
			bubble(t, func(l *lab) {
				c := l.client(new(dnshedge.Client), l.up(network, "a"))
				if answered {
					a := l.serve("a", good)
					l.must(c, "w.example.")
					a.Close()
				}
				start := time.Now()
				_, took, err := l.ask(c, "x.example.")
				assert.Error(t, err)
				assert.InDelta(t, 4800*ms, took, float64(200*ms), "%s, %s", network, name)
				time.Sleep(time.Until(start.Add(5 * time.Second)))
				for i := range 20 {
					_, took, err := l.ask(c, fmt.Sprintf("y%d.example.", i))
					assert.ErrorContains(t, err, "refused")
					assert.LessOrEqual(t, took, 60*ms, "%s, %s", network, name)
					time.Sleep(500 * ms)
				}
				back := l.serve("a", good)
				l.must(c, "z.example.")
				back.Close()
				time.AfterFunc(3*time.Second, func() { l.serve("a", good) })
				_, took = l.must(c, "z2.example.")
				assert.LessOrEqual(t, took, 4200*ms, "it has answered since, and restarts again")
			})
		}
	}
}

// Of two servers in turn one has refused connections for long, and the other one restarts.
func TestAServerThatRestartsIsWaitedForBesideOneThatIsGone(t *testing.T) {
	bubble(t, func(l *lab) {
		b := l.serve("b", good)
		c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf("", "a", "b")})
		for i := range 20 {
			l.must(c, fmt.Sprintf("x%d.example.", i))
			time.Sleep(500 * ms)
		}
		b.Close()
		time.AfterFunc(2*time.Second, func() { l.serve("b", good) })
		_, took := l.must(c, "y.example.")
		assert.LessOrEqual(t, took, 3500*ms)
	})
}
