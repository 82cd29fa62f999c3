package dnshedge_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// questionLog records the names in the questions that a server receives.
type questionLog struct {
	mu    sync.Mutex
	names []string
}

// record returns h, with every question recorded.
func (l *questionLog) record(h dnstest.Handler) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		l.mu.Lock()
		l.names = append(l.names, strings.ToLower(q.Question[0].Name))
		l.mu.Unlock()
		return h(q)
	}
}

// withPrefix returns the recorded names that begin with a prefix.
func (l *questionLog) withPrefix(prefix string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range l.names {
		if strings.HasPrefix(name, prefix) {
			found = append(found, name)
		}
	}
	return found
}

// switchable answers as the first handler until the given time, and then as the second.
func switchable(until time.Time, first, second dnstest.Handler) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		if time.Now().Before(until) {
			return first(q)
		}
		return second(q)
	}
}

// startInOrder starts c, which asks servers a, b and c over UDP in this order: by OrderStrict, by resolv.conf, or b and c as fallback.
func (l *lab) startInOrder(c *dnshedge.Client, setting string) {
	switch setting {
	case "strict":
		c.Order = dnshedge.OrderStrict
		l.client(c, l.up("udp", "a"), l.up("udp", "b"), l.up("udp", "c"))
	case "resolv.conf":
		c.ResolvConf = l.resolvConf("", "a", "b", "c")
		l.client(c)
	case "fallback":
		c.Fallback = []dnshedge.Upstream{l.up("udp", "b"), l.up("udp", "c")}
		l.client(c, l.up("udp", "a"))
	}
}

// After an outage of all servers, the later servers are unhealthy and are probed. The first server then answers every
// question, so the strict order forbids sending its names to the later servers.
func TestProbesRespectStrictOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	bad := map[string]dnstest.Handler{"silence": drop, "SERVFAIL": rcode(dns.RcodeServerFailure), "REFUSED": rcode(dns.RcodeRefused)}
	for name, outage := range bad {
		for later, laterBad := range bad {
			for _, setting := range []string{"strict", "resolv.conf", "fallback"} {
				t.Run(name+", later "+later+", "+setting, func(t *testing.T) {
					bubble(t, func(l *lab) {
						end := time.Now().Add(15 * time.Second)
						var asked questionLog
						l.serve("a", switchable(end, outage, good))
						l.serve("b", asked.record(laterBad))
						l.serve("c", asked.record(switchable(end, good, laterBad)))
						c := &dnshedge.Client{Timeout: time.Second}
						l.startInOrder(c, setting)
						for i := 0; time.Now().Before(end); i++ {
							_, _, _ = l.ask(c, fmt.Sprintf("outage%d.example.", i))
							time.Sleep(200 * ms)
						}
						for i := 0; i < 300 && len(asked.withPrefix("back")) == i; i++ { // until only a is asked
							l.must(c, fmt.Sprintf("back%d.example.", i))
							time.Sleep(100 * ms)
						}
						time.Sleep(5 * time.Second)
						for i := range 600 {
							r, took := l.must(c, fmt.Sprintf("secret%d.corp.example.", i))
							assert.Equal(t, "192.0.2.1", addr(r))
							assert.LessOrEqual(t, took, 20*ms)
							time.Sleep(100 * ms)
						}
						assert.Empty(t, asked.withPrefix("secret"))
						assert.NotEmpty(t, asked.withPrefix("."), "the servers in doubt are probed, or the test proves nothing")
					})
				})
			}
		}
	}
}

// A later server resolves only some names, and not the root. A probe with an earlier name shows that it works again.
func TestProbeFindsLaterServerWithSomeNames(t *testing.T) {
	bubble(t, func(l *lab) {
		end := time.Now().Add(20 * time.Second)
		refuseRoot := func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "." {
				return rcode(dns.RcodeRefused)(q)
			}
			return good(q)
		}
		l.serve("a", switchable(end, rcode(dns.RcodeServerFailure), good))
		l.serve("b", switchable(end, rcode(dns.RcodeServerFailure), refuseRoot))
		c := l.client(&dnshedge.Client{Order: dnshedge.OrderStrict}, l.up("udp", "a"), l.up("udp", "b"))
		for i := 0; time.Now().Before(end); i++ {
			_, _, _ = l.ask(c, fmt.Sprintf("outage%d.example.", i))
			time.Sleep(500 * ms)
		}
		for i := range 300 {
			_, _, _ = l.ask(c, fmt.Sprintf("new%d.example.", i))
			time.Sleep(100 * ms)
		}
		for _, u := range c.Stats().Upstreams {
			assert.False(t, u.Failing, u.Upstream)
			assert.False(t, u.Down, u.Upstream)
		}
	})
}

