package reclab_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/reclab"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

func TestMemory(t *testing.T) {
	for seed := range uint64(*seeds) {
		synctest.Test(t, func(t *testing.T) {
			r, err := reclab.Sequential(t.Context(), reclab.Config{Seed: seed + 1, Questions: *questions, Scenario: *scenario, Rate: reclab.Rate})
			require.NoError(t, err)
			t.Log(r.Contender, r.Quantile(.5), r.Quantile(.9), r.Quantile(.95), r.Quantile(.99), r.Quantile(.999), "fail", r.Failures, "sent", r.Sent(), r.UDP, r.TCP)
		})
		for _, name := range []string{"hedge", "hedge-off"} {
			synctest.Test(t, func(t *testing.T) {
				tr := new(tracer)
				conf := reclab.Config{Seed: seed + 1, Questions: *questions, Scenario: *scenario, Memory: true, Contenders: []string{name}}
				if *slowest > 0 {
					conf.Trace = tr.trace()
				}
				rows, err := reclab.Run(t.Context(), conf)
				require.NoError(t, err)
				r := rows[0]
				t.Log(r.Contender, r.Quantile(.5), r.Quantile(.9), r.Quantile(.95), r.Quantile(.99), r.Quantile(.999), "fail", r.Failures, "sent", r.Sent(), r.UDP, r.TCP, "hedges", r.Hedges, r.Wins, r.Denied)
				slices.SortFunc(r.Calls, func(a, b reclab.Call) int { return int(b.Took - a.Took) })
				for _, c := range r.Calls[:min(*slowest, len(r.Calls))] {
					text, zones := reclab.Explain(seed+1, *scenario, c.Name)
					t.Logf("%v %s %s\n%s%s", c.Took, c.Name, dns.TypeToString[c.Type], text, tr.of(c.Begun, c.Took, zones))
				}
			})
		}
	}
}

// tracer keeps what is traced.
type tracer struct {
	mu   sync.Mutex
	seen []traced
}

type traced struct {
	at   time.Time
	zone string
	name string
	text string
}

func (t *tracer) of(begun time.Time, took time.Duration, zones []string) string {
	var b strings.Builder
	for _, e := range t.seen {
		at := e.at.Sub(begun)
		if at >= 0 && at <= took && slices.ContainsFunc(zones, func(z string) bool { return dns.CountLabel(z) > 1 && dns.IsSubDomain(z, e.name) || z == e.name }) {
			fmt.Fprintf(&b, "%8.1f %s\n", at.Seconds()*1000, e.text)
		}
	}
	return b.String()
}

func (t *tracer) say(name, zone string, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = append(t.seen, traced{time.Now(), zone, name, fmt.Sprintf(format, args...)})
}

func (t *tracer) trace() *recursor.Trace {
	return &recursor.Trace{
		Attempt: func(ctx context.Context, i recursor.AttemptInfo) {
			t.say(i.Name, i.Zone, "ask  %d hedge %-5v %v %s %s of %s", i.Attempt, i.Hedge, i.Server, dns.TypeToString[i.Type], i.Name, i.Zone)
		},
		Done: func(ctx context.Context, i recursor.AttemptInfo, d time.Duration, err error) {
			t.say(i.Name, i.Zone, "done %d %v after %v: %s of %s: %v", i.Attempt, i.Server, d, i.Name, i.Zone, err)
		},
		Answer: func(ctx context.Context, i recursor.AnswerInfo) {
			t.say(i.Name, "", "answer %s: %s, %d queries, %v", i.Name, dns.RcodeToString[i.Rcode], i.Queries, i.Err)
		},
	}
}
