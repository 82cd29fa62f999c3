package recursor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// halfGlued returns a zone with two servers: one with glue, and one whose name is in a zone of its own.
func halfGlued(i int) string {
	return fmt.Sprintf("h%[1]d. delegated 100.1.%[2]d.%[3]d\n  ns A 100.3.%[2]d.%[3]d\nz%[1]d. served 100.2.%[2]d.%[3]d 100.3.%[2]d.%[3]d\n  www A 192.0.2.80\n", i, i/200, 1+i%200)
}

// delegate adds the delegation of the zone halfGlued(i) to the root.
func delegate(w *testNetwork, i int) {
	root := w.server("198.41.0.4").zones[0]
	root.put(record(fmt.Sprintf("z%[1]d. NS ns1.z%[1]d.", i)))
	root.put(record(fmt.Sprintf("z%[1]d. NS ns.h%[1]d.", i)))
	root.put(record(fmt.Sprintf("ns1.z%d. A 100.2.%d.%d", i, i/200, 1+i%200)))
}

const halves = 400

// TestServerNameHedgesStayWithinBudget has hedges that look up a server name, which takes several queries.
func TestServerNameHedgesStayWithinBudget(t *testing.T) {
	var text strings.Builder
	text.WriteString(". served 198.41.0.4\n")
	for i := range halves {
		text.WriteString(halfGlued(i))
	}
	run := func(hedge recursor.Hedge) (sent int, s recursor.Stats) {
		bubble(t, text.String(), func(t *testing.T, w *testNetwork) {
			for i := range halves {
				delegate(w, i)
				w.server(fmt.Sprintf("100.2.%d.%d", i/200, 1+i%200)).rtt = []time.Duration{15, 15, 15, 190}[i%4] * ms
			}
			r := w.resolver(func(r *recursor.Resolver) { r.Hedge = hedge })
			for i := range halves {
				assert.Equal(t, "NOERROR www.z"+fmt.Sprint(i)+". A 192.0.2.80", formatResponse(w.ask(r, fmt.Sprintf("www.z%d. A", i))))
				time.Sleep(100 * ms)
			}
			time.Sleep(5 * time.Second)
			sent, s = w.countQueries(), r.Stats()
		})
		return sent, s
	}
	without, _ := run(recursor.Hedge{Off: true})
	none, s := run(recursor.Hedge{BudgetPercent: recursor.NoBudget})
	assert.Equal(t, without, none)
	assert.Zero(t, s.Hedges)
	with, s := run(recursor.Hedge{})
	t.Logf("%d queries without hedges, %d with %d hedges, %d lookups", without, with, s.Hedges, s.Lookups)
	assert.LessOrEqual(t, with-without, without*15/100+20)
	assert.EqualValues(t, with-without, s.Hedges, "each query that is sent only for a hedge counts as a hedge")
	assert.Positive(t, s.Lookups)
}

// TestResolverFollowsElevenAliasesDuringHedgedLookups requires that hedges do not count against the limits of a
// question.
func TestResolverFollowsElevenAliasesDuringHedgedLookups(t *testing.T) {
	const aliases = 11
	var text strings.Builder
	text.WriteString(". served 198.41.0.4\n")
	for i := range aliases + 1 {
		text.WriteString(halfGlued(i))
	}
	for _, rtt := range []time.Duration{10 * ms, 90 * ms, 140 * ms} {
		for _, percent := range []float64{15, 100} {
			bubble(t, text.String(), func(t *testing.T, w *testNetwork) {
				for i := range aliases + 1 {
					delegate(w, i)
					if i < aliases {
						z := w.server(fmt.Sprintf("100.2.0.%d", 1+i)).zones[0]
						delete(z.sets, fmt.Sprintf("www.z%d.", i))
						z.add(t, fmt.Sprintf("www CNAME www.z%d.", i+1))
					}
				}
				for _, s := range w.servers {
					s.rtt = rtt
				}
				queries := 0
				r := w.resolver(func(r *recursor.Resolver) {
					r.Hedge.BudgetPercent = percent
					r.Limits.Queries = 3*(aliases+1) + 2 // the number of queries without hedges
					r.Limits.ServerNames = 1
					r.Trace = &recursor.Trace{Answer: func(_ context.Context, a recursor.AnswerInfo) { queries = a.Queries }}
				})
				m := w.ask(r, "www.z0. A")
				_, text := readExtendedError(m)
				assert.Equal(t, dns.RcodeSuccess, m.Rcode, "%v, %v %%: %s", rtt, percent, text)
				if rtt > 60*ms {
					assert.Positive(t, r.Stats().Lookups)
					assert.Positive(t, queries)
				}
			})
		}
	}
}

// TestResolverContinuesHedgedLookupWhenNeeded looks up a server name as a hedge. The lookup continues with an empty
// hedge budget when no other server answers.
func TestResolverContinuesHedgedLookupWhenNeeded(t *testing.T) {
	for _, left := range []int{0, 1, 2, 3, 4, 5, 20} {
		bubble(t, ". served 198.41.0.4\nspent. delegated 192.0.2.1 192.0.2.2\n"+halfGlued(0), func(t *testing.T, w *testNetwork) {
			delegate(w, 0)
			h := w.server("198.41.0.4").zones[0] // its zone is two referrals further
			for _, name := range []string{"h0.", "ns1.h0."} {
				delete(h.sets, name)
			}
			h.put(record("h0. NS ns.far.h1."))
			h.put(record("h1. NS ns.h1."))
			h.put(record("ns.h1. A 192.0.2.7"))
			z := newZone("h1.")
			z.add(t, "ns.far A 100.1.0.1")
			w.server("192.0.2.7").zones = append(w.server("192.0.2.7").zones, z)
			r := w.resolver(func(r *recursor.Resolver) { r.Hedge.BudgetPercent = 1e-6 })
			for i := 0; r.Stats().Budget >= float64(left+1); i++ {
				w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", onlyForQuestion(fmt.Sprintf("n%d.spent.", i), silent))
				w.ask(r, fmt.Sprintf("n%d.spent. A", i))
				for j := range 3 { // otherwise it looks like an outage
					w.ask(r, fmt.Sprintf("m%d-%d.spent. A", i, j))
				}
				if !assert.Less(t, i, 100, "%+v", r.Stats()) {
					return
				}
			}
			w.setFault("100.2.0.1", silent)
			start := time.Now()
			assert.Equal(t, "NOERROR www.z0. A 192.0.2.80", formatResponse(w.ask(r, "www.z0. A")), "%d hedges left", left)
			assert.Less(t, time.Since(start), 500*ms, "%d hedges left", left)
		})
	}
}
