package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// The table of the policy's design (lognormal 5 ms ± 2 ms, 5 % of attempts 10 × slower), and how near it must be.
func TestReferenceComesOutAsDesigned(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	r := runVirtual(t, "reference", trafficFlags{}, "none", "bhope", "bhope-tuned", "hedge", "hedge-1", "static-best-1", "static-best-2")
	for name, want := range map[string][3]float64{
		"none":        {64.2, 102.8, 0},
		"bhope":       {63.5, 102.3, 0.4},
		"bhope-tuned": {15.8, 53.2, 9.7},
		"hedge":       {16.0, 21.7, 9.7},
		"hedge-1":     {15.6, 44.5, 9.75},
	} {
		got := [3]float64{r[name].P99, r[name].P999, r[name].Extra}
		for i, what := range []string{"p99", "p99.9", "extra"} {
			assert.InDelta(t, want[i], got[i], max(0.05*want[i], 0.05), "%s of %s", what, name)
		}
	}
	ours, one, given, bare := r["hedge"], r["hedge-1"], r["bhope-tuned"], r["bhope"]
	assert.LessOrEqual(t, ours.Extra, 10.0)
	assert.LessOrEqual(t, one.Extra, 10.0)
	assertAtMost(t, "p99 against bhope-tuned", ours.P99, 1.04, given.P99)
	assertAtMost(t, "p99.9 against bhope-tuned", ours.P999, 0.45, given.P999)
	assertAtMost(t, "p99 against bhope", ours.P99, 0.30, bare.P99)
	assertAtMost(t, "p99.9 against bhope", ours.P999, 0.27, bare.P999)
	assertAtMost(t, "p99 against the best single", ours.P99, 1.05, r["static-best-1"].P99)
	assertAtMost(t, "p99.9 against the best pair", ours.P999, 1.15, r["static-best-2"].P999)
	assertAtMost(t, "p99 of one hedge against the best single", one.P99, 1.04, r["static-best-1"].P99)
	assertAtMost(t, "p99.9 of one hedge against the best single", one.P999, 1.10, r["static-best-1"].P999)
	assert.LessOrEqual(t, r["static-best-1"].Extra, ours.Extra)
	assert.LessOrEqual(t, r["static-best-2"].Extra, ours.Extra)
}

func TestDriftIsFollowed(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	r := runVirtual(t, "drift", trafficFlags{}, "bhope-tuned", "hedge")
	assertAtMost(t, "p99 of the slow minute", r["hedge/during"].P99, 0.45, r["bhope-tuned/during"].P99)
	assertAtMost(t, "p99.9 of the slow minute", r["hedge/during"].P999, 0.40, r["bhope-tuned/during"].P999)
	assertAtMost(t, "p99 of the minute after", r["hedge/after"].P99, 0.70, r["bhope-tuned/after"].P99)
}

func TestHangIsNotFedWithHedges(t *testing.T) {
	t.Parallel()
	r := runVirtual(t, "hang", trafficFlags{}, "hedge")["hedge/during"]
	assertAtMost(t, "attempts in the hang", float64(r.Requests+r.Hedges), 1.01, float64(r.Requests))
}

func TestOutageCostsTheBudgetAtAnyRate(t *testing.T) {
	t.Parallel()
	sizes := []trafficFlags{{rps: 1}, {rps: 100}, {rps: 10_000, requests: 950_000}}
	if testing.Short() {
		sizes = sizes[:2]
	}
	for _, s := range sizes {
		r := runVirtual(t, "outage", s, "hedge")
		burst := 2 * max(100, s.rps*1.1) * 0.10 // the measured rate scatters
		for part, row := range r {
			assert.LessOrEqual(t, float64(row.Hedges), 0.10*float64(row.Requests)+burst, "%s at %v/s", part, s.rps)
		}
		t.Logf("at %v/s: %d hedges for %d requests in the outage", s.rps, r["hedge/during"].Hedges, r["hedge/during"].Requests)
	}
}

func TestWrongEstimateChangesNothing(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	low := runVirtual(t, "estimate-low", trafficFlags{}, "hedge")["hedge/steady"]
	high := runVirtual(t, "estimate-high", trafficFlags{}, "hedge")["hedge/steady"]
	assert.InEpsilon(t, low.P99, high.P99, 0.03)
	assert.InEpsilon(t, low.P999, high.P999, 0.03)
	assert.InEpsilon(t, low.Extra, high.Extra, 0.03)
}

func TestHedgesThatCannotHelpAreFew(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	for _, name := range []string{"uniform", "bimodal"} {
		r := runVirtual(t, name, trafficFlags{}, "hedge")["hedge"]
		assert.LessOrEqual(t, r.Extra, 1.5, name)
	}
}

func TestHostThatHangsDisturbsNoOther(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	one := runVirtual(t, "hosts", trafficFlags{}, "hedge")["hedge/during"]
	none := runVirtual(t, "hosts-calm", trafficFlags{}, "hedge")["hedge/during"]
	require.Equal(t, none.Requests, one.Requests)
	assertAtMost(t, "p99.9 of the other hosts", one.P999, 1.02, none.P999)
}

func TestQueueRecoversFromATrigger(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	r := runVirtual(t, "metastable", trafficFlags{}, "none", "hedge")
	assertAtMost(t, "p99 10 to 30 s after", r["hedge/10-30s-after"].P99, 1.1, r["none/10-30s-after"].P99)
	assert.LessOrEqual(t, r["hedge/during"].Extra, 1.0)
}

func TestOneRequestPerSecondIsEnoughToLearn(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	r := runVirtual(t, "low", trafficFlags{}, "hedge", "static-best-1")
	assertAtMost(t, "p99", r["hedge"].P99, 1.08, r["static-best-1"].P99)
}

// TestSharesBuyWhatTheDocumentsSay holds docs/rollout.md to its table: what each share of extra requests buys.
func TestSharesBuyWhatTheDocumentsSay(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	doc, err := os.ReadFile("../../docs/rollout.md")
	require.NoError(t, err)
	for _, percent := range []int{0, 1, 2, 5, 10} {
		config := defaultHedgingConfig()
		config.Share = float64(percent) / 100
		made := func() virtual.Policy { return virtual.NewLibraryPolicy(config) }
		var measured []float64
		for _, name := range []string{"reference", "queue-ignores-cancel"} {
			sc := findScenario(name)
			tr := trial{engine: "virtual", scenario: &sc, seed: 1, calls: sc.adjustedSimulation(trafficFlags{}).Run(t.Context(), 1, made, nil)}
			r := tr.newRow("", func(latency.Call) bool { return true })
			measured = append(measured, r.Extra, r.P99, r.P999)
		}
		t.Logf("%d %%: %.4g", percent, measured)
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d %% \|(.*)\|$`, percent)).FindSubmatch(doc)
		require.NotNil(t, line, "%d %%", percent)
		written := strings.Split(string(line[1]), "|")
		require.Len(t, written, len(measured))
		for i, text := range written {
			want, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			require.NoError(t, err)
			assert.InDelta(t, want, measured[i], max(0.05*want, 0.1), "%d %%, column %d", percent, i+2)
		}
	}
}
