package recursor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
)

// requireLimit asserts that a question has ended at a limit, and that its extended error names the limit.
func requireLimit(t *testing.T, r *recursor.Resolver, m *dns.Msg, limit string) {
	t.Helper()
	assert.Equal(t, "SERVFAIL", formatResponse(m))
	_, text := readExtendedError(m)
	assert.NotEmpty(t, text, "no extended error")
	assert.Positive(t, r.Stats().Limited[limit], "%s: %v, %q", limit, r.Stats().Limited, text)
}

// nameservers adds a zone "attack." with delegations of n NS records each and no glue, and the zone target of the
// server names.
func nameservers(w *testNetwork, n int, target string) {
	z := w.server("192.0.2.66").zones[0]
	for i := range n {
		rr := record(fmt.Sprintf("sub.attack. NS n%d.%s", i, target))
		z.put(rr)
	}
}

const attack = `
. served 198.41.0.4
attack. delegated 192.0.2.66
victim. delegated 192.0.2.9
  www A 192.0.2.90
`

// TestResolverSendsFewQueriesForMissingServerNames is the NXNSAttack (CVE-2020-8616).
func TestResolverSendsFewQueriesForMissingServerNames(t *testing.T) {
	for _, n := range []int{3, 20, 1500} {
		bubble(t, attack, func(t *testing.T, w *testNetwork) {
			nameservers(w, n, "victim.")
			r := w.resolver()
			w.ask(r, "www.victim. A")
			victim, all, start := w.countQueries("192.0.2.9"), w.countQueries(), time.Now()
			m := w.ask(r, "www.sub.attack. A")
			assert.Equal(t, "SERVFAIL", formatResponse(m))
			assert.Less(t, time.Since(start), time.Second)
			t.Logf("%d NS records: %d queries to the victim, %d in all", n, w.countQueries("192.0.2.9")-victim, w.countQueries()-all)
			assert.LessOrEqual(t, w.countQueries("192.0.2.9")-victim, 10, "%d NS records", n)
			assert.LessOrEqual(t, w.countQueries()-all, 16)
			if n > 5 {
				assert.Positive(t, r.Stats().Limited["ServerNames"]+r.Stats().Limited["ServerNamesPerZone"])
			}
		})
	}
}

// TestResolverSendsVictimFewQueriesPerQuestion asks for many names, each of which makes the Resolver look up other
// names.
func TestResolverSendsVictimFewQueriesPerQuestion(t *testing.T) {
	bubble(t, attack, func(t *testing.T, w *testNetwork) {
		// Each name below attack. is delegated to 20 server names of its own.
		w.setFault("192.0.2.66", func(q query, r *dns.Msg) *dns.Msg {
			labels := dns.SplitDomainName(q.name)
			if len(labels) < 2 {
				return r
			}
			sub := labels[len(labels)-2]
			var b strings.Builder
			b.WriteString("referral |")
			for i := range 20 {
				fmt.Fprintf(&b, "%s.attack. NS n%d.%s.victim.;", sub, i, sub)
			}
			return respondWith(b.String())(q, r)
		})
		r := w.resolver()
		w.ask(r, "www.victim. A")
		victim := w.countQueries("192.0.2.9")
		for i := range 50 {
			assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, fmt.Sprintf("www.s%d.attack. A", i))))
		}
		t.Logf("%.1f queries to the victim for each", float64(w.countQueries("192.0.2.9")-victim)/50)
		assert.LessOrEqual(t, w.countQueries("192.0.2.9")-victim, 50*20, "A and AAAA, minimised, of 5 names")
	})
}

// TestResolverGivesUpDependentServerNames is the NRDelegation attack (CVE-2022-3204): each NS name is delegated to
// servers that do not answer.
func TestResolverGivesUpDependentServerNames(t *testing.T) {
	bubble(t, attack, func(t *testing.T, w *testNetwork) {
		nameservers(w, 1500, "victim.")
		z := w.server("192.0.2.9").zones[0]
		for i := range 1500 {
			z.put(record(fmt.Sprintf("n%d.victim. NS ns.n%d.victim.", i, i)))
			z.put(record(fmt.Sprintf("ns.n%d.victim. A 203.0.113.%d", i, i%200+1)))
		}
		r := w.resolver()
		start, n := time.Now(), w.countQueries()
		m := w.ask(r, "www.sub.attack. A")
		assert.Equal(t, "SERVFAIL", formatResponse(m))
		assert.LessOrEqual(t, w.countQueries()-n, 66)
		assert.Less(t, time.Since(start), 10*time.Second)
		t.Logf("%d queries, %v, %v", w.countQueries()-n, time.Since(start), r.Stats().Limited)
	})
}

