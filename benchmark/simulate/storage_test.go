package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/storelab"
)

// readRanges runs the engine storage and returns the rows, by the scenario, the part, and the strategy.
func readRanges(t *testing.T, args ...string) map[string]row {
	t.Helper()
	out, stderr, code := runSimulate(t, append([]string{"-engine", "storage", "-format", "json", "-out", ""}, args...)...)
	require.Equal(t, exitOK, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	all := make(map[string]row)
	for _, r := range rows {
		assert.Equal(t, "storage", r.Engine)
		all[r.Scenario+" "+r.Strategy] = r
	}
	return all
}

// What package rangeread promises of the tail, of a store without faults, and of one that is slow as a whole. Time is
// fake.
func TestRangereadShortensTheTailForFewBytes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("too long with the race detector")
	}
	for _, seed := range []string{"1", "2", "3"} {
		r := readRanges(t, "-scenario", "all", "-strategy", "none,hedge-resume,rangeread", "-requests", "3000", "-seed", seed)
		require.Len(t, r, 3*3+2*3)
		for name, one := range r {
			assert.Zero(t, one.Errors, name)
			require.NotNil(t, one.engineFigures[sentTwiceMetric], name)
		}
		bytes := func(twice *float64) float64 { return 1 + *twice/100 }
		plain, ours := r["storage none"], r["storage rangeread"]
		assertAtMost(t, "p99", ours.P99, 0.1, plain.P99)
		assertAtMost(t, "bytes sent", bytes(ours.engineFigures[sentTwiceMetric]), 1.03, bytes(plain.engineFigures[sentTwiceMetric]))
		assert.Greater(t, ours.Wins, 30, "two reads in a hundred have a fault")
		assertAtMost(t, "p99 with WithResume", r["storage hedge-resume"].P99, 0.1, plain.P99)

		plain, ours = r["storage-still none"], r["storage-still rangeread"]
		assertAtMost(t, "p50 without faults", ours.P50, 1.01, plain.P50)
		assertAtMost(t, "p99.9 without faults", ours.P999, 1.01, plain.P999)
		assertAtMost(t, "bytes sent without faults", bytes(ours.engineFigures[sentTwiceMetric]), 1.01, bytes(plain.engineFigures[sentTwiceMetric]))

		plain, ours = r["storage-slow none"], r["storage-slow rangeread"]
		const burst = 32. // MiB, and a read is one
		assert.LessOrEqual(t, *ours.engineFigures[askedTwiceMetric], 10+100*burst/3000, "of the bytes that are read, by the budget")
		slow := r["storage-slow/slow rangeread"]
		assert.LessOrEqual(t, *slow.engineFigures[askedTwiceMetric]/100*float64(slow.Requests), 0.1*3000+burst, "in the slow time, which may spend what was saved")
		assertAtMost(t, "bytes sent while all is slow", bytes(slow.engineFigures[sentTwiceMetric]), 1.03, 1)
		assertAtMost(t, "p50 while all is slow", slow.P50, 1.01, r["storage-slow/slow none"].P50)
	}
}

func TestStorageEngineRunsAllContenders(t *testing.T) {
	skipIfShort(t)
	dir := t.TempDir()
	_, stderr, code := runSimulate(t, "-engine", "storage", "-scenario", "storage-slow", "-requests", "500", "-out", dir)
	require.Equal(t, exitOK, code, stderr)
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	for _, name := range storelab.Contenders {
		assert.True(t, describesStrategy(string(page), name), name)
		assert.Contains(t, string(page), "slow: "+name)
	}
	assert.Positive(t, strings.Count(string(page), "<svg"))

	first := readRanges(t, "-requests", "300", "-seed", "5")
	require.Len(t, first, len(storelab.Contenders), "of the scenario storage")
	assert.Equal(t, first, readRanges(t, "-requests", "300", "-seed", "5"), "the same seed")
	assert.NotEqual(t, first, readRanges(t, "-requests", "300", "-seed", "6"))
	for _, s := range strategies {
		_, ran := first["storage "+s.name]
		assert.Equal(t, slices.Contains(storelab.Contenders, s.name), ran, s.name)
	}

	_, stderr, code = runSimulate(t, "-engine", "storage", "-rps", "100")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "-rps 100: storage keeps 16 reads in flight")
}

func TestBytesOfRowsAreThoseOfTheirPart(t *testing.T) {
	traffic := []storelab.Traffic{{Asked: 2 * storelab.ReadSize, Sent: storelab.ReadSize}, {Asked: storelab.ReadSize, Sent: storelab.ReadSize * 5 / 4}}
	assert.Equal(t, map[string]float64{askedTwiceMetric: 50, sentTwiceMetric: 12.5}, excessBytesPercent(traffic, []int{0, 1}))
	assert.Equal(t, map[string]float64{askedTwiceMetric: 0, sentTwiceMetric: 25}, excessBytesPercent(traffic, []int{1}))
}
