package virtual_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

const ms = time.Millisecond

func referenceModel() virtual.LatencyModel {
	return virtual.AddStragglers(virtual.LognormalLatency(5*ms, 2*ms), 0.05, 10)
}

// newUnhedged returns the policy without hedges.
func newUnhedged() virtual.Policy { return virtual.StaticDelays{} }

// skipIfShort skips a simulation of hundreds of thousands of calls in one goroutine, which the race detector slows
// down.
func skipIfShort(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation")
	}
}

func newStatic(d ...time.Duration) func() virtual.Policy {
	return func() virtual.Policy { return virtual.StaticDelays(d) }
}

func meanLatency(calls []latency.Call) time.Duration {
	var sum time.Duration
	for _, c := range calls {
		sum += c.Latency
	}
	return sum / time.Duration(len(calls))
}

func countHedges(calls []latency.Call) (n int) {
	for _, c := range calls {
		n += int(c.Hedges)
	}
	return n
}

func latencies(calls []latency.Call) []time.Duration {
	all := make([]time.Duration, len(calls))
	for i, c := range calls {
		all[i] = c.Latency
	}
	slices.Sort(all)
	return all
}

func TestSameSeedSameAnswer(t *testing.T) {
	w := virtual.Simulation{Workers: 20, Requests: 5000, Model: referenceModel(), Hosts: 3}
	a := w.Run(t.Context(), 7, func() virtual.Policy { return virtual.NewBhopePolicy(100) }, nil)
	b := w.Run(t.Context(), 7, func() virtual.Policy { return virtual.NewBhopePolicy(100) }, nil)
	assert.Equal(t, a, b)
	assert.NotEqual(t, a, w.Run(t.Context(), 8, newUnhedged, nil))
}

func TestPoliciesMeetTheSameLatencies(t *testing.T) {
	w := virtual.Simulation{Rate: 1000, Requests: 20_000, Model: referenceModel()}
	byIndex := func(calls []latency.Call) []latency.Call {
		slices.SortFunc(calls, func(a, b latency.Call) int { return int(a.Index - b.Index) })
		return calls
	}
	bare := byIndex(w.Run(t.Context(), 1, newUnhedged, nil))
	hedged := byIndex(w.Run(t.Context(), 1, newStatic(10*ms), nil))
	for i, c := range hedged {
		require.Equal(t, bare[i].Start, c.Start)
		if c.Hedges == 0 {
			require.Equal(t, bare[i].Latency, c.Latency)
		} else {
			require.LessOrEqual(t, c.Latency, bare[i].Latency)
		}
	}
}

func TestModelsHaveTheirMoments(t *testing.T) {
	skipIfShort(t)
	run := func(m virtual.LatencyModel) []latency.Call {
		return virtual.Simulation{Rate: 1000, Requests: 200_000, Model: m}.Run(t.Context(), 3, newUnhedged, nil)
	}
	calls := run(virtual.LognormalLatency(5*ms, 2*ms))
	assert.InEpsilon(t, 5*ms, meanLatency(calls), 0.01)
	var sum float64
	for _, c := range calls {
		sum += math.Pow(float64(c.Latency-5*ms), 2)
	}
	assert.InEpsilon(t, 2*ms, math.Sqrt(sum/float64(len(calls))), 0.02)
	assert.InEpsilon(t, 7250*time.Microsecond, meanLatency(run(referenceModel())), 0.01)

	sorted := latencies(run(virtual.ParetoLatency(2*ms, 1.5)))
	assert.InEpsilon(t, float64(2*ms)*math.Pow(0.01, -1/1.5), latency.Quantile(sorted, 0.99), 0.03)

	sorted = latencies(run(virtual.UniformLatency(20*ms, 0.01)))
	assert.GreaterOrEqual(t, sorted[0], 19800*time.Microsecond)
	assert.LessOrEqual(t, sorted[len(sorted)-1], 20200*time.Microsecond)
}

// Pollaczek and Khinchine: with one server, random arrivals and constant
// service s at load ρ, the mean wait is s·ρ/(2(1−ρ)).
func TestQueueTimesFollowPollaczekKhinchine(t *testing.T) {
	skipIfShort(t)
	const load = 0.7
	for _, shared := range []bool{true, false} {
		w := virtual.Simulation{
			Rate: load * 1000, Requests: 400_000, Model: virtual.UniformLatency(ms, 0),
			Queue: &virtual.QueueConfig{Servers: 1, Shared: shared},
		}
		want := float64(ms) * (1 + load/(2*(1-load)))
		assert.InEpsilon(t, want, meanLatency(w.Run(t.Context(), 1, newUnhedged, nil)), 0.03)
	}
	// Twenty queues, each with a twentieth of the arrivals, are twenty such systems.
	w := virtual.Simulation{
		Rate: 20 * load * 1000, Requests: 1_000_000, Model: virtual.UniformLatency(ms, 0), Queue: &virtual.QueueConfig{Servers: 20},
	}
	assert.InEpsilon(t, float64(ms)*(1+load/(2*(1-load))), meanLatency(w.Run(t.Context(), 1, newUnhedged, nil)), 0.03)
}

