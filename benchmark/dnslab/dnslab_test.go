package dnslab_test

import (
	"context"
	"errors"
	"flag"
	"math"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/dnslab"
	"github.com/gohedge/hedge/benchmark/internal/helper"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

var (
	kernel  = flag.Bool("kernel", false, "measure over kernel sockets and in real time, not in memory and fake time")
	samples = flag.Int("samples", dnslab.DefaultLookups, "of each contender")
	seeds   = flag.Int("seeds", 3, "simulated networks; ratios are medians over them")
)

func TestMain(m *testing.M) {
	helper.RunIfHelper()
	os.Exit(m.Run())
}

const detectionTime = time.Second // time in which a contender detects a dead server

// latencyAt returns quantile q of the latencies of the answered calls, with q from 0 to 1.
func latencyAt(r lab.Row, q float64) time.Duration {
	return latency.Quantile(latency.SortedLatencies(r.Calls), q)
}

func countFailed(r lab.Row) int { return len(r.Calls) - len(latency.SortedLatencies(r.Calls)) }

// extraOf returns the queries beyond one for each lookup, as a share of all lookups.
func extraOf(r lab.Row) float64 { return r.SentPerCall() - 1 }

// meanOf returns the mean of the latencies and their standard deviation.
func meanOf(r lab.Row) (mean, deviation time.Duration) {
	all := latency.SortedLatencies(r.Calls)
	if len(all) == 0 {
		return 0, 0
	}
	var sum, squares float64
	for _, d := range all {
		sum += float64(d)
		squares += float64(d) * float64(d)
	}
	n := float64(len(all))
	return time.Duration(sum / n), time.Duration(math.Sqrt(max(0, squares/n-sum*sum/n/n)))
}

// A runs value has the rows of one run for each seed, by contender.
type runs []map[string]lab.Row

// runLab runs the lab once and returns the rows by contender.
func runLab(t *testing.T, conf lab.Config) map[string]lab.Row {
	t.Helper()
	rows, err := dnslab.Run(context.Background(), conf)
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	out := make(map[string]lab.Row)
	for _, r := range rows {
		out[r.Contender] = r
		mean, dev := meanOf(r)
		t.Logf("%-13s %-12s n %d errors %d p50 %v p95 %v p99 %v p99.9 %v mean %v σ %v extra %.2f %% hedges %d won %d denied %d", conf.Scenario, r.Contender, len(r.Calls), countFailed(r),
			latencyAt(r, .5).Round(time.Microsecond), latencyAt(r, .95).Round(time.Microsecond), latencyAt(r, .99).Round(time.Microsecond), latencyAt(r, .999).Round(time.Microsecond),
			mean.Round(time.Microsecond), dev.Round(time.Microsecond), 100*extraOf(r), r.Hedges, r.Wins, r.Denied)
	}
	return out
}

// measure runs the lab in a scenario with each seed.
func measure(t *testing.T, scenario, transport string, strategies ...string) (all runs) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	// State of the whole process must not be created in a bubble.
	dnstest.Certificate()
	doubles.PreloadNetConfig()
	for seed := range *seeds {
		conf := lab.Config{Scenario: scenario, Transport: transport, Contenders: strategies, Calls: *samples, Seed: uint64(seed), Memory: !*kernel}
		if *kernel {
			all = append(all, runLab(t, conf))
			continue
		}
		synctest.Test(t, func(t *testing.T) { all = append(all, runLab(t, conf)) })
	}
	return all
}

// ratio returns the median over all runs of the ratio of a figure of contender a to that of contender b.
func (all runs) ratio(a, b string, f func(lab.Row) time.Duration) float64 {
	var out []float64
	for _, r := range all {
		out = append(out, float64(f(r[a]))/float64(f(r[b])))
	}
	slices.Sort(out)
	return out[len(out)/2]
}

func quantile(q float64) func(lab.Row) time.Duration {
	return func(r lab.Row) time.Duration { return latencyAt(r, q) }
}

const burst = 20 // hedges that the budget can save

// assertWithinBudget asserts that hedges are at most the given share of all queries, in excess of one burst.
func (all runs) assertWithinBudget(t *testing.T, share float64) {
	t.Helper()
	for _, r := range all {
		ours := r["hedge"]
		assert.LessOrEqual(t, extraOf(ours), (share*float64(ours.Sent)+burst)/float64(len(ours.Calls)))
	}
}

