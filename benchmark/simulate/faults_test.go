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
	"github.com/gohedge/hedge/internal/doubles"
)

// The faults engine needs namespaces. It has Go's resolver run by this test's program.
func TestFaultsEngineAsksAllResolversAtOnce(t *testing.T) {
	doubles.SkipSimulation(t)
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

func TestTheTimeOfFaultsIsKnown(t *testing.T) {
	o, err := parseOptions([]string{"-engine", "faults", "-scenario", "all"}, io.Discard)
	require.NoError(t, err)
	require.Len(t, o.planRuns(nil), 9)
	for _, run := range o.planRuns(nil) {
		run.size.requests = 500
		assert.Equal(t, 500, faultQueryCount(run))
	}
}
