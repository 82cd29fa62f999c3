package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/faultlab"
)

// The faults engine needs namespaces. It has Go's resolver run by this test's program.
func TestFaultsEngineAsksAllResolversAtOnce(t *testing.T) {
	out, stderr, code := runSimulate(t, "-engine", "faults", "-scenario", "denies", "-quick", "-format", "json", "-out", "")
	if code == exitFailed && strings.Contains(stderr, "netsim: needs root") {
		t.Skip(stderr)
	}
	require.Equal(t, exitOK, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	var names []string
	for _, r := range rows {
		names = append(names, r.Strategy)
		assert.Equal(t, 100, r.Requests, r.Strategy)
		assert.Zero(t, r.Errors, r.Strategy)
		require.NotNil(t, r.engineFigures["denials"])
		if r.Strategy != faultlab.Unbound { // which chooses among servers by how fast they are
			assert.Equal(t, 50., *r.engineFigures["denials"], "%s: what the first server says", r.Strategy)
		}
		require.NotNil(t, r.engineFigures["last_answer_ms"])
		assert.Greater(t, *r.engineFigures["last_answer_ms"], 4900.)
	}
	for _, name := range []string{faultlab.GoResolver, "hedge-resolvconf", "hedge-upstreams", "hedge-fallback"} {
		assert.True(t, slices.Contains(names, name), name)
	}
	_, stderr, code = runSimulate(t, "-engine", "faults", "-strategy", "miekg")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, "not a resolver that is given servers")
}

func TestBoundsOfFaultsAreSaid(t *testing.T) {
	o, err := parseOptions([]string{"-engine", "faults", "-scenario", "lossy"}, io.Discard)
	require.NoError(t, err)
	of := func(strategy string, answered int, last float64) strategyResult {
		denials := 0.
		return strategyResult{strategy: strategy, rows: []row{{Engine: "faults", Scenario: "lossy", Strategy: strategy, Requests: 100, Errors: 100 - answered, engineFigures: map[string]*float64{"denials": &denials, "last_answer_ms": &last}}}}
	}
	found := engineResults{options: o, scenarios: []scenarioResults{{scenario: o.scenarios[0], results: []strategyResult{
		of("net-resolver", 80, 9900), of("unbound", 90, 12000),
		of("hedge-resolvconf", 81, 10000), of("hedge-upstreams", 80, 10001), of("hedge-fallback", 100, 5000), // 90 − 3 √(90 × 0.1) is 81
	}}}}
	assert.Equal(t, []string{
		"lossy: hedge-resolvconf answers 81, at least unbound's 90 − 3 σ: met; the last after 10.00 s, at most 10.00 s: met.",
		"lossy: hedge-upstreams answers 80, at least unbound's 90 − 3 σ: NOT MET; the last after 10.00 s, at most 10.00 s: NOT MET.",
		"lossy: hedge-fallback answers 100, at least unbound's 90 − 3 σ: met; the last after 5.00 s, at most 10.00 s: met.",
	}, checkFaults(found))
	found.scenarios[0].results = found.scenarios[0].results[2:]
	assert.Empty(t, checkFaults(found), "nobody to compare with")
}

func TestTheTimeOfFaultsIsKnown(t *testing.T) {
	o, err := parseOptions([]string{"-engine", "faults", "-scenario", "all"}, io.Discard)
	require.NoError(t, err)
	require.Len(t, o.newJobs(nil), 9)
	assert.LessOrEqual(t, o.engine.estimateDuration(o.newJobs(nil)), 150*sec)
	for _, j := range o.newJobs(nil) {
		j.size.requests = 500
		assert.InDelta(t, 500, faultRate(j)*faultlab.QueryDuration(j.scenario.name).Seconds(), 0.1)
	}
}
