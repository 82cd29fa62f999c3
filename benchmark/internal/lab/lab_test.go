package lab_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
)

func TestOpenLoopSendsCallsWhenTheyAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, sent := time.Now(), make([]time.Duration, 4)
		made := lab.Load{Interarrival: lab.ConstantRate(100)}.Run(t.Context(), len(sent), func(i int) {
			sent[i] = time.Since(start)
			time.Sleep(time.Second) // delays no other call
		})
		assert.Equal(t, 4, made)
		assert.Equal(t, []time.Duration{0, 10 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond}, sent)
		assert.Equal(t, 1030*time.Millisecond, time.Since(start), "Send waits for the last call")
	})
}

func TestClosedLoopSendsACallWhenAWorkerIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, sent := time.Now(), make([]time.Duration, 5)
		made := lab.Load{Workers: 2}.Run(t.Context(), len(sent), func(i int) {
			sent[i] = time.Since(start)
			time.Sleep(time.Second)
		})
		assert.Equal(t, 5, made)
		assert.Equal(t, []time.Duration{0, 0, time.Second, time.Second, 2 * time.Second}, sent)
	})
}

func TestLoadStopsWhenItsContextEnds(t *testing.T) {
	for name, load := range map[string]lab.Load{"open": {Interarrival: lab.ConstantRate(1)}, "closed": {Workers: 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
				defer cancel()
				var calls atomic.Int64
				made := load.Run(ctx, 100, func(int) {
					calls.Add(1)
					time.Sleep(time.Second)
				})
				assert.Equal(t, 3, made)
				assert.EqualValues(t, 3, calls.Load())
			})
		})
	}
}

func TestSelectionFollowsTheNames(t *testing.T) {
	all := []lab.Scenario{{Name: "clean"}, {Name: "lossy"}, {Name: "dead"}}
	assert.Equal(t, []string{"clean", "lossy", "dead"}, lab.NamesOf(all))
	selected, err := lab.SelectByName("scenario", all, []string{"dead", "clean"})
	require.NoError(t, err)
	assert.Equal(t, []string{"dead", "clean"}, lab.NamesOf(selected))
	selected, err = lab.SelectByName("scenario", all, nil)
	require.NoError(t, err)
	assert.Len(t, selected, 3)
	_, err = lab.SelectByName("scenario", all, []string{"clean", "sunny"})
	assert.EqualError(t, err, `scenario "sunny"; want one of clean, lossy, dead`)
}

func TestRecorderSortsCallsByIndex(t *testing.T) {
	var r lab.Recorder
	for _, i := range []int32{2, 0, 1} {
		r.Add(latency.Call{Index: i, Latency: time.Duration(i)})
	}
	assert.Equal(t, []latency.Call{{Index: 0}, {Index: 1, Latency: 1}, {Index: 2, Latency: 2}}, r.SortedCalls())
}