func TestResolverLimitsDepthAndNumberOfServerNames(t *testing.T) {
	for depth := 1; depth <= 8; depth++ {
		text := ". served 198.41.0.4\ntld. delegated 192.0.2.1\n"
		for i := range depth {
			text += fmt.Sprintf("  z%d NS ns.z%d\n", i, i+1)
		}
		text += fmt.Sprintf("z%d.tld. delegated 192.0.3.99\n  ns A 192.0.3.%d\n", depth, depth)
		for i := depth - 1; i >= 0; i-- {
			text += fmt.Sprintf("z%d.tld. served 192.0.3.%d\n  ns A 192.0.3.%d\n  www A 192.0.2.80\n", i, i+1, i)
		}
		bubble(t, text, func(t *testing.T, w *testNetwork) {
			m := w.ask(w.resolver(), "www.z0.tld. A")
			t.Logf("%d deep: %s, %d queries", depth, formatResponse(m), w.countQueries())
			if depth <= 4 {
				assert.Equal(t, "NOERROR www.z0.tld. A 192.0.2.80", formatResponse(m))
			}
			if depth > 5 {
				assert.Equal(t, "SERVFAIL", formatResponse(m))
			}
			assert.LessOrEqual(t, w.countQueries(), 34)
		})
	}
	// Each server name depends on other server names.
	bubble(t, ". served 198.41.0.4\ntld. delegated 192.0.2.1\n", func(t *testing.T, w *testNetwork) {
		setUpDependentNames(w)
		r := w.resolver()
		start := time.Now()
		m := w.ask(r, "www.z0.tld. A")
		assert.Equal(t, "SERVFAIL", formatResponse(m))
		assert.LessOrEqual(t, r.Stats().Lookups, int64(16))
		assert.LessOrEqual(t, w.countQueries(), 60)
		assert.Less(t, time.Since(start), 2*time.Second)
	})
}

// setUpDependentNames delegates 200 zones below tld. Each has five names of servers, in five other zones.
func setUpDependentNames(w *testNetwork) {
	z := w.server("192.0.2.1").zones[0]
	for i := range 200 {
		for j := range 5 {
			z.put(record(fmt.Sprintf("z%d.tld. NS ns%d.z%d.tld.", i, j, i*5+j+1)))
		}
	}
}

func TestResolverSends64QueriesAtMost(t *testing.T) {
	// Servers that are all lame, in zones below each other: each costs a query.
	text := ". served 198.41.0.4\n"
	name := ""
	for i := range 12 {
		name = fmt.Sprintf("z%d.%s", i, name)
		text += name + " delegated"
		for j := range 13 {
			text += fmt.Sprintf(" 192.0.%d.%d", i+3, j+1)
		}
		text += "\n"
	}
	for _, c := range []struct {
		limits recursor.Limits
		most   int
		limit  string
	}{
		{recursor.Limits{}, 64, "ChainQueries"},
		{recursor.Limits{ChainQueries: 10}, 10, "ChainQueries"},
		{recursor.Limits{ChainQueries: 64}, 64, ""},
		{recursor.Limits{Queries: 7}, 7, "Queries"},
	} {
		bubble(t, text, func(t *testing.T, w *testNetwork) {
			for i := range 12 {
				for j := range 12 { // except one of 13
					w.setFault(fmt.Sprintf("192.0.%d.%d", i+3, j+1), respondRcode(dns.RcodeRefused))
				}
			}
			r := w.resolver(limits(c.limits), noMinimise)
			m := w.ask(r, "www."+name+" A")
			hedges := int(r.Stats().Hedges)
			assert.LessOrEqual(t, w.countQueries()-1-hedges, c.most, "after priming") // without the priming query
			assert.LessOrEqual(t, hedges, 20+c.most*15/100, "the budget's")
			if c.limit != "" {
				requireLimit(t, r, m, c.limit)
			} else {
				assert.Contains(t, []string{"SERVFAIL", "NXDOMAIN"}, formatResponse(m), "with hedges the queries may just suffice")
			}
			// The question may be repeated: learned data stays cached.
			assert.Contains(t, []string{"SERVFAIL", "NXDOMAIN"}, formatResponse(w.ask(r, "www."+name+" A")))
		})
	}
}

