package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOverviewEndsWithOneTableOfAllPeers(t *testing.T) {
	out, stderr, code := runSimulate(t, "-requests", "300", "-out", "")
	require.Equal(t, exitOK, code, stderr)
	assert.Equal(t, 1, strings.Count(out, " extra requests   connections\n"), out)
	for _, name := range []string{"hedge (no option set)", "no hedging", "hedgedhttp (10 ms)", "failsafe-go (quantile)", "bhope/hedge (defaults)", "bhope/hedge (tuned)"} {
		assert.Equal(t, 2, strings.Count(out, "  "+name+"  "), "in virtual time and over sockets: %s", name)
	}
	exact, sockets := strings.Index(out, overviewRuns[0].heading), strings.Index(out, overviewRuns[1].heading)
	assert.Less(t, exact, sockets)
	assert.NotContains(t, out[sockets:], " –\n", "connections are counted")
	assert.Regexp(t, `(?m)^(HTTP/1.1 over loopback sockets: With hedge, p99 is .* connections|In virtual time, .*: With hedge, p99 is ).*\.$`, out)
}

func TestOutputIsInTheRepositoryWhereverTheCommandRuns(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	for _, dir := range []string{"", "benchmark", "benchmark/simulate"} {
		t.Chdir(filepath.Join(root, dir))
		out, err := filepath.Abs(defaultOutDir())
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(root, "benchmark/out"), out)
	}
	t.Chdir(t.TempDir())
	assert.Equal(t, "benchmark/out", defaultOutDir())
}
