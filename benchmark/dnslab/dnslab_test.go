package dnslab_test

import (
	"context"
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/dnslab"
	"github.com/gohedge/hedge/internal/netsim"
)

var (
	samples = flag.Int("samples", 400, "of each contender")
	seed    = flag.Uint64("seed", 1, "of the simulated network")
)

// run measures over kernel sockets and returns the rows by strategy.
func run(t *testing.T, scenario, transport string, strategies ...string) map[string]dnslab.Row {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	rows, err := dnslab.Run(context.Background(), dnslab.Config{
		Scenario: scenario, Transport: transport, Strategies: strategies, Samples: *samples, Seed: *seed,
	})
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	out := make(map[string]dnslab.Row)
	for _, r := range rows {
		key := r.Strategy
		if r.Scenario != scenario {
			key += "/after"
		}
		out[key] = r
		mean, dev := r.Mean()
		t.Logf("%-13s %-12s n %d errors %d p50 %v p95 %v p99 %v p99.9 %v mean %v σ %v extra %.2f %% hedges %d won %d denied %d", r.Scenario, r.Strategy, r.Requests, r.Errors,
			r.Quantile(.5).Round(time.Microsecond), r.Quantile(.95).Round(time.Microsecond), r.Quantile(.99).Round(time.Microsecond), r.Quantile(.999).Round(time.Microsecond),
			mean.Round(time.Microsecond), dev.Round(time.Microsecond), 100*r.Extra(), r.Hedges, r.Wins, r.Denied)
	}
	return out
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// budget is what hedges may cost: 5 % of all queries, and the burst.
func budget(r dnslab.Row) float64 { return (0.05*float64(r.Queries) + 20) / float64(r.Requests) }

func TestLossDoesNotShow(t *testing.T) {
	r := run(t, "loss2", "udp")
	ours, single, own := r["hedge"], r["single"], r["net-resolver"]
	assert.Zero(t, ours.Errors)
	assert.LessOrEqual(t, ratio(ours.Quantile(.99), single.Quantile(.99)), 0.12)
	assert.LessOrEqual(t, ratio(ours.Quantile(.99), own.Quantile(.99)), 0.03)
	assert.LessOrEqual(t, ours.Extra(), budget(ours))
}

func TestSpikesShrink(t *testing.T) {
	r := run(t, "spikes", "udp", "single", "fixed-10ms", "hedge")
	ours, single := r["hedge"], r["single"]
	assert.Zero(t, ours.Errors)
	p99, deviation := 0.63, 0.60
	if *samples < 5050 { // four samples are beyond the p99 of 400
		p99, deviation = 0.90, 0.90
	}
	assert.LessOrEqual(t, ratio(ours.Quantile(.99), single.Quantile(.99)), p99)
	_, before := single.Mean()
	_, after := ours.Mean()
	assert.LessOrEqual(t, ratio(after, before), deviation)
	assert.LessOrEqual(t, ratio(ours.Quantile(.5), single.Quantile(.5)), 1.02)
}

func TestACleanNetworkIsLeftAlone(t *testing.T) {
	r := run(t, "clean", "udp", "single", "hedge")
	ours, single := r["hedge"], r["single"]
	assert.LessOrEqual(t, ratio(ours.Quantile(.5), single.Quantile(.5)), 1.03)
	assert.LessOrEqual(t, ours.Extra(), 0.005+20/float64(ours.Requests))
}

func TestAUniformlySlowNetworkIsLeftAlone(t *testing.T) {
	r := run(t, "uniform", "udp", "single", "hedge")
	assert.LessOrEqual(t, r["hedge"].Extra(), 0.005+20/float64(r["hedge"].Requests))
}

func TestADeadPrimaryDoesNotShow(t *testing.T) {
	r := run(t, "dead-primary", "udp", "single", "hedge")
	ours := r["hedge/after"]
	assert.Zero(t, r["hedge"].Errors)
	assert.LessOrEqual(t, ours.Quantile(.99), 40*time.Millisecond)
}

func TestADeadGroupIsNotHammered(t *testing.T) {
	r := run(t, "dead", "udp", "hedge")["hedge"]
	assert.Equal(t, r.Requests, r.Errors)
	assert.LessOrEqual(t, r.Extra(), budget(r)+0.1)
}

func TestStreamsAreHedgedToo(t *testing.T) {
	for _, transport := range []string{"tls", "https"} {
		r := run(t, "loss2", transport, "single", "hedge")
		assert.Zero(t, r["hedge"].Errors)
		assert.Zero(t, r["single"].Errors)
	}
}

func TestItRunsWithoutRoot(t *testing.T) {
	rows, err := dnslab.Run(context.Background(), dnslab.Config{Memory: true, Samples: 64, Strategies: []string{"single", "hedge", "miekg", "net-resolver"}})
	require.NoError(t, err)
	for _, r := range rows {
		assert.Zero(t, r.Errors, r.Strategy)
		assert.Equal(t, 64, r.Requests)
		assert.GreaterOrEqual(t, r.Quantile(0), 19*time.Millisecond)
	}
}

func TestUnknownNamesAreErrors(t *testing.T) {
	_, err := dnslab.Run(context.Background(), dnslab.Config{Scenario: "sunny"})
	require.ErrorContains(t, err, `"sunny"`)
	_, err = dnslab.Run(context.Background(), dnslab.Config{Memory: true, Strategies: []string{"luck"}})
	require.ErrorContains(t, err, `"luck"`)
}
