package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/endpointlab"
)

// TestEndpointsAreAsGoodAsTheBestStaticChoice holds WithEndpoints to what the command says is required of it. The other
// worlds are those in which that is known not to be so: the budget does not pay for all hedges where a tenth of the
// calls needs one; it takes trials to learn that the other endpoint is quicker; and an endpoint that stalls anew each
// time that calls have come back to it costs some of them.
func TestEndpointsAreAsGoodAsTheBestStaticChoice(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a million calls")
	}
	lost := []string{
		"endpoints-reversed: hedge-endpoints", "endpoints-pauses: hedge-endpoints",
		"endpoints-few-errors: hedge-endpoints-3", // the budget does not pay three tokens after each error
		"endpoints-tenth-slow: hedge-endpoints", "endpoints-hangs: hedge-endpoints", "endpoints-hangs-half: hedge-endpoints",
	}
	out, stderr, code := runSimulate(t, "-engine", "endpoints", "-scenario", "all", "-out", "")
	require.Equal(t, exitOK, code, stderr)
	required := 0
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "; p99 is ") {
			continue
		}
		required++
		tokens, p99, _ := strings.Cut(line, "; ")
		assert.Contains(t, tokens, ": met", line)
		if !slices.ContainsFunc(lost, func(l string) bool { return strings.HasPrefix(line, l) }) {
			assert.Contains(t, p99, ": met", line)
		}
	}
	assert.Equal(t, 2*len(endpointlab.Scenarios), required)
}

func TestEndpointsEngineRunsAllContenders(t *testing.T) {
	runEndpoints := func(args ...string) map[string]row {
		out, stderr, code := runSimulate(t, append([]string{"-engine", "endpoints", "-scenario", "endpoints-down,endpoints-three", "-requests", "500", "-format", "json", "-out", ""}, args...)...)
		require.Equal(t, exitOK, code, stderr)
		var rows []row
		require.NoError(t, json.Unmarshal([]byte(out), &rows))
		all := make(map[string]row)
		for _, r := range rows {
			assert.Equal(t, "endpoints", r.Engine)
			assert.Equal(t, 500, r.Requests)
			require.NotNil(t, r.engineFigures["tokens_pct"], r.Strategy)
			all[r.Scenario+" "+r.Strategy] = r
		}
		return all
	}
	first := runEndpoints("-seed", "5")
	require.Len(t, first, 2*len(endpointlab.Contenders))
	assert.Equal(t, first, runEndpoints("-seed", "5"), "the same seed")
	assert.NotEqual(t, first, runEndpoints("-seed", "6"))

	down := func(strategy string) row { return first["endpoints-down "+strategy] }
	assert.InDelta(t, 250, down("none").Errors, 30, "half of the time")
	assert.Equal(t, 2000., down("none").P99, "failures are the longest calls")
	assert.Zero(t, down("far").Errors)
	assert.Zero(t, down("failover").Errors)
	assert.Equal(t, down("none").Errors, down("failover").Hedges, "a second request after each")
	assert.Zero(t, *down("failover").engineFigures["tokens_pct"])
	assert.InDelta(t, down("hedge").Extra, *down("hedge").engineFigures["tokens_pct"], 0.01)
	assert.Greater(t, *down("hedge-endpoints-3").engineFigures["tokens_pct"], 1.5*down("hedge-endpoints-3").Extra, "the far ones cost three")
	assert.Equal(t, first["endpoints-three none"].Errors, down("none").Errors, "the near endpoint meets the same")

	_, stderr, code := runSimulate(t, "-engine", "endpoints", "-rps", "100")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "-rps 100: the rate of calls to endpoints is that of the scenario")
}

// What is required is said under the table, for those that ran.
func TestBoundsOfEndpointsAreSaid(t *testing.T) {
	o, err := parseOptions([]string{"-engine", "endpoints"}, os.Stderr)
	require.NoError(t, err)
	of := func(strategy string, p99, tokens float64, errors int) strategyResult {
		return strategyResult{strategy: strategy, rows: []row{{Engine: "endpoints", Scenario: "endpoints", Strategy: strategy, Requests: 1000, P99: p99, Errors: errors, engineFigures: map[string]*float64{"tokens_pct": &tokens}}}}
	}
	found := engineResults{options: o, scenarios: []scenarioResults{{scenario: o.scenarios[0], results: []strategyResult{
		of("none", 100, 0, 3), of("hedge", 50, 9, 4), of("far", 200, 0, 0), of("hedge-endpoints", 110, 14.4, 3), of("hedge-endpoints-3", 230, 14.5, 2),
	}}}}
	assert.Equal(t, []string{
		"endpoints: hedge-endpoints spends 14.40 tokens for 100 calls, at most 14.40 with one burst of each endpoint: met; p99 is 1.10 × none's, at most 1.10 ×: met.",
		"endpoints: hedge-endpoints-3 spends 14.50 tokens for 100 calls, at most 14.40 with one burst of each endpoint: NOT MET; p99 is 1.15 × far's, at most 1.10 ×: NOT MET.",
	}, checkEndpoints(found))
	found.scenarios[0].results = found.scenarios[0].results[3:]
	assert.NotContains(t, strings.Join(checkEndpoints(found), "\n"), "p99", "nobody to compare with")
}
