package dnshedge_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// deadZone does not answer questions about one zone, like a resolver that waits for dead servers longer than the client
// waits.
func deadZone(q dnstest.Query) dnstest.Reply {
	if inDeadZone(q) {
		return drop(q)
	}
	return good(q)
}

func inDeadZone(q dnstest.Query) bool {
	name := strings.ToLower(q.Question[0].Name)
	return strings.HasSuffix(name, ".dead.example.") || strings.HasSuffix(name, ".dead.co.example.")
}

// Of the questions about other zones, one in fifty is lost. They are hedged and answered as they are without questions
// about the dead zone.
func TestZoneThatIsDeadCostsNoHedgesOfOthers(t *testing.T) {
	doubles.SkipSimulation(t)
	for _, parent := range []string{"example.", "co.example."} {
		for _, every := range []time.Duration{0, 10 * ms, 2 * ms} {
			t.Run(fmt.Sprint(parent, every), func(t *testing.T) {
				bubble(t, func(l *lab) { besideADeadZone(l, parent, every) })
			})
		}
	}
}

func besideADeadZone(l *lab, parent string, every time.Duration) {
	seen := make(map[string]bool)
	var mu sync.Mutex
	l.serve("a", func(q dnstest.Query) dnstest.Reply {
		name := strings.ToLower(q.Question[0].Name)
		mu.Lock()
		defer mu.Unlock()
		first := !seen[name]
		seen[name] = true
		if host, _, _ := strings.Cut(name, "."); first && !inDeadZone(q) && (strings.HasSuffix(host, "17") || strings.HasSuffix(host, "67")) {
			return drop(q)
		}
		return deadZone(q)
	})
	c := l.client(&dnshedge.Client{MaxInFlight: 1 << 20}, l.up("udp", "a"))
	l.learn(c)
	var quit atomic.Bool
	var wg sync.WaitGroup
	if every > 0 {
		wg.Go(func() {
			for i := 0; !quit.Load(); i++ {
				time.Sleep(every)
				wg.Go(func() { _, _, _ = c.Exchange(question(fmt.Sprintf("x%d.dead.%s", i, parent), dns.TypeA), "") })
			}
		})
		time.Sleep(3 * time.Second)
	}
	var took []time.Duration
	var asked sync.WaitGroup
	for i := range 1000 {
		asked.Go(func() {
			_, d, err := c.Exchange(question(fmt.Sprintf("g%d.%s", i, parent), dns.TypeA), "")
			assert.NoError(l, err)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, d)
		})
		time.Sleep(10 * ms)
	}
	asked.Wait()
	quit.Store(true)
	wg.Wait()
	slices.Sort(took)
	assert.LessOrEqual(l, took[len(took)-1], 60*ms, "every lost one is hedged")
	st := c.Stats()
	assert.EqualValues(l, 20, st.HedgeWins)
	assert.LessOrEqual(l, st.Hedges, int64(20+20), "what is saved up finds out that the zone is dead")
}

// A dead zone does not move other questions to a server with a longer round trip time.
func TestZoneThatIsDeadDoesNotMarkServerSilent(t *testing.T) {
	for _, network := range []string{"udp", "tls"} {
		bubble(t, func(l *lab) {
			l.serve("a", deadZone)
			l.serve("b", deadZone)
			l.link("b", netsim.Profile{Delay: netsim.Constant(100 * ms)})
			c := l.client(&dnshedge.Client{}, l.up(network, "a"), l.up(network, "b"))
			l.learn(c)
			time.Sleep(time.Second)
			var wg sync.WaitGroup
			slow := 0
			for i := range 60 {
				wg.Go(func() { _, _, _ = c.Exchange(question(fmt.Sprintf("x%d.dead.example.", i), dns.TypeA), "") })
				time.Sleep(1710 * ms)
				if _, took := l.must(c, fmt.Sprintf("y%d.example.", i)); took > 50*ms {
					slow++
				}
			}
			wg.Wait()
			assert.LessOrEqual(t, slow, 1, "%s: it takes three names to know the zone", network)
		})
	}
}

// One of two servers does not answer for a zone. Questions about that zone, and no others, go to the other server
// first. When the nearer server answers for the zone again, it gets these questions again.
func TestZoneIsAskedOfServerThatAnswers(t *testing.T) {
	bubble(t, func(l *lab) {
		var back atomic.Bool
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if back.Load() {
				return good(q)
			}
			return deadZone(q)
		})
		l.serve("b", with("A 192.0.2.2"))
		l.link("b", netsim.Profile{Delay: netsim.Constant(30 * ms)})
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		l.learn(c)
		ask := func(n int, format string) (worst time.Duration) {
			for i := range n {
				_, took := l.must(c, fmt.Sprintf(format, i))
				worst = max(worst, took)
				time.Sleep(500 * ms)
			}
			return worst
		}
		ask(10, "w%d.dead.example.")
		assert.LessOrEqual(t, ask(10, "x%d.dead.example."), 60*ms)
		assert.LessOrEqual(t, ask(10, "y%d.example."), 20*ms)
		back.Store(true)
		time.Sleep(10 * time.Second)
		assert.LessOrEqual(t, ask(10, "z%d.dead.example."), 20*ms)
	})
}

// One of two servers fails three questions about a zone, and the other leaves them unanswered. The first server then
// works again. It gets the next question about the zone, because it was never silent.
func TestZoneIsAskedOfServerThatFailedQuestions(t *testing.T) {
	bubble(t, func(l *lab) {
		var works atomic.Bool
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if inDeadZone(q) && !works.Load() {
				return rcode(dns.RcodeServerFailure)(q)
			}
			return good(q)
		})
		l.serve("b", deadZone)
		c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Off: true}, Timeout: 3 * time.Second}, l.up("udp", "a"), l.up("udp", "b"))
		l.learn(c)
		var wg sync.WaitGroup
		for i := range 3 { // each is sent to a once, and then to b until it times out
			wg.Go(func() { l.must(c, fmt.Sprintf("x%d.dead.example.", i)) })
		}
		wg.Wait()
		works.Store(true)
		for range 3 { // a is used later than b, and of two silent servers b would be asked first
			l.must(c, "y.example.")
			time.Sleep(time.Second)
		}
		_, took := l.must(c, "z.dead.example.")
		assert.Equal(t, 20*ms, took)
	})
}

// A client that asks about one zone only detects a dead server as soon as other clients do.
func TestZoneQuestionsFindDeadServer(t *testing.T) {
	for name, c := range map[string]*dnshedge.Client{"group": {}, "fallback": {}} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			b := l.serve("b", good)
			if name == "group" {
				l.client(c, l.up("udp", "a"), l.up("udp", "b"))
			} else {
				c.Fallback = []dnshedge.Upstream{l.up("udp", "b")}
				l.client(c, l.up("udp", "a"))
			}
			for i := range 40 {
				l.must(c, fmt.Sprintf("l%d.corp.example.", i))
			}
			l.link("a", netsim.Profile{BlackHole: true})
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() { l.must(c, fmt.Sprintf("m%d.corp.example.", i)) })
				time.Sleep(time.Second)
			}
			wg.Wait()
			before := b.Queries.Load()
			for i := range 20 {
				_, took := l.must(c, fmt.Sprintf("n%d.corp.example.", i))
				assert.LessOrEqual(t, took, 40*ms, name)
				time.Sleep(time.Second)
			}
			assert.Positive(t, b.Queries.Load()-before)
			assert.True(t, c.Stats().Upstreams[0].Silent, name)
		})
	}
}
