package storelab_test

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/helper"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/storelab"
)

func TestMain(m *testing.M) {
	helper.RunIfHelper()
	os.Exit(m.Run())
}

// readInFakeTime lets contenders read in fake time: those named, or else all.
func readInFakeTime(t *testing.T, scenario string, seed uint64, contenders ...string) map[string]storelab.Row {
	t.Helper()
	conf := lab.Config{Scenario: scenario, Contenders: contenders, Calls: 1500, Seed: seed}
	if testing.Short() {
		conf.Calls = 300
	}
	rows := make(map[string]storelab.Row)
	synctest.Test(t, func(t *testing.T) {
		all, err := storelab.Run(t.Context(), conf)
		require.NoError(t, err)
		for _, r := range all {
			require.Len(t, r.Calls, conf.Calls, r.Contender)
			for i, c := range r.Calls {
				require.EqualValues(t, i, c.Index)
				require.False(t, c.Failed(), "%s, read %d", r.Contender, i)
			}
			rows[r.Contender] = r
		}
	})
	return rows
}

func TestPlainReadTakesTheTimeOfItsRequest(t *testing.T) {
	for _, scenario := range lab.NamesOf(storelab.Scenarios) {
		r := readInFakeTime(t, scenario, 3, storelab.Plain)[storelab.Plain]
		late, stalled := 0, 0
		for i, c := range r.Calls {
			first, body := storelab.PredictFirstRequest(scenario, 3, int64(i))
			assert.Equal(t, first+body, c.Latency, "%s, read %d", scenario, i)
			assert.Equal(t, storelab.Traffic{Asked: storelab.ReadSize, Sent: storelab.ReadSize}, r.Traffic[i])
			if first > time.Second {
				late++
			}
			if body > time.Second {
				stalled++
			}
			if scenario != "storage-slow" {
				continue
			}
			if storelab.IsSlowRead(c.Index) {
				assert.Greater(t, c.Latency, 80*time.Millisecond)
			} else {
				assert.Less(t, c.Latency, 30*time.Millisecond)
			}
		}
		n := len(r.Calls)
		if scenario != "storage" {
			assert.Zero(t, late+stalled, scenario)
			continue
		}
		for _, faults := range []int{late, stalled} { // one in a hundred, within four standard deviations
			assert.InDelta(t, float64(n)/100, faults, 4*3.9*float64(n)/1500+3)
		}
	}
}

// TestAllContendersMeetTheSameFaults: a read without a second request takes as long as a plain read.
func TestAllContendersMeetTheSameFaults(t *testing.T) {
	for _, scenario := range lab.NamesOf(storelab.Scenarios) {
		rows := readInFakeTime(t, scenario, 1)
		plain := rows[storelab.Plain]
		for name, r := range rows {
			if name == "parts-4" {
				continue
			}
			alone := 0
			for i, c := range r.Calls {
				if c.Hedges == 0 {
					alone++
					require.Equal(t, plain.Calls[i].Latency, c.Latency, "%s, %s, read %d", scenario, name, i)
				}
			}
			assert.Greater(t, alone, len(r.Calls)/2, name)
		}
	}
}

func TestTheSameSeedGivesTheSameFigures(t *testing.T) {
	one := readInFakeTime(t, "storage", 1)
	assert.Equal(t, one, readInFakeTime(t, "storage", 1))
	assert.NotEqual(t, one[storelab.Plain].Calls, readInFakeTime(t, "storage", 2, storelab.Plain)[storelab.Plain].Calls)
}

func TestPartsAreRequestsOfTheirOwn(t *testing.T) {
	r := readInFakeTime(t, "storage-still", 1, "parts-4")["parts-4"]
	for i, c := range r.Calls {
		assert.EqualValues(t, 3, c.Hedges)
		assert.Zero(t, c.Winner, "a part takes the place of nothing")
		assert.Equal(t, storelab.Traffic{Asked: storelab.ReadSize, Sent: storelab.ReadSize}, r.Traffic[i])
	}
}

// TestAStallTimeoutWatchesTheFirstByteOnly: a request with a late first byte is sent again after 20 ms, and a body that
// stalls is not requested again.
func TestAStallTimeoutWatchesTheFirstByteOnly(t *testing.T) {
	const name = "stall-timeout-20ms"
	again, stalled := 0, 0
	for i, c := range readInFakeTime(t, "storage", 1, name)[name].Calls {
		late, body := storelab.PredictFirstRequest("storage", 1, int64(i))
		switch {
		case late > time.Second:
			again++
			assert.Positive(t, c.Hedges, "read %d", i)
			assert.Greater(t, c.Latency, 20*time.Millisecond)
			assert.EqualValues(t, 1, c.Winner)
		case body > time.Second:
			stalled++
			if late < 20*time.Millisecond {
				assert.Zero(t, c.Hedges, "read %d", i)
				assert.Equal(t, late+body, c.Latency)
			}
		}
	}
	assert.Positive(t, again)
	assert.Positive(t, stalled)
}