// TestResolverLooksUpIPv6OnlyServers has server names without IPv4 address and without glue. The Resolver has
// learned that of the first five names before it looks up an IPv6 address.
func TestResolverLooksUpIPv6OnlyServers(t *testing.T) {
	const text = `
. served 198.41.0.4
six. served 2001:db9::1
  www A 192.0.2.80
hoster. delegated 192.0.2.1
`
	for _, soa := range []bool{true, false} {
		bubble(t, text, func(t *testing.T, w *testNetwork) {
			root, hoster := w.server("198.41.0.4").zones[0], w.server("192.0.2.1").zones[0]
			for i := range 5 {
				root.add(t, fmt.Sprintf("six. NS s%d.hoster.", i))
				hoster.add(t, fmt.Sprintf("s%d AAAA 2001:db9::1", i))
			}
			if !soa {
				w.setFault("192.0.2.1", func(_ query, r *dns.Msg) *dns.Msg { r.Ns = nil; return r })
			}
			r := w.resolver()
			for range 3 {
				assert.Equal(t, "NOERROR www.six. A 192.0.2.80", formatResponse(w.ask(r, "www.six. A")))
				time.Sleep(10 * time.Minute)
			}
		})
	}
}

// TestResolverFollowsElevenAliasesThroughDistantZones has aliases to names in zones that are not cached, two labels
// deep, on servers slower than most.
func TestResolverFollowsElevenAliasesThroughDistantZones(t *testing.T) {
	const aliases = 11
	zone := func(i int) string { return fmt.Sprintf("far.tld%d.", i) }
	var text strings.Builder
	text.WriteString(". served 198.41.0.4\n")
	for i := range aliases + 1 {
		fmt.Fprintf(&text, "tld%d. delegated 192.0.3.%d 192.0.4.%d\n%s delegated 192.0.5.%d 192.0.6.%d\n", i, i, i, zone(i), i, i)
		if i < aliases {
			fmt.Fprintf(&text, "  www CNAME www.%s\n", zone(i+1))
		} else {
			text.WriteString("  www A 192.0.2.80\n")
		}
	}
	for _, rtt := range []time.Duration{10 * ms, 60 * ms, 90 * ms, 100 * ms} {
		bubble(t, text.String(), func(t *testing.T, w *testNetwork) {
			for _, s := range w.servers {
				s.rtt = rtt
			}
			queries := 0
			r := w.resolver(func(r *recursor.Resolver) {
				r.Trace = &recursor.Trace{Answer: func(_ context.Context, a recursor.AnswerInfo) { queries = a.Queries }}
			})
			assert.Contains(t, formatResponse(w.ask(r, "www."+zone(0)+" A")), " A 192.0.2.80", "%v", rtt)
			assert.Equal(t, w.countQueries(), queries, "with hedges")
		})
	}
}

func TestResolverFollows30Referrals(t *testing.T) {
	chain := func(n int) (text, name string) {
		text = ". served 198.41.0.4\n"
		for i := range n {
			name = fmt.Sprintf("z%d.%s", i, name)
			text += fmt.Sprintf("%s delegated 192.0.2.%d\n", name, i+1)
		}
		return text + "  www A 192.0.2.80\n", name
	}
	for _, c := range []struct {
		depth, limit int
		ok           bool
	}{{30, 0, true}, {31, 0, false}, {5, 5, true}, {6, 5, false}} {
		text, name := chain(c.depth)
		bubble(t, text, func(t *testing.T, w *testNetwork) {
			r := w.resolver(noMinimise, limits(recursor.Limits{Referrals: c.limit, Queries: 1000, ChainQueries: 1000}))
			m := w.ask(r, "www."+name+" A")
			if c.ok {
				assert.Equal(t, "NOERROR www."+name+" A 192.0.2.80", formatResponse(m), "%+v", c)
			} else {
				requireLimit(t, r, m, "Referrals")
			}
		})
	}
}