func (all runs) assertAllAnswered(t *testing.T) {
	t.Helper()
	for _, r := range all {
		assert.Zero(t, countFailed(r["hedge"]))
	}
}

func TestLossDoesNotShow(t *testing.T) {
	all := measure(t, "loss2", "udp", "single", "hedge", "net-resolver")
	all.assertAllAnswered(t)
	all.assertWithinBudget(t, 0.05)
	assert.LessOrEqual(t, all.ratio("hedge", "single", quantile(.99)), 0.25, "which sends a lost query again after 200 ms")
	assert.LessOrEqual(t, all.ratio("hedge", "net-resolver", quantile(.99)), 0.03)
}

// measureUnderLoad runs the lab in a scenario with 24 lookups in flight.
func measureUnderLoad(t *testing.T, scenario string) (all runs) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for seed := range *seeds {
		synctest.Test(t, func(t *testing.T) {
			all = append(all, runLab(t, lab.Config{Scenario: scenario, Contenders: []string{"hedge"}, Calls: 4 * *samples, Seed: uint64(seed), Memory: true, Workers: 24}))
		})
	}
	return all
}

// A retransmission after 50 ms, as by unbound, gives 70 ms.
func TestLossDoesNotShowUnderLoad(t *testing.T) {
	all := measureUnderLoad(t, "loss2")
	all.assertAllAnswered(t)
	all.assertWithinBudget(t, 0.05)
	for _, r := range all {
		assert.LessOrEqual(t, latencyAt(r["hedge"], .99), 50*time.Millisecond)
		assert.LessOrEqual(t, latencyAt(r["hedge"], .999), 100*time.Millisecond)
	}
}

func TestSpikesShrinkUnderLoad(t *testing.T) {
	all := measureUnderLoad(t, "spikes")
	all.assertAllAnswered(t)
	all.assertWithinBudget(t, 0.05)
	for _, r := range all {
		assert.LessOrEqual(t, latencyAt(r["hedge"], .99), 70*time.Millisecond)
	}
}

func TestADeadPrimaryDoesNotShow(t *testing.T) {
	all := measure(t, "dead-primary", "udp", "single", "hedge")
	all.assertAllAnswered(t)
	for _, r := range all {
		ours := r["hedge"]
		ours.Calls = slices.DeleteFunc(ours.Calls, func(c latency.Call) bool { return c.Start < detectionTime })
		assert.LessOrEqual(t, latencyAt(ours, .99), 30*time.Millisecond, "1.5 times a healthy server's")
	}
}

func TestADeadGroupIsNotHammered(t *testing.T) {
	all := measure(t, "dead", "udp", "hedge")
	all.assertWithinBudget(t, 0.05)
	for _, r := range all {
		assert.Equal(t, len(r["hedge"].Calls), countFailed(r["hedge"]))
	}
}

func TestKernelSocketsAreHedgedToo(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, transport := range []string{"udp", "tls", "https"} {
		r := runLab(t, lab.Config{Scenario: "loss2", Transport: transport, Contenders: []string{"single", "hedge"}, Calls: 400, Seed: 1})
		assert.Zero(t, countFailed(r["single"]))
		ours := r["hedge"]
		assert.Zero(t, countFailed(ours))
		// Not Extra: on a busy machine an answer may be so late that the query is sent again, which is free.
		assert.LessOrEqual(t, float64(ours.Hedges), 0.05*float64(ours.Sent)+burst, transport)
	}
}

func TestRunInMemoryNeedsNoRoot(t *testing.T) {
	rows, err := dnslab.Run(context.Background(), lab.Config{Memory: true, Calls: 64, Contenders: []string{"single", "hedge", "miekg", "net-resolver"}})
	require.NoError(t, err)
	for _, r := range rows {
		assert.Zero(t, countFailed(r), r.Contender)
		assert.Equal(t, 64, len(r.Calls))
		assert.GreaterOrEqual(t, latencyAt(r, 0), 19*time.Millisecond)
	}
}

func TestUnknownNamesAreErrors(t *testing.T) {
	_, err := dnslab.Run(context.Background(), lab.Config{Scenario: "sunny"})
	require.ErrorContains(t, err, `"sunny"`)
	_, err = dnslab.Run(context.Background(), lab.Config{Memory: true, Contenders: []string{"luck"}})
	require.ErrorContains(t, err, `"luck"`)
}
