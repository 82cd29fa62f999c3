package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// The recursor engine needs namespaces too. It has our own resolver run by this test's program.
func TestRecursorEngineResolvesInASimulatedInternet(t *testing.T) {
	out, stderr, code := runSimulate(t, "-engine", "recursor", "-quick", "-requests", "100", "-strategy", "hedge,hedge-off", "-format", "json", "-out", "")
	if code == exitFailed && strings.Contains(stderr, "netsim: needs root") {
		t.Skip(stderr)
	}
	require.Equal(t, exitOK, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 2)
	for _, r := range rows {
		assert.Equal(t, "recursor", r.Engine)
		assert.LessOrEqual(t, r.Requests, 100)
		if r.Requests < 50 {
			t.Skip("questions during stalls of the machine do not count:", r.Requests, "of 100 are left")
		}
		assert.LessOrEqual(t, r.Errors, 2, r.Strategy)
		assert.Greater(t, r.P50, 10.0)
		require.NotNil(t, r.Sent)
		assert.Greater(t, *r.Sent, 1.0)
		assert.Less(t, *r.Sent, 10.0)
	}
}

func TestRecursorRunsThreeTimesUnlessToldOtherwise(t *testing.T) {
	for args, want := range map[string]int{"": 3, "-quick": 1, "-runs 2": 2, "-quick -runs 4": 4} {
		o, err := parseOptions(append([]string{"-engine", "recursor"}, strings.Fields(args)...), io.Discard)
		require.NoError(t, err)
		assert.Equal(t, want, o.runs, args)
	}
}

// What is required is said under the table, for those that ran.
func TestBoundsOfTheResolverAreSaid(t *testing.T) {
	o, err := parseOptions([]string{"-engine", "recursor"}, io.Discard)
	require.NoError(t, err)
	of := func(strategy string, p50, p99, p999, sent float64, errors int) strategyResult {
		return strategyResult{strategy: strategy, rows: []row{{Engine: "recursor", Scenario: "broken", Strategy: strategy, P50: p50, P99: p99, P999: p999, Sent: &sent, Errors: errors}}}
	}
	found := engineResults{options: o, scenarios: []scenarioResults{{scenario: o.scenarios[0], results: []strategyResult{of("hedge", 70, 450, 700, 3, 2), of("unbound", 100, 1000, 3000, 2.7, 1)}}}}
	assert.Equal(t, []string{
		"broken: p50 is 0.70 × unbound's, at most 0.80 ×: met.",
		"broken: p99 is 0.45 × unbound's, at most 0.45 ×: met.",
		"broken: p99.9 is 0.23 × unbound's, at most 0.35 ×: met.",
		"broken: sent is 1.11 × unbound's, at most 1.10 ×: NOT MET.",
		"broken: of those that send at most 1.3 × as much, nobody is faster at p99, nobody may be: met.",
		"broken: 2 failures, at most unbound's 1: NOT MET.",
	}, checkRecursor(found))
	found.scenarios[0].results = found.scenarios[0].results[:1]
	assert.NotContains(t, strings.Join(checkRecursor(found), "\n"), "NOT MET", "nobody to compare with")
}

// Where zones are signed, ours is compared with those who check signatures, and what these get wrong is said.
func TestBoundsWhereZonesAreSignedAreSaid(t *testing.T) {
	o, err := parseOptions([]string{"-engine", "recursor", "-scenario", "signed", "-strategy", "hedge,unbound-validate"}, io.Discard)
	require.NoError(t, err)
	of := func(strategy string, p50 float64, counts map[string]int) strategyResult {
		sent, cpu := 4.0, 900.0
		return strategyResult{strategy: strategy, counts: counts, rows: []row{{Engine: "recursor", Scenario: "signed", Strategy: strategy, P50: p50, P99: 5 * p50, Sent: &sent, CPU: &cpu}}}
	}
	results := []strategyResult{of("hedge", 70, nil), of("unbound-validate", 100, map[string]int{bogusAnswers: 1, wrongAD: 2})}
	said := strings.Join(checkRecursor(engineResults{options: o, scenarios: []scenarioResults{{scenario: o.scenarios[0], results: results}}}), "\n")
	assert.Contains(t, said, "signed: p50 is not compared: hedge-novalidate has none.")
	assert.Contains(t, said, "signed: p50 is 0.70 × unbound-validate's, at most 0.60 ×: NOT MET.")
	assert.Contains(t, said, "signed: hedge answers 0 bogus names, and AD is wrong in 0 answers, in none it may be: met.")
	assert.Contains(t, said, "signed: unbound-validate answers 1 bogus names, and AD is wrong in 2 answers, in none it may be: NOT MET.")

	o, err = parseOptions([]string{"-engine", "recursor", "-scenario", "keytrap", "-strategy", "hedge"}, io.Discard)
	require.NoError(t, err)
	trap := trial{engine: "recursor", scenario: &o.scenarios[0], strategy: "hedge", calls: make([]latency.Call, 10), cpuByPart: map[string]float64{trapsPart: 10_001}}
	said = strings.Join(checkRecursor(engineResults{options: o, scenarios: []scenarioResults{{scenario: o.scenarios[0], results: []strategyResult{trap.toResult()}}}}), "\n")
	assert.Contains(t, said, "keytrap/traps: CPU in µs is 10001, at most 10000: NOT MET.")

	for _, args := range []string{"-scenario broken -strategy unbound-validate", "-scenario signed -strategy unbound-stock"} {
		_, err = parseOptions(append([]string{"-engine", "recursor"}, strings.Fields(args)...), io.Discard)
		assert.Error(t, err, args)
	}
	o, err = parseOptions([]string{"-engine", "recursor", "-scenario", "all"}, io.Discard)
	require.NoError(t, err)
	assert.Len(t, o.scenarios, 6, "none of them is signed")
}