func TestResolverFollows11Aliases(t *testing.T) {
	for _, kind := range []string{"of one zone", "of two zones", "DNAME"} {
		for _, c := range []struct {
			length, limit int
			ok            bool
		}{{11, 0, true}, {12, 0, false}, {40, 0, false}, {3, 3, true}, {4, 3, false}} {
			t.Run(fmt.Sprint(kind, c), func(t *testing.T) {
				bubble(t, ". served 198.41.0.4\none. delegated 192.0.2.1\ntwo. delegated 192.0.2.2\n", func(t *testing.T, w *testNetwork) {
					for i := range c.length + 1 {
						here, next := i%2, (i+1)%2
						if kind == "of one zone" {
							here, next = 0, 0
						}
						zones := []string{"one.", "two."}
						z := w.server([]string{"192.0.2.1", "192.0.2.2"}[here]).zones[0]
						switch {
						case i == c.length && kind == "DNAME":
							z.add(t, fmt.Sprintf("x.a%d A 192.0.2.80", i))
						case i == c.length:
							z.add(t, fmt.Sprintf("a%d A 192.0.2.80", i))
						case kind == "DNAME":
							z.add(t, fmt.Sprintf("a%d DNAME a%d.%s", i, i+1, zones[next]))
						default:
							z.add(t, fmt.Sprintf("a%d CNAME a%d.%s", i, i+1, zones[next]))
						}
					}
					r := w.resolver(limits(recursor.Limits{Aliases: c.limit}))
					q := "a0.one. A"
					if kind == "DNAME" {
						q = "x.a0.one. A"
					}
					n := w.countQueries()
					m := w.ask(r, q)
					if c.ok {
						assert.Contains(t, formatResponse(m), "A 192.0.2.80")
					} else {
						requireLimit(t, r, m, "Aliases")
					}
					assert.LessOrEqual(t, w.countQueries()-n, 32+1)
				})
			})
		}
	}
}

// TestResolverAsksServerSameQuestionThreeTimesAtMost requires RFC 9520 §3.1.
func TestResolverAsksServerSameQuestionThreeTimesAtMost(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
two. delegated 192.0.2.2 192.0.2.3
`, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.1 192.0.2.2 192.0.2.3", silent)
		r := w.resolver()
		for _, q := range []string{"www.example. A", "a.b.c.example. TXT", "www.two. A"} {
			n := len(w.queriesSince(0))
			assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, q)))
			same := map[string]int{}
			for _, a := range w.queriesSince(n) {
				if !a.tcp {
					same[fmt.Sprint(a.to, a.name, a.qtype)]++
				}
			}
			for k, v := range same {
				assert.LessOrEqual(t, v, 3, k)
			}
		}
	})
}

const cycle = `
. served 198.41.0.4
tld. delegated 192.0.2.1
  a NS ns.b
  b NS ns.c
  c NS ns.a
  self NS ns.self
  one NS ns.two
  two NS ns.one
  three NS ns.one
  www A 192.0.2.80
`

// TestResolverFailsCyclicZonesAtOnce is TsuNAME: two zones whose servers have names in each other.
func TestResolverFailsCyclicZonesAtOnce(t *testing.T) {
	bubble(t, cycle, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		for _, q := range []string{"www.self.tld. A", "www.one.tld. A", "www.a.tld. A", "www.three.tld. A"} {
			start, n := time.Now(), w.countQueries()
			m := w.ask(r, q)
			assert.Equal(t, "SERVFAIL", formatResponse(m), q)
			code, _ := readExtendedError(m)
			assert.NotZero(t, code)
			assert.Less(t, time.Since(start), 200*ms, q)
			assert.LessOrEqual(t, w.countQueries()-n, 20, q)
		}
		assert.Equal(t, "NOERROR www.tld. A 192.0.2.80", formatResponse(w.ask(r, "www.tld. A")))
	})
}

// TestResolverAvoidsDeadlockOfCyclicLookups has callers that each look up a name that another caller waits for.
func TestResolverAvoidsDeadlockOfCyclicLookups(t *testing.T) {
	bubble(t, cycle, func(t *testing.T, w *testNetwork) {
		for round := range 20 {
			r := w.resolver(func(r *recursor.Resolver) { r.NoMinimise = round%2 == 1 })
			if round%3 > 0 {
				w.ask(r, "www.tld. A")
			}
			start := time.Now()
			var wg sync.WaitGroup
			for i, q := range []string{"www.a.tld. A", "www.b.tld. A", "www.c.tld. A", "www.one.tld. A", "www.two.tld. A", "ns.a.tld. A", "ns.b.tld. A", "ns.c.tld. A", "ns.one.tld. A", "ns.two.tld. AAAA", "www.three.tld. A", "www.self.tld. A"} {
				for range 3 {
					wg.Go(func() {
						time.Sleep(time.Duration(i*round%7) * 3 * ms)
						assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, q)), q)
					})
				}
			}
			wg.Wait()
			assert.Less(t, time.Since(start), 500*ms, "round %d", round)
			_ = r.Close()
		}
	})
}

// inFlight returns the largest number of queries to addresses that waited for answers at the same time. Answers take
// rtt.
func (w *testNetwork) inFlight(rtt time.Duration, n int, to ...string) (most int) {
	var at []time.Duration
	for _, a := range w.queriesSince(n) {
		if slices.Contains(to, a.to.String()) {
			at = append(at, a.at)
		}
	}
	slices.Sort(at)
	first := 0
	for i, t := range at {
		for t-at[first] >= rtt {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// TestInFlightLimitsQueriesPerServerAndZone is DNSBomb (CVE-2024-33655): one server collects many queries and
// answers all at once.
func TestInFlightLimitsQueriesPerServerAndZone(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
  www A 192.0.2.80
many. delegated 192.0.3.1 192.0.3.2 192.0.3.3 192.0.3.4 192.0.3.5 192.0.3.6 192.0.3.7 192.0.3.8
`, func(t *testing.T, w *testNetwork) {
		many := []string{"192.0.3.1", "192.0.3.2", "192.0.3.3", "192.0.3.4", "192.0.3.5", "192.0.3.6", "192.0.3.7", "192.0.3.8"}
		w.updateServers("192.0.2.1 "+strings.Join(many, " "), func(s *server) { s.rtt = 100 * ms })
		r := w.resolver(noHedges)
		for i := range 40 {
			w.ask(r, fmt.Sprintf("n%d.example. A", i))
			w.ask(r, fmt.Sprintf("n%d.many. A", i))
		}
		flood := func(zone string, questions int) {
			var wg sync.WaitGroup
			for i := range questions {
				wg.Go(func() { assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, fmt.Sprintf("f%d.%s A", i, zone)))) })
			}
			wg.Wait()
		}
		n := len(w.queriesSince(0))
		start := time.Now()
		flood("example.", 500)
		most := w.inFlight(100*ms, n, "192.0.2.1")
		assert.LessOrEqual(t, most, 64)
		assert.Greater(t, most, 50)
		assert.Less(t, time.Since(start), 2*time.Second)
		n = len(w.queriesSince(0))
		flood("many.", 1500)
		most = w.inFlight(100*ms, n, many...)
		assert.LessOrEqual(t, most, 256)
		assert.Greater(t, most, 200)
		assert.Zero(t, r.Stats().InFlight)
	})
}

