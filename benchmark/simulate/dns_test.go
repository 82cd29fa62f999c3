package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// The DNS engine needs namespaces, and skips where there are none.
func TestDNSEngineAsksOverASimulatedNetwork(t *testing.T) {
	out, stderr, code := runSimulate(t, "-engine", "dns", "-scenario", "dead-primary", "-strategy", "single,hedge", "-requests", "600", "-format", "json", "-out", "")
	if code == exitFailed && strings.Contains(stderr, "netsim: needs root") {
		t.Skip(stderr)
	}
	require.Equal(t, exitOK, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 4, "a part for each")
	for _, r := range rows {
		assert.Equal(t, "dns", r.Engine)
		assert.Zero(t, r.Errors, r.Strategy)
		assert.Greater(t, r.P50, 19.0)
	}
	_, stderr, code = runSimulate(t, "-engine", "dns", "-strategy", "bhope")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, "not offered for DNS over udp")
}

// A peer that is not there is left out with a message, and the others run.
func TestAbsentPeersAreLeftOut(t *testing.T) {
	out, stderr, code := runSimulate(t, "-engine", "dns", "-strategy", "hedge,unbound", "-peer", "unbound=/nowhere/unbound", "-requests", "100", "-format", "json", "-out", "")
	if code == exitFailed && strings.Contains(stderr, "netsim: needs root") {
		t.Skip(stderr)
	}
	require.Equal(t, exitOK, code, stderr)
	assert.Contains(t, stderr, `left out: unbound: exec: "/nowhere/unbound"`)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 1)
	assert.Equal(t, "hedge", rows[0].Strategy)

	_, stderr, code = runSimulate(t, "-engine", "dns", "-strategy", "unbound", "-peer", "unbound=/nowhere/unbound", "-requests", "100", "-out", "")
	assert.Equal(t, exitFailed, code, "nothing is left")
	assert.Contains(t, stderr, "/nowhere/unbound")
}

// A peer runs by the command of the flag -peer: here a program that is no DNS server, whose last output is printed.
func TestPeersThatDoNotStartAreLeftOut(t *testing.T) {
	doubles.SkipSimulation(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "server")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho I was called with $1\n"), 0o755))
	_, stderr, code := runSimulate(t, "-engine", "dns", "-strategy", "forwarder,sdns", "-peer", "sdns="+program+" this", "-requests", "100", "-out", "")
	if code == exitFailed && strings.Contains(stderr, "netsim: needs root") {
		t.Skip(stderr)
	}
	require.Equal(t, exitOK, code, stderr)
	assert.Contains(t, stderr, "left out: sdns: the server does not start; its output: I was called with this")
}