func TestQueueCancelEndsTheWorkOnCancelledAttempts(t *testing.T) {
	run := func(cancel bool) []latency.Call {
		return virtual.Simulation{
			Rate: 0.6 * 20 / 0.00725, Requests: 100_000, Model: referenceModel(), Queue: &virtual.QueueConfig{Servers: 20, Cancel: cancel},
		}.Run(t.Context(), 1, newStatic(20*ms), nil)
	}
	stops, goesOn := run(true), run(false)
	assert.Len(t, stops, 100_000)
	assert.Len(t, goesOn, 100_000, "every call ends though losers are still served")
	assert.Less(t, meanLatency(stops), meanLatency(goesOn))
}

func TestLimitedQueueDropsCancelledAttemptsAndRejectsHedges(t *testing.T) {
	run := func(load float64, q virtual.QueueConfig) []latency.Call {
		q.Servers = 20
		return virtual.Simulation{Rate: load * 20 / 0.00725, Requests: 100_000, Model: referenceModel(), Queue: &q}.Run(t.Context(), 1, newStatic(20*ms), nil)
	}
	deaf, limited := run(0.5, virtual.QueueConfig{}), run(0.5, virtual.QueueConfig{Limited: true})
	require.Len(t, limited, 100_000, "every call ends though some hedges were turned away")
	assert.Less(t, meanLatency(limited), 8*meanLatency(deaf)/10)
	assert.NotContains(t, countByWinner(limited), -1)

	// Three times as many calls as the servers can do: every line is long.
	won := 0
	for _, c := range run(3, virtual.QueueConfig{Limited: true, Cancel: true}) {
		if c.Winner > 0 {
			won++
		}
	}
	assert.Less(t, won, 1000, "after the first moments every hedge is turned away")
}

func countByWinner(calls []latency.Call) map[int]int {
	all := make(map[int]int)
	for _, c := range calls {
		all[int(c.Winner)]++
	}
	return all
}

func TestCallsFailAtTheirTimeout(t *testing.T) {
	w := virtual.Simulation{Workers: 2, Requests: 100, Timeout: 50 * ms, Model: virtual.HangUntil(referenceModel(), time.Hour)}
	for _, c := range w.Run(t.Context(), 1, newStatic(10*ms), nil) {
		assert.Equal(t, latency.Call{Start: c.Start, Latency: 50 * ms, Index: c.Index, Winner: -1, Hedges: 1}, c)
	}
}

func TestMixByRequestSlowsTheHedgeAsWell(t *testing.T) {
	w := virtual.Simulation{Workers: 2, Requests: 10_000, Model: virtual.CacheLatency(virtual.UniformLatency(ms, 0), virtual.UniformLatency(100*ms, 0), 0.2)}
	calls := w.Run(t.Context(), 1, newStatic(10*ms), nil)
	assert.InEpsilon(t, 0.2, float64(countHedges(calls))/10_000, 0.05)
	for _, c := range calls {
		assert.Zero(t, c.Winner)
	}
}

func TestEpisodesBeginAnew(t *testing.T) {
	policies := 0
	w := virtual.Simulation{Workers: 4, Requests: 50, Episodes: 10, Model: referenceModel()}
	calls := w.Run(t.Context(), 1, func() virtual.Policy { policies++; return virtual.StaticDelays{} }, nil)
	assert.Equal(t, 10, policies)
	assert.Len(t, calls, 500)
	assert.NotEqual(t, calls[:50], calls[50:100], "each has draws of its own")
	for _, c := range calls {
		assert.Less(t, c.Index, int32(50))
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := virtual.Simulation{Workers: 4, Requests: 1_000_000, Model: referenceModel()}
	calls := w.Run(ctx, 1, newUnhedged, func(n int) {
		if n > 0 {
			cancel()
		}
	})
	assert.NotEmpty(t, calls)
	assert.Less(t, len(calls), 1_000_000)
}

func TestBestStaticDelaysUseTheBudgetAndBeatOtherDelays(t *testing.T) {
	skipIfShort(t)
	w := virtual.Simulation{Workers: 20, Requests: 50_000, Model: referenceModel()}
	for n := 1; n <= 2; n++ {
		best := w.BestStaticDelays(1, n, 0.08, 0.999)
		require.Len(t, best, n)
		calls := w.Run(t.Context(), 1, newStatic(best...), nil)
		got := float64(countHedges(calls)) / 50_000
		assert.LessOrEqual(t, got, 0.08)
		assert.Greater(t, got, 0.079)
		for _, other := range [][]time.Duration{{12 * ms, 30 * ms}, {15 * ms, 20 * ms}} {
			rival := w.Run(t.Context(), 1, newStatic(other[:n]...), nil)
			require.LessOrEqual(t, countHedges(rival), 4000)
			assert.LessOrEqual(t, latency.Quantile(latencies(calls), 0.999), latency.Quantile(latencies(rival), 0.999))
		}
	}
}

func TestBestStaticDelaysReplayTheTimeline(t *testing.T) {
	m := virtual.SwitchByTime(5*time.Second, 10*time.Second, virtual.ScaleLatency(referenceModel(), 3), referenceModel())
	w := virtual.Simulation{Rate: 1000, Requests: 15_000, Model: m}
	best := w.BestStaticDelays(1, 1, 0.05, 0.99)
	calls := w.Run(t.Context(), 1, newStatic(best...), nil)
	assert.InEpsilon(t, 0.05, float64(countHedges(calls))/15_000, 0.01)
}