func TestDeadServerDelaysNoOtherZone(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	bubble(t, small+"\ndead. delegated 192.0.3.1\n", func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.3.1", silent)
		r := w.resolver()
		w.ask(r, "mail.example. A")
		w.ask(r, "x.victim. A")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() { _, _ = w.exchange(ctx, r, fmt.Sprintf("n%d.dead. A", i)) })
		}
		time.Sleep(100 * ms)
		start := time.Now()
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		assert.Equal(t, 10*ms, time.Since(start))
		w.withLock(func() { assert.LessOrEqual(t, w.maxOpen, 1200, "sockets") })
		cancel()
		wg.Wait()
	})
}

func TestDeadZoneFailsWithin5SecondsAndBacksOff(t *testing.T) {
	for _, n := range []int{1, 2, 4, 13} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			var all []string
			for i := range n {
				all = append(all, fmt.Sprintf("192.0.3.%d", i+1))
			}
			bubble(t, small+"\ndead. delegated "+strings.Join(all, " ")+"\n", func(t *testing.T, w *testNetwork) {
				w.setFault(strings.Join(all, " "), silent)
				r := w.resolver()
				w.ask(r, "www.example. A")
				before := w.countQueries("198.41.0.4")
				start := time.Now()
				m := w.ask(r, "www.dead. A")
				assert.Equal(t, "SERVFAIL", formatResponse(m))
				code, _ := readExtendedError(m)
				assert.Contains(t, []uint16{dns.ExtendedErrorCodeNoReachableAuthority, dns.ExtendedErrorCodeNetworkError}, code)
				took := time.Since(start)
				assert.LessOrEqual(t, took, 5*time.Second)
				cost := w.countQueries(all...)
				t.Logf("%d dead servers: %d queries in %v", n, cost, took)
				assert.LessOrEqual(t, cost, min(3*n, 32))
				assert.GreaterOrEqual(t, cost, min(n, 10), "each waiting query gets a slot")
				for i := range 40 { // the zone is in backoff, and its parent has no new delegation
					assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, fmt.Sprintf("n%d.dead. A", i))))
					time.Sleep(110 * ms)
				}
				assert.Equal(t, cost, w.countQueries(all...))
				assert.Equal(t, 1, w.countQueries("198.41.0.4")-before)
				time.Sleep(time.Second)
				w.setFault(strings.Join(all, " "), nil)
				assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "nx.dead. A")), "after the backoff the zone is queried again")
			})
		})
	}
}

