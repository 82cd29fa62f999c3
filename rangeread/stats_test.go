package rangeread_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/rangeread"
)

// TestStatsHaveReasonsOfDeniedHedges: each reason by itself, and together all that were denied.
func TestStatsHaveReasonsOfDeniedHedges(t *testing.T) {
	const part = 64 * kib
	late := func(int, rangeread.Range) answer { return answer{first: time.Hour} }
	t.Run("too little time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := rangeread.NewStore(rangeread.Options{PartSize: part})
			warm(t, store, part)
			f := newFake(part)
			f.plan = late
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), store.Stats().Classes[0].Delay+ms)
				_, err := store.Open(f.fetch).ReadAtContext(ctx, make([]byte, part), 0)
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			s := store.Stats()
			assert.EqualValues(t, 3, s.Denied)
			assert.Equal(t, map[observe.Reason]int64{observe.DeniedDeadline: 3}, s.DeniedBy)
			assert.Zero(t, s.DeniedBytes)
		})
	})
	t.Run("too few bytes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := rangeread.NewStore(rangeread.Options{PartSize: part})
			warm(t, store, part)
			f := newFake(part)
			f.plan = late
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range 4 { // two are due for each, and the burst pays for four parts
				go func() { _, _ = store.Open(f.fetch).ReadAtContext(ctx, make([]byte, part), 0) }()
			}
			<-ctx.Done()
			synctest.Wait()
			s := store.Stats()
			assert.EqualValues(t, 4, s.Denied)
			assert.EqualValues(t, 4, s.DeniedBytes)
			assert.Equal(t, map[observe.Reason]int64{observe.DeniedBudget: 4}, s.DeniedBy)
		})
	})
	t.Run("shadow mode", func(t *testing.T) {
		t.Setenv("HEDGE_MODE", "shadow")
		synctest.Test(t, func(t *testing.T) {
			f := newFake(part)
			f.plan = given(answer{first: time.Second})
			store, _, took, err := readWarm(t, f, part)
			require.NoError(t, err)
			assert.Equal(t, time.Second, took)
			s := store.Stats()
			assert.Positive(t, s.DeniedBy[observe.DeniedShadow])
			assert.Equal(t, map[observe.Reason]int64{observe.DeniedShadow: s.Denied}, s.DeniedBy)
			s.DeniedBy[observe.DeniedShadow] = 0 // it is a copy
			assert.Positive(t, store.Stats().DeniedBy[observe.DeniedShadow])
		})
	})
}

// TestStatsHaveModeOfStore checks the fields that explain all other numbers.
func TestStatsHaveModeOfStore(t *testing.T) {
	type set struct {
		enabled, shadow bool
		maxBytes        int64
	}
	is := func(o rangeread.Options) set {
		s := rangeread.NewStore(o).Stats()
		return set{s.Enabled, s.Shadow, s.MaxBytes}
	}
	assert.Equal(t, set{true, false, rangeread.DefaultMaxBytes}, is(rangeread.Options{}))
	assert.Equal(t, set{true, false, 0}, is(rangeread.Options{MaxBytes: -1}))
	assert.Equal(t, set{false, false, 5}, is(rangeread.Options{MaxBytes: 5, BudgetPercent: rangeread.NoBudget}))
	t.Setenv("HEDGE_MODE", "shadow")
	assert.Equal(t, set{true, true, rangeread.DefaultMaxBytes}, is(rangeread.Options{}))
	t.Setenv("HEDGE_DISABLED", "true")
	assert.False(t, is(rangeread.Options{}).enabled)
}

// captureDefaultLog returns what slog.Default writes until the end of the test.
func captureDefaultLog(t *testing.T) *bytes.Buffer {
	before, writer, flags := slog.Default(), log.Writer(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(writer)
		log.SetFlags(flags)
	})
	logged := new(bytes.Buffer)
	slog.SetDefault(slog.New(slog.NewTextHandler(logged, nil)))
	return logged
}

// TestNewStoreLogsThatBudgetOfEnvironmentHasNoEffect looks for a warning of this run, because a process logs each warning once.
func TestNewStoreLogsThatBudgetOfEnvironmentHasNoEffect(t *testing.T) {
	logged := captureDefaultLog(t)
	value := fmt.Sprint("5.", time.Now().UnixNano())
	t.Setenv("HEDGE_BUDGET_PERCENT", value)
	assert.True(t, rangeread.NewStore(rangeread.Options{}).Stats().Enabled)
	assert.Contains(t, logged.String(), `level=WARN msg="rangeread: a variable of the environment has no effect here" variable=HEDGE_BUDGET_PERCENT value=`+value)
}

func TestNewStoreLogsInvalidEnvironment(t *testing.T) {
	for _, variable := range []string{"HEDGE_DISABLED", "HEDGE_MODE"} {
		t.Run(variable, func(t *testing.T) {
			logged := captureDefaultLog(t)
			value := fmt.Sprint("yess", time.Now().UnixNano()) // a process logs each warning once
			t.Setenv(variable, value)
			s := rangeread.NewStore(rangeread.Options{}).Stats()
			assert.True(t, !s.Enabled || s.Shadow, "no hedge is sent")
			assert.Contains(t, logged.String(), `level=WARN msg="rangeread: a variable of the environment cannot be understood, so no hedge is sent" variable=`+variable+" value="+value)
		})
	}
}

// TestStatsHaveAtMost29Classes checks the limit for reads of any length.
func TestStatsHaveAtMost29Classes(t *testing.T) {
	const most = 256 << 20
	store := rangeread.NewStore(rangeread.Options{PartSize: most})
	reader := store.Open(newFake(0).fetch)
	p := make([]byte, most+1)
	for n := 1; n <= most; n *= 2 {
		for _, length := range []int{n, n + 1} {
			_, _ = reader.ReadAt(p[:length], 0)
		}
	}
	classes := store.Stats().Classes
	require.Len(t, classes, 29)
	for i, c := range classes {
		assert.EqualValues(t, 1<<i, c.Length)
	}
}
