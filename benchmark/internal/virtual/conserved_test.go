package virtual_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/policy"
)

// fiftyHosts simulates 50 hosts with 20 requests per second each. The first host hangs for 30 s. The next three pause
// together: every ten seconds a third of their replicas stop for 300 ms. The other 46 hosts have no faults.
func fiftyHosts() virtual.Simulation {
	pausing := func(d *virtual.RandomSource, a virtual.Attempt) time.Duration {
		wait := 300*ms - a.At%(10*time.Second)
		if wait <= 0 || a.Rand(d).IntN(3) > 0 {
			return referenceModel()(d, a)
		}
		return wait + referenceModel()(d, a)
	}
	hanging := virtual.SwitchByTime(60*time.Second, 90*time.Second, virtual.HangUntil(referenceModel(), 90*time.Second), referenceModel())
	return virtual.Simulation{
		Hosts: 50, Rate: 1000, Requests: 180_000, Timeout: 5 * time.Second,
		Model: func(d *virtual.RandomSource, a virtual.Attempt) time.Duration {
			switch {
			case a.Host == 0:
				return hanging(d, a)
			case a.Host <= 3:
				return pausing(d, a)
			}
			return referenceModel()(d, a)
		},
	}
}

// The budget of one host does not change those of others: their tails are those of an earlier engine, in which each key
// started with 20 tokens of its own. fiftyBefore has the numbers of that engine, by seed.
func TestHostsDoNotPayForOneAnother(t *testing.T) {
	skipIfShort(t)
	for i, was := range fiftyBefore {
		calls := fiftyHosts().Run(context.Background(), uint64(i+1), func() virtual.Policy {
			return virtual.NewLibraryPolicy(policy.Config{
				Percentile: 0.90, MaxHedges: 2, Share: 0.10, EstimatedRPS: 100, Burst: 2 * time.Second, MinDelay: ms, MaxKeys: 4096, HasShortBucket: true,
			})
		}, nil)
		groups := map[string][]latency.Call{}
		for _, c := range calls {
			switch {
			case c.Host > 3:
				groups["others"] = append(groups["others"], c)
			case c.Host > 0:
				groups["pausing"] = append(groups["pausing"], c)
			}
		}
		p99 := func(name string) time.Duration { return latency.Quantile(latencies(groups[name]), 0.99) }
		t.Logf("seed %d: others %v, pausing %v, %d hedges", i+1, p99("others"), p99("pausing"), countHedges(calls))
		assert.InEpsilon(t, was.others, p99("others"), 0.02)
		assert.InEpsilon(t, was.pausing, p99("pausing"), 0.02)
		assert.LessOrEqual(t, countHedges(calls), was.hedges)
	}
}

var fiftyBefore = []struct {
	others, pausing time.Duration
	hedges          int
}{
	{others: 16507 * time.Microsecond, pausing: 20746 * time.Microsecond, hedges: 17223},
	{others: 16630 * time.Microsecond, pausing: 19339 * time.Microsecond, hedges: 17236},
	{others: 16483 * time.Microsecond, pausing: 20331 * time.Microsecond, hedges: 17118},
}