// TestClientRetriesFailureAfter5SecondsThenEvery20 requires RFC 9520 §3.2 of the Client.
func TestClientRetriesFailureAfter5SecondsThenEvery20(t *testing.T) {
	bubble(t, small+"\ndead. delegated 192.0.3.1\n", func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.3.1", respondRcode(dns.RcodeServerFailure))
		r := w.resolver()
		c := &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}
		defer c.Close()
		for range 1800 {
			m, _, err := c.ExchangeContext(t.Context(), parseQuestion("www.dead. A"), "")
			require.NoError(t, err)
			require.Equal(t, dns.RcodeServerFailure, m.Rcode)
			time.Sleep(time.Second)
		}
		t.Logf("%d queries in half an hour", w.countQueries("192.0.3.1"))
		assert.LessOrEqual(t, w.countQueries("192.0.3.1"), 4*(3+1800/20), "a question after 5, 10, 20, 20 ... seconds, and a query for the zone's own NS records")
	})
}

// TestCacheExpiresByWallClock requires that expiry times have no monotonic clock reading. The monotonic clock may
// stop while a machine sleeps, and Go prefers it in comparisons.
func TestCacheExpiresByWallClock(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		w.ask(r, "www.example. A")
		w.ask(r, "none.example. A")
		all := recursor.ExpiryTimes(r)
		assert.NotEmpty(t, all)
		for _, at := range all {
			assert.Equal(t, at.Round(0).String(), at.String())
		}
	})
}

func TestMaxBytesBoundsMemoryForAnyQuestions(t *testing.T) {
	names := 40_000
	if testing.Short() || doubles.RaceEnabled {
		names = 8_000
	}
	bubble(t, ". served 198.41.0.4\nexample. delegated 192.0.2.1\n", func(t *testing.T, w *testNetwork) {
		w.quiet = true
		pad := strings.Repeat("x", 200)
		// Every name has a zone, servers and records of its own.
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
			labels := dns.SplitDomainName(q.name)
			if len(labels) < 2 {
				return r
			}
			sub := labels[len(labels)-2] + ".example."
			h := 0
			for _, c := range labels[len(labels)-2] {
				h = (h*31 + int(c)) % (1 << 20)
			}
			return respondWith(fmt.Sprintf("referral | %[1]s NS ns.%[1]s | ns.%[1]s A 44.%d.%d.%d", sub, 64+h>>16, h>>8&255, h&255))(q, r)
		})
		w.other = func(netip.Addr) *server {
			return &server{change: func(q query, r *dns.Msg) *dns.Msg {
				return respondWith(fmt.Sprintf("%s A 192.0.2.80; %[1]s RRSIG A 8 3 300 20300101000000 20200101000000 1 example. AAAA | | big.%[1]s TXT %s", q.name, pad))(q, r)
			}}
		}
		r := w.resolver(func(r *recursor.Resolver) { r.MaxBytes = 1 << 20 })
		var most int64
		for i := range names {
			w.ask(r, fmt.Sprintf("www.n%d.example. A", i))
			if i%100 == 0 {
				s := r.Stats()
				most = max(most, s.Bytes)
				w.withLock(func() { // the testNetwork forgets its servers, too
					for a := range w.servers {
						if a.As4()[0] == 100 {
							delete(w.servers, a)
						}
					}
				})
			}
		}
		s := r.Stats()
		assert.EqualValues(t, 1<<20, s.MaxBytes)
		assert.LessOrEqual(t, most, s.MaxBytes)
		assert.Greater(t, most, s.MaxBytes/4)
		assert.Zero(t, s.Failures)
		n := w.countQueries()
		w.ask(r, "www.new.example. A")
		assert.LessOrEqual(t, w.countQueries()-n, 3, "data in use stays in the cache")
	})
}

