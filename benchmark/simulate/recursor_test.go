package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// The recursor engine needs namespaces too. It has our own resolver run by this test's program.
func TestRecursorEngineResolvesInASimulatedInternet(t *testing.T) {
	doubles.SkipSimulation(t)
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

func TestResolversRunOnlyInScenariosForThem(t *testing.T) {
	for _, args := range []string{"-scenario broken -strategy unbound-validate", "-scenario signed -strategy pdns"} {
		_, err := parseOptions(append([]string{"-engine", "recursor"}, strings.Fields(args)...), io.Discard)
		assert.Error(t, err, args)
	}
	o, err := parseOptions([]string{"-engine", "recursor", "-scenario", "all"}, io.Discard)
	require.NoError(t, err)
	assert.Len(t, o.scenarios, 6, "none of them is signed")
}
