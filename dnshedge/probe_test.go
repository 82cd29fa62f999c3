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

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// closing returns a handler that answers all questions except for the question of probes, on which it closes the
// connection. It counts these. UDP responses for names that begin with "long" are truncated, and names that contain
// "slow" take a while.
func closing(slow time.Duration, probes *atomic.Int64) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		name := q.Question[0].Name
		switch {
		case name == ".":
			probes.Add(1)
			return dnstest.Reply{Close: true}
		case strings.HasPrefix(name, "fails"):
			return rcode(dns.RcodeServerFailure)(q)
		case q.Net == "udp" && strings.HasPrefix(name, "long"):
			m := dnstest.Answer(q)
			m.Truncated = true
			return dnstest.Reply{Msg: m}
		case strings.Contains(name, "slow"):
			return after(slow, good)(q)
		}
		return good(q)
	}
}

// askAll asks for some names at the same time, which are all answered, and returns how long the last answer took.
func (l *lab) askAll(c *dnshedge.Client, prefix string, n int) (most time.Duration) {
	l.Helper()
	var wg sync.WaitGroup
	all := make([]time.Duration, n)
	for i := range n {
		wg.Go(func() {
			name := fmt.Sprintf("%s%d.example.", prefix, i)
			_, took, err := l.ask(c, name)
			assert.NoError(l, err, name)
			all[i] = took
		})
	}
	wg.Wait()
	for _, took := range all {
		most = max(most, took)
	}
	return most
}

// A server needs long for some answers, and closes the connection when it receives the probe that tests whether the
// connection works.
func TestProbeThatEndsConnectionFailsNoQuestion(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		for _, hedged := range []bool{false, true} {
			for _, slow := range []time.Duration{1100 * ms, 1900 * ms} {
				t.Run(fmt.Sprint(network, hedged, slow), func(t *testing.T) {
					bubble(t, func(l *lab) {
						var probes atomic.Int64
						l.serve("a", closing(slow, &probes))
						c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Off: !hedged}}, l.up(network, "a"))
						l.learn(c)
						most := l.askAll(c, "longslow", 5)
						assert.LessOrEqual(t, most, 500*ms+slow+200*ms, "half a second until the probe, and then again over another connection")
						assert.Positive(t, probes.Load(), "or the test proves nothing")
						time.Sleep(30 * time.Second) // the connections are closed
						before := probes.Load()
						most = l.askAll(c, "longslowagain", 5)
						assert.LessOrEqual(t, most, slow+200*ms, "there is no probe any more")
						assert.Equal(t, before, probes.Load())
					})
				})
			}
		}
	}
}

// A probe tests whether a server that fails three names fails all names. It uses the connection of waiting questions,
// and the next probes use another connection.
func TestProbeOfDoubtfulServerFailsNoQuestion(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		t.Run(network, func(t *testing.T) {
			bubble(t, func(l *lab) {
				var probes, unused atomic.Int64
				l.serve("a", closing(100*ms, &probes))
				l.serve("b", closing(0, &unused))
				c := l.client(off(), l.up(network, "a"), l.up(network, "b"))
				c.Order = dnshedge.OrderStrict
				l.learn(c)
				for round := range 3 {
					for i := range 3 {
						l.must(c, fmt.Sprintf("fails%d-%d.example.", round, i))
					}
					time.Sleep(time.Second) // a probe is due
					before, again := probes.Load(), 0*ms
					if round == 0 {
						again = 150 * ms
					}
					most := l.askAll(c, fmt.Sprintf("slow%d-", round), 3)
					assert.LessOrEqual(t, most, 120*ms+again, "round %d", round)
					assert.Greater(t, probes.Load(), before, "or the test proves nothing")
					time.Sleep(11 * time.Second)
				}
			})
		})
	}
}