func TestValidateNamesInvalidFields(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		for name, set := range map[string]func(*recursor.Resolver){
			"MaxBytes":           func(r *recursor.Resolver) { r.MaxBytes = 1 },
			"BudgetPercent":      func(r *recursor.Resolver) { r.Hedge.BudgetPercent = 101 },
			"Percentile":         func(r *recursor.Resolver) { r.Hedge.Percentile = 100 },
			"MaxPerSecond":       func(r *recursor.Resolver) { r.Hedge.MaxPerSecond = -1 },
			"Queries":            func(r *recursor.Resolver) { r.Limits.Queries = -1 },
			"ChainQueries":       func(r *recursor.Resolver) { r.Limits.ChainQueries = -1 },
			"ServerNames":        func(r *recursor.Resolver) { r.Limits.ServerNames = -1 },
			"ServerNamesPerZone": func(r *recursor.Resolver) { r.Limits.ServerNamesPerZone = -1 },
			"Referrals":          func(r *recursor.Resolver) { r.Limits.Referrals = -1 },
			"Aliases":            func(r *recursor.Resolver) { r.Limits.Aliases = -1 },
			"InFlight":           func(r *recursor.Resolver) { r.Limits.InFlight = -1 },
			"ZoneInFlight":       func(r *recursor.Resolver) { r.Limits.ZoneInFlight = -1 },
			"Hints":              func(r *recursor.Resolver) { r.Hints = []netip.Addr{{}} },
			"Zones": func(r *recursor.Resolver) {
				r.Zones = map[string][]netip.AddrPort{"a..b": {netip.MustParseAddrPort("192.0.2.1:53")}}
			},
			"NoIPv6": func(r *recursor.Resolver) { r.NoIPv4, r.NoIPv6 = true, true },
		} {
			r := w.resolver(set)
			_, err := w.exchange(t.Context(), r, "www.example. A")
			assert.ErrorContains(t, err, name)
		}
		assert.Zero(t, w.countQueries())
	})
}

func TestResolverReturnsErrorForInvalidMessage(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		for name, change := range map[string]func(*dns.Msg){
			"no question":   func(m *dns.Msg) { m.Question = nil },
			"two questions": func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) },
			"opcode":        func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate },
			"AXFR":          func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR },
			"IXFR":          func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeIXFR },
			"OPT":           func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeOPT },
			"MAILB":         func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeMAILB },
			"bad name":      func(m *dns.Msg) { m.Question[0].Name = strings.Repeat("a", 64) + ".example." },
			"long name":     func(m *dns.Msg) { m.Question[0].Name = strings.Repeat("abcdefghi.", 26) },
		} {
			m := parseQuestion("www.example. A")
			change(m)
			_, _, err := r.ExchangeContext(t.Context(), m, "")
			assert.Error(t, err, name)
		}
		_, _, err := r.ExchangeContext(t.Context(), parseQuestion("www.example. A"), "192.0.2.1:53")
		assert.Error(t, err, "an address")
		assert.Zero(t, w.countQueries())
	})
}

func TestResolverRefusesOtherClasses(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		c := &dnshedge.Client{Exchanger: w.resolver(), Cache: new(dnshedge.Cache)}
		defer c.Close()
		for question, want := range map[dns.Question]int{
			{Name: "version.bind.", Qtype: dns.TypeTXT, Qclass: dns.ClassCHAOS}: dns.RcodeRefused,
			{Name: "www.example.", Qtype: dns.TypeA, Qclass: dns.ClassNONE}:     dns.RcodeRefused,
			{Name: "www.example.", Qtype: dns.TypeAXFR, Qclass: dns.ClassINET}:  dns.RcodeRefused,
			{Name: "www.example.", Qtype: dns.TypeOPT, Qclass: dns.ClassINET}:   dns.RcodeFormatError,
			{Name: "www.example.", Qtype: dns.TypeTSIG, Qclass: dns.ClassINET}:  dns.RcodeFormatError,
			{Name: "www.example.", Qtype: dns.TypeTKEY, Qclass: dns.ClassINET}:  dns.RcodeFormatError,
			{Name: "www.example.", Qtype: dns.TypeMAILA, Qclass: dns.ClassINET}: dns.RcodeFormatError,
			{Name: "www.example.", Qtype: dns.TypeMAILB, Qclass: dns.ClassINET}: dns.RcodeFormatError,
			{Name: "www.example.", Qtype: 128, Qclass: dns.ClassINET}:           dns.RcodeFormatError, // NXNAME (RFC 9824)
		} {
			for range 2 {
				r := serve(t, c, &dns.Msg{MsgHdr: dns.MsgHdr{Id: 7, RecursionDesired: true}, Question: []dns.Question{question}})
				assert.Equal(t, want, r.Rcode, question.String())
			}
		}
		assert.Zero(t, w.countQueries())
	})
}

