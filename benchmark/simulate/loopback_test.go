package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Loopback engines: real sockets, so only what holds on any machine.
func TestLoopbackRunsTheRealLibraries(t *testing.T) {
	for engine, strategies := range map[string]string{
		"http": strings.Join(slices.DeleteFunc(strategyNames(), func(n string) bool { return !loopbackEngine("http").supports(scenario{}, findStrategy(n)) }), ","),
		// failsafe-go gives one reply to all attempts, which the race detector rightly reports.
		"grpc": "none,hedgedhttp-10ms,bhope,bhope-tuned,hedge,hedge-1,static-best-2",
	} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			out, stderr, code := runSimulate(t, "-engine", engine, "-requests", "400", "-strategy", strategies, "-format", "json", "-out", "")
			require.Equal(t, exitOK, code, stderr)
			var rows []row
			require.NoError(t, json.Unmarshal([]byte(out), &rows))
			require.Len(t, rows, strings.Count(strategies, ",")+1)
			for _, r := range rows {
				assert.Equal(t, engine, r.Engine)
				assert.Equal(t, 400, r.Requests, r.Strategy)
				assert.Zero(t, r.Errors, r.Strategy)
				assert.Greater(t, r.P50, 2.0)
				require.NotNil(t, r.Conns)
				assert.Positive(t, *r.Conns)
				switch r.Strategy {
				case "none":
					assert.Zero(t, r.Hedges)
				case "hedgedhttp-10ms":
					assert.Greater(t, r.Hedges, 10)
					assert.Positive(t, r.Wins)
				}
			}
		})
	}
}

func TestLoopbackKeepsAnOpenLoop(t *testing.T) {
	start := time.Now()
	out, stderr, code := runSimulate(t, "-engine", "http", "-requests", "200", "-rps", "400", "-strategy", "none", "-format", "json", "-out", "")
	require.Equal(t, exitOK, code, stderr)
	assert.Contains(t, out, `"requests": 200,
    "errors": 0,`)
	assert.Greater(t, time.Since(start), 300*ms)
}

// A million requests take minutes: that the command returns shows that it was interrupted.
func TestLoopbackIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr bytes.Buffer
	time.AfterFunc(time.Second, cancel)
	code := runCommand(ctx, []string{"-requests", "1000000", "-strategy", "none,hedge", "-format", "json", "-out", ""}, &stdout, &stderr, false)
	assert.Equal(t, exitInterrupted, code)
	assert.Equal(t, "[]\n", stdout.String(), "nobody has done a tenth")
}
