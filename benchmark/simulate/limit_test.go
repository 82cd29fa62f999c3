package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/limitlab"
)

// limitRows runs the engine, and returns the rows by scenario and strategy.
func limitRows(t *testing.T, args ...string) map[string]row {
	t.Helper()
	out, stderr, code := sim(t, append([]string{"-engine", "limit", "-format", "json", "-out", ""}, args...)...)
	require.Equal(t, ok, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	all := make(map[string]row)
	for _, r := range rows {
		assert.Equal(t, "limit", r.Engine)
		all[r.Scenario+" "+r.Strategy] = r
	}
	return all
}

// TestLimitsThatFindThemselvesAreNearTheBest holds ours to what the command says is required of it, in a few of the scenarios. The command prints in which
// others it is not so. At 80 % load, more is allowed here: what the best limit gains over none is little, and depends on the seed.
func TestLimitsThatFindThemselvesAreNearTheBest(t *testing.T) {
	t.Parallel()
	long(t)
	most := map[string]float64{
		"limit-cpu8-lognormal-95": 1.15, "limit-cpu8-lognormal-80": 1.3, "limit-cpu8-lognormal-50": 1.05,
		"limit-pool10-lognormal-95": 1.15, "limit-sleeping-bimodal-50": 1.05,
	}
	for name, times := range most {
		rows := limitRows(t, "-scenario", name, "-strategy", "none,fixed-best,adaptive-1,adaptive-10000")
		reference := rows[name+" fixed-best"]
		if limitlab.Load[name] == 50 {
			reference = rows[name+" none"]
		}
		for _, from := range []string{limitlab.FromOne, limitlab.FromMany} {
			key := name + " " + from
			atMost(t, "p99 in "+key, rows[key].P99, times, reference.P99)
		}
	}
}

func TestLimitEngineRunsAllContenders(t *testing.T) {
	play := func(args ...string) map[string]row {
		return limitRows(t, append([]string{"-scenario", "limit-cpu8-batches-95,limit-pool10-some-80", "-requests", "3000"}, args...)...)
	}
	first := play("-seed", "5")
	require.Len(t, first, 2*len(limitlab.Contenders))
	assert.Equal(t, first, play("-seed", "5"), "the same seed")
	assert.NotEqual(t, first, play("-seed", "6"))
	for name, r := range first {
		assert.InEpsilon(t, 3000, r.Requests, .1, name)
		assert.Zero(t, r.Errors+r.Hedges, name)
		if r.Strategy == limitlab.None {
			assert.Nil(t, r.LimitMean)
			continue
		}
		require.NotNil(t, r.LimitMean, name)
		assert.LessOrEqual(t, *r.LimitLowest, *r.LimitMean, name)
		assert.LessOrEqual(t, *r.LimitMean, *r.LimitHighest, name)
		if r.Strategy == limitlab.Best {
			assert.Equal(t, *r.LimitLowest, *r.LimitHighest)
			assert.Equal(t, 100., *r.LimitSteady)
		}
	}
	best, none := first["limit-cpu8-batches-95 fixed-best"], first["limit-cpu8-batches-95 none"]
	assert.Less(t, best.P99, .7*none.P99, "requests that arrive together are better worked on one after another")
	assert.InDelta(t, 8, *best.LimitMean, 2, "8 cores")

	_, stderr, code := sim(t, "-engine", "limit", "-rps", "100")
	assert.Equal(t, failed, code)
	assert.Contains(t, stderr, "-rps 100: the rate of requests to a server with a limit is that of the scenario")
}

// limitFindings are two scenarios with figures that are easy to compute with.
func limitFindings(t *testing.T) findings {
	t.Helper()
	o, err := optionsOf([]string{"-engine", "limit", "-scenario", "limit-cpu8-lognormal-95,limit-cpu8-lognormal-50"}, os.Stderr)
	require.NoError(t, err)
	of := func(strategy string, p99 float64, limits ...float64) result {
		r := row{Engine: "limit", Strategy: strategy, Requests: 1000, P99: p99}
		if limits != nil {
			r.limitFigures = limitFigures{&limits[0], &limits[1], &limits[2], new(float64)}
		}
		return result{strategy: strategy, rows: []row{r}}
	}
	return findings{options: o, scenarios: []finding{
		{scenario: o.scenarios[0], results: []result{of("none", 200), of("fixed-best", 100, 8, 8, 8), of("adaptive-1", 115, 8, 10, 12), of("gradient2", 400, 20, 30, 37)}},
		{scenario: o.scenarios[1], results: []result{of("none", 50), of("fixed-best", 40, 8, 8, 8), of("adaptive-1", 53, 16, 20, 25), of("gradient2", 50, 20, 20, 20)}},
	}}
}

// What is required is said under the table, for those that ran.
func TestBoundsOfLimitsAreSaid(t *testing.T) {
	f := limitFindings(t)
	assert.Equal(t, []string{
		"limit-cpu8-lognormal-95: p99 is at most 1.15 × fixed-best's: adaptive-1 1.15 met, gradient2 4.00 NOT MET; " +
			"limit within ±20 % of its mean: adaptive-1 10 (8 to 12) met, gradient2 30 (20 to 37) NOT MET.",
		"limit-cpu8-lognormal-50: p99 is at most 1.05 × none's: adaptive-1 1.06 NOT MET, gradient2 1.00 met; " +
			"limit within ±20 % of its mean: adaptive-1 20 (16 to 25) NOT MET, gradient2 20 met.",
		"none: p99 is within the bound in 1 of 2 scenarios (0 of 1 at 95 %, 1 of 1 at 50 %); geometric mean of p99 ÷ that of the reference: 1.41 (2.00, 1.00).",
		"adaptive-1: p99 is within the bound in 1 of 2 scenarios (1 of 1 at 95 %, 0 of 1 at 50 %); geometric mean of p99 ÷ that of the reference: 1.10 (1.15, 1.06); " +
			"the limit stays within ±20 % of its mean in 1.",
		"gradient2: p99 is within the bound in 1 of 2 scenarios (0 of 1 at 95 %, 1 of 1 at 50 %); geometric mean of p99 ÷ that of the reference: 2.00 (4.00, 1.00); " +
			"the limit stays within ±20 % of its mean in 1.",
	}, f.limitBounds())
	f.scenarios[0].results = f.scenarios[0].results[2:]
	f.scenarios = f.scenarios[:1]
	assert.Empty(t, f.limitBounds(), "nobody to compare with")
}

func TestTablesOfLimits(t *testing.T) {
	f := limitFindings(t)
	table := strings.Split(limitsTable(f), "\n")
	assert.Equal(t, "| | best limit | its p99 in ms | none | adaptive-1 | adaptive-10000 | failsafe-adaptive | gradient2 | limit of adaptive-10000 |", table[0])
	assert.Equal(t, "| limit-cpu8-lognormal-95 | 8 | 100 | 2.00 | 1.15 | 0.00 | 0.00 | **4.00** |  |", table[2], "two have not run")
	assert.Equal(t, "| | 95 % loaded: within the bound | mean | 50 % loaded: within the bound | mean | within ±20 % of its mean |\n|---|--:|--:|--:|--:|--:|\n"+
		"| none | 0 of 1 | 2.00 | 1 of 1 | 1.00 | – |\n| adaptive-1 | 1 of 1 | 1.15 | 0 of 1 | 1.06 | 1 of 2 |\n| gradient2 | 0 of 1 | 4.00 | 1 of 1 | 1.00 | 1 of 2 |\n",
		standingsTable(f))
}