func TestCloseEndsAllQuestions(t *testing.T) {
	bubble(t, cycle+"\ndead. delegated 192.0.3.1 192.0.3.2\n", func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.3.1 192.0.3.2", silent)
		r := w.resolver()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				_, err := w.exchange(t.Context(), r, fmt.Sprintf("n%d.dead. A", i))
				assert.ErrorIs(t, err, net.ErrClosed)
			})
		}
		time.Sleep(50 * ms)
		synctest.Wait()
		assert.Positive(t, r.Stats().InFlight)
		start := time.Now()
		require.NoError(t, r.Close())
		assert.Zero(t, time.Since(start))
		wg.Wait()
		w.withLock(func() { assert.Zero(t, w.open, "sockets") })
		_, err := w.exchange(t.Context(), r, "www.tld. A")
		require.ErrorIs(t, err, net.ErrClosed)
		require.NoError(t, r.Close())
		n := w.countQueries()
		time.Sleep(time.Minute)
		assert.Equal(t, n, w.countQueries())
	})
}

func TestCanceledQuestionReturnsCauseAndLeavesNothing(t *testing.T) {
	bubble(t, small+"\ndead. delegated 192.0.3.1 192.0.3.2\nlost. served 192.0.3.4\n", func(t *testing.T, w *testNetwork) {
		w.server("198.41.0.4").zones[0].add(t, "lost. NS ns.dead.")
		w.setFault("192.0.3.1 192.0.3.2", silent)
		r := w.resolver()
		cause := errors.New("left")
		for _, q := range []string{"www.dead. A", "www.lost. A"} {
			ctx, cancel := context.WithCancelCause(t.Context())
			start := time.Now()
			time.AfterFunc(70*ms, func() { cancel(cause) })
			_, err := w.exchange(ctx, r, q)
			require.ErrorIs(t, err, cause)
			assert.Equal(t, 70*ms, time.Since(start))
		}
		time.Sleep(12 * time.Second)
		w.withLock(func() { assert.Zero(t, w.open) })
		assert.Zero(t, r.Stats().InFlight)
	})
}

func TestResolverFailsQuestionWithoutFreeSlot(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
`, func(t *testing.T, w *testNetwork) {
		r := w.resolver(limits(recursor.Limits{InFlight: 2}))
		require.Equal(t, dns.RcodeNameError, w.ask(r, "none.example. A").Rcode)
		w.setFault("192.0.2.1", silent)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 3 * ms)
				m, err := w.exchange(context.Background(), r, fmt.Sprintf("n%d.example. A", i))
				if assert.NoError(t, err) {
					assert.Equal(t, dns.RcodeServerFailure, m.Rcode)
				}
			})
		}
		wg.Wait()
	})
}

// TestResolverSendsFullNameForSecondAddressType has a zone whose ten servers have names five labels deep in ten
// other zones, and none has an address. Each of five names costs six queries for A records. It costs one query for
// AAAA records, because the zone's server has got the full name before.
func TestResolverSendsFullNameForSecondAddressType(t *testing.T) {
	text := ". served 198.41.0.4\nother. delegated 192.0.2.2\nattack. delegated 192.0.2.1\n"
	for i := range 10 {
		text += fmt.Sprintf("  sub NS ns.a.b.c.d.e%d.other.\n", i)
	}
	for i := range 10 {
		text += fmt.Sprintf("e%d.other. delegated 192.0.3.%d\n  ns.a.b.c.d TXT any\n", i, i+1)
	}
	bubble(t, text, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, "www.sub.attack. A")))
		assert.LessOrEqual(t, w.countQueries(), 4+5*(6+1))
		for i := range 10 {
			asked := w.questions(fmt.Sprintf("192.0.3.%d", i+1))
			if len(asked) > 0 {
				assert.Equal(t, fmt.Sprintf("ns.a.b.c.d.e%d.other. AAAA", i), asked[len(asked)-1])
			}
			for _, other := range asked {
				assert.True(t, strings.HasSuffix(other, " A") || strings.HasPrefix(other, "ns."), other)
			}
		}
		for _, question := range append(w.questions("192.0.2.2"), w.questions("198.41.0.4")...) {
			assert.NotContains(t, question, "d.e", "a parent was asked for more labels than the name of the zone")
		}
	})
}