// TestStalledBodiesAreResumed: rangeread and WithResume request the rest of a body that stalls, after they have
// learned the latency of the store.
func TestStalledBodiesAreResumed(t *testing.T) {
	for name, r := range readInFakeTime(t, "storage", 1, "hedge-resume", storelab.Rangeread) {
		won, faults := 0, 0
		for i, c := range r.Calls[100:] {
			late, body := storelab.PredictFirstRequest("storage", 1, int64(i+100))
			if late+body < time.Second {
				continue
			}
			faults++
			if c.Winner == 1 && c.Latency < 200*time.Millisecond {
				won++
				assert.Greater(t, r.Traffic[i+100].Asked, int64(storelab.ReadSize))
			}
		}
		assert.GreaterOrEqual(t, won, faults*9/10, name)
		assert.Positive(t, faults)
	}
}

// TestAProgramRunsInFakeTime: a process of its own has the same result as a bubble in this process.
func TestAProgramRunsInFakeTime(t *testing.T) {
	conf := lab.Config{Scenario: "storage", Contenders: []string{storelab.Plain, "hedgedhttp-50ms"}, Calls: 300, Seed: 7}
	rows, err := storelab.FakeTimeRun.Run(t.Context(), conf)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		here, err := storelab.Run(t.Context(), conf)
		require.NoError(t, err)
		assert.Equal(t, here, rows)
	})
	_, err = storelab.FakeTimeRun.Run(t.Context(), lab.Config{Scenario: "x"})
	assert.ErrorContains(t, err, `scenario "x"; want one of storage`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = storelab.FakeTimeRun.Run(ctx, conf)
	assert.ErrorIs(t, err, context.Canceled)
}

// TestASecondRequestAfterADelay: the second request is sent after 50 ms, and the answer with the earlier first byte is
// read.
func TestASecondRequestAfterADelay(t *testing.T) {
	const name = "hedgedhttp-50ms"
	again, most := 0, 0
	for i, c := range readInFakeTime(t, "storage", 1, name)[name].Calls {
		late, body := storelab.PredictFirstRequest("storage", 1, int64(i))
		if late < 50*time.Millisecond {
			assert.Zero(t, c.Hedges, "read %d", i)
			assert.Equal(t, late+body, c.Latency, "a body that stalls is waited for")
			continue
		}
		again++
		assert.EqualValues(t, 1, c.Hedges, "read %d", i)
		assert.EqualValues(t, 1, c.Winner, "read %d", i)
		if c.Latency < 50*time.Millisecond+30*time.Millisecond {
			most++
		}
	}
	assert.Positive(t, again)
	assert.GreaterOrEqual(t, most, again*8/10, "two in a hundred of the second requests have a fault as well")
}

func TestRunReturnsTheResultsBeforeItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		rows, err := storelab.Run(ctx, lab.Config{Scenario: "storage", Contenders: []string{storelab.Plain, storelab.Rangeread}, Calls: 10_000})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, rows, 2)
		for _, r := range rows {
			assert.Greater(t, len(r.Calls), 500, r.Contender)
			assert.Less(t, len(r.Calls), 10_000)
			for _, c := range r.Calls {
				require.False(t, c.Failed(), r.Contender)
			}
		}
	})
}

func TestRunRejectsInvalidConfigs(t *testing.T) {
	for says, conf := range map[string]lab.Config{
		`scenario "x"; want one of storage`: {Scenario: "x"},
		`contender "x"; want one of none`:   {Scenario: "storage", Contenders: []string{"none", "x"}},
		"Calls is -1":                       {Scenario: "storage", Calls: -1},
	} {
		_, err := storelab.Run(t.Context(), conf)
		assert.ErrorContains(t, err, says)
	}
}

func TestWrongBytesAreSeen(t *testing.T) {
	p := make([]byte, 64<<10)
	storelab.FillBytes(p, 1<<20)
	require.NoError(t, storelab.CheckBytes(p, 1<<20))
	assert.ErrorContains(t, storelab.CheckBytes(p, 2<<20), "wrong bytes at 2097152")
	p[8<<10]++
	assert.ErrorContains(t, storelab.CheckBytes(p, 1<<20), "wrong bytes at 1056768")
}
