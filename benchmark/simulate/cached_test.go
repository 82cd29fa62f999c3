package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// The cached engine needs namespaces. It has this library's forwarder run by this test's program.
func TestCachedEngineMeasuresServers(t *testing.T) {
	doubles.SkipSimulation(t)
	out, stderr, code := runSimulate(t, "-engine", "cached", "-scenario", "all", "-strategy", "forwarder", "-quick", "-format", "json", "-out", "")
	if code == exitFailed && strings.Contains(stderr, "netsim: needs root") {
		t.Skip(stderr)
	}
	require.Equal(t, exitOK, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 4)
	for _, r := range rows {
		assert.Equal(t, quickCached, r.Requests, r.Scenario)
		assert.Zero(t, r.Errors, r.Scenario)
		require.NotNil(t, r.CPU, r.Scenario)
		assert.Greater(t, *r.CPU, 0.5, r.Scenario)
		assert.Less(t, *r.CPU, 2000.0, r.Scenario)
		memory := r.engineFigures["kb_per_connection"]
		assert.Equal(t, r.Scenario == "tcp-2000", memory != nil, r.Scenario)
		if memory != nil {
			assert.Greater(t, *memory, 0.5)
			assert.Less(t, *memory, 200.0)
		}
	}
	assert.Less(t, *rows[0].CPU, *rows[3].CPU, "a new connection costs more than a datagram")
}

func TestTableOfCachesHasAColumnForEachScenario(t *testing.T) {
	of := func(strategy string, cpu float64, memory *float64) strategyResult {
		return strategyResult{strategy: strategy, rows: []row{{Strategy: strategy, CPU: &cpu, engineFigures: map[string]*float64{"kb_per_connection": memory}}}}
	}
	memory := 7.25
	var found engineResults
	for i, sc := range cachedScenarios {
		results := []strategyResult{of("forwarder", float64(i+1), nil), of("unbound", float64(i+11), nil)}
		if sc.name == "tcp-2000" {
			results[0] = of("forwarder", float64(i+1), &memory)
		}
		if sc.name == "tcp-new" {
			results = slices.Delete(results, 1, 2) // unbound did not start
		}
		found.scenarios = append(found.scenarios, scenarioResults{scenario: sc, results: results})
	}
	assert.Equal(t, `| CPU µs | over UDP | over 24 TCP connections | over 2,000 TCP connections | over a new TCP connection for each query | kB per connection |
|---|--:|--:|--:|--:|--:|
| **forwarder** | 1.0 | 2.0 | 3.0 | 4.0 | 7.2 |
| unbound | 11.0 | 12.0 | 13.0 | – | – |
`, formatCacheTable(found))
}
