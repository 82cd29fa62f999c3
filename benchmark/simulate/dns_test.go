package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The DNS engine needs namespaces, and skips where there are none.
func TestDNSEngineAsksOverASimulatedNetwork(t *testing.T) {
	out, stderr, code := sim(t, "-engine", "dns", "-scenario", "dead-primary", "-strategy", "single,hedge", "-requests", "600", "-format", "json", "-out", "")
	if code == failed && strings.Contains(stderr, "netsim: needs root") {
		t.Skip(stderr)
	}
	require.Equal(t, ok, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 4, "a part for each")
	for _, r := range rows {
		assert.Equal(t, "dns", r.Engine)
		assert.Zero(t, r.Errors, r.Strategy)
		assert.Greater(t, r.P50, 19.0)
	}
	_, stderr, code = sim(t, "-engine", "dns", "-strategy", "bhope")
	assert.Equal(t, misused, code)
	assert.Contains(t, stderr, "not offered for DNS over udp")
}