// breaking returns a handler that passes names that begin with "broken" to the first handler, and all other names to
// the second.
func breaking(broken, others dnstest.Handler) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		if strings.HasPrefix(strings.ToLower(q.Question[0].Name), "broken") {
			return broken(q)
		}
		return others(q)
	}
}

// refusingRoot answers as h, but refuses the root.
func refusingRoot(h dnstest.Handler) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		if q.Question[0].Name == "." {
			return rcode(dns.RcodeRefused)(q)
		}
		return h(q)
	}
}

// The second server refuses questions about the root, and was only asked for broken names. It works, so it precedes the
// third server in the order.
func TestClientAsksServerThatRefusesRootInOrder(t *testing.T) {
	faults := map[string]dnstest.Handler{"late": after(time.Second, good), "silent": drop, "SERVFAIL": rcode(dns.RcodeServerFailure)}
	for name, fault := range faults {
		for _, setting := range []string{"strict", "resolv.conf", "fallback"} {
			t.Run(name+", "+setting, func(t *testing.T) {
				bubble(t, func(l *lab) {
					end := time.Now().Add(10 * time.Second)
					l.serve("a", switchable(end, breaking(drop, good), fault))
					l.serve("b", refusingRoot(breaking(rcode(dns.RcodeServerFailure), with("A 192.0.2.2"))))
					l.serve("c", with("A 192.0.2.3"))
					c := &dnshedge.Client{Timeout: 2 * time.Second}
					l.startInOrder(c, setting)
					l.must(c, "known.example.")
					for i := range 5 {
						l.must(c, fmt.Sprintf("broken%d.example.", i))
						time.Sleep(time.Second)
					}
					time.Sleep(time.Until(end))
					for i := range 6 {
						r, _ := l.must(c, fmt.Sprintf("later%d.example.", i))
						if i > 1 {
							assert.NotEqual(t, "192.0.2.3", addr(r), "question %d", i)
						}
						time.Sleep(5 * time.Second)
					}
				})
			})
		}
	}
}

// The first server is down, so the order passes it over. It gets the client's question to find out whether it works
// again, and the probe that is due at the same time has another question.
func TestClientAsksServerThatIsDownOnceForEachQuestion(t *testing.T) {
	for name, fault := range map[string]dnstest.Handler{"SERVFAIL": rcode(dns.RcodeServerFailure), "REFUSED": rcode(dns.RcodeRefused), "silent": drop} {
		for _, worked := range []time.Duration{0, 500 * ms} {
			for _, setting := range []string{"strict", "resolv.conf", "fallback"} {
				t.Run(fmt.Sprintf("%s after %v, %s", name, worked, setting), func(t *testing.T) {
					bubble(t, func(l *lab) {
						var asked questionLog
						l.serve("a", asked.record(switchable(time.Now().Add(worked), good, fault)))
						l.serve("b", good)
						l.serve("c", good)
						c := &dnshedge.Client{Timeout: 2 * time.Second}
						l.startInOrder(c, setting)
						for i := 0; i < 10 || !c.Stats().Upstreams[0].Down; i++ {
							require.Less(t, i, 100)
							l.must(c, fmt.Sprintf("before%d.example.", i))
							time.Sleep(time.Second)
						}
						for i := range 20 {
							time.Sleep(15 * time.Second)
							l.must(c, fmt.Sprintf("down%d.example.", i))
							time.Sleep(time.Second)
							assert.Len(t, asked.withPrefix(fmt.Sprintf("down%d.", i)), 1, "question %d", i)
						}
					})
				})
			}
		}
	}
}
