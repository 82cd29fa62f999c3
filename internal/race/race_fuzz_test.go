package race_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/hedgetest"
	"github.com/gohedge/hedge/internal/race"
)

// fate is what befalls one attempt, read from three bytes.
type fate struct {
	lasts time.Duration
	fails bool
	panic bool
	deaf  bool // to its context
}

// fated makes attempts as their fates say, and counts what must balance.
type fated struct {
	fates    []fate
	refuse   byte // a bit for each stage
	flying   atomic.Int32
	begun    atomic.Int32
	released [1 + race.MaxHedges]atomic.Int32
	answered [1 + race.MaxHedges]atomic.Bool
	started  [1 + race.MaxHedges]atomic.Int32
	landed   [1 + race.MaxHedges][race.Failed + 1]atomic.Int32
}

func (f *fated) Started(_ context.Context, n int)               { f.started[n].Add(1) }
func (f *fated) Landed(_ context.Context, n int, how race.Fate) { f.landed[n][how].Add(1) }

type ticket struct{ n int }

var errFate = errors.New("fate")

func (f *fated) Admit(stage int) bool { return f.refuse>>stage&1 == 0 }

func (f *fated) Attempt(a *race.Attempt, n int) (*ticket, error) {
	f.begun.Add(1)
	f.flying.Add(1)
	defer f.flying.Add(-1)
	my := f.fates[n]
	if my.deaf {
		time.Sleep(my.lasts)
	} else if err := hedgetest.Sleep(a, my.lasts); err != nil {
		return nil, err
	}
	if my.panic && n > 0 {
		panic("fate")
	}
	f.answered[n].Store(true)
	if my.fails {
		return &ticket{n}, errFate
	}
	return &ticket{n}, nil
}

func (f *fated) Discard(v *ticket, _ error) {
	if v != nil {
		f.released[v.n].Add(1)
	}
}

// FuzzRun holds every schedule of attempts against what must be true of any
// race: no attempt outlives it, it has a winner or an error, every answer is
// either returned or discarded, once, no success is passed over for a failure,
// and a watch hears of every attempt once, and of the right winner.
func FuzzRun(f *testing.F) {
	f.Add([]byte{1, 5, 0, 20, 0, 3, 0, 2, 2, 9, 1, 30, 4})
	f.Add([]byte{2, 0, 2, 9, 1, 8, 4, 7, 1, 1, 1, 1, 1})
	f.Add([]byte{7, 255, 0, 10, 8, 10, 1, 10, 2, 10, 0, 40, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		next := func() byte {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return b
		}
		mode := next()
		op := &fated{refuse: next()}
		for range 1 + race.MaxHedges {
			lasts, bits := next(), next()
			op.fates = append(op.fates, fate{
				lasts: time.Duration(lasts) * ms, fails: bits&1 != 0, panic: bits&2 != 0, deaf: bits&4 != 0,
			})
		}
		var delays []time.Duration
		for at, n := time.Duration(0), mode>>2%(race.MaxHedges+1); n > 0; n-- {
			at += time.Duration(1+next()%64) * ms
			delays = append(delays, at)
		}
		timeout := time.Duration(next()) * ms // 0: none

		synctest.Test(t, func(t *testing.T) {
			linger := &race.Linger{Max: 1}
			style := []race.Style{{}, {Join: true}, {Detach: true}, {Detach: true, Linger: linger, Grace: 50 * ms}}[mode%4]
			style.Watch = op
			ctx, cancel := context.Background(), func() {}
			if timeout > 0 {
				ctx, cancel = context.WithTimeout(ctx, timeout)
			}
			defer cancel()

			var r race.Race[*ticket]
			out := r.Run(ctx, op, op, delays, style)
			if style.Join {
				require.Zero(t, op.flying.Load(), "a joined race leaves nobody behind")
			}
			require.LessOrEqual(t, out.Started, 1+len(delays))
			if out.Winner >= 0 {
				require.NoError(t, out.Err)
				require.Equal(t, out.Winner, out.Value.n)
				require.False(t, op.fates[out.Winner].fails)
			} else {
				require.Error(t, out.Err)
				if out.Value != nil {
					require.Zero(t, out.Value.n, "a failed race returns the primary's value")
				}
			}

			reused := r.Reset()
			require.True(t, !reused || out.Started == 1)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Zero(t, op.flying.Load())
			require.Zero(t, linger.Len())
			require.EqualValues(t, out.Started, op.begun.Load(), "nothing starts after the race")
			for n := range op.landed {
				begun := int32(0)
				if n < out.Started {
					begun = 1
				}
				won, all := op.landed[n][race.Won].Load(), int32(0)
				for how := range op.landed[n] {
					all += op.landed[n][how].Load()
				}
				require.Equal(t, begun, op.started[n].Load(), "attempt %d", n)
				require.Equal(t, begun, all, "attempt %d is told of once", n)
				require.Equal(t, n == out.Winner, won == 1, "attempt %d", n)
			}
			for n := range op.answered {
				want := op.answered[n].Load()
				if out.Value != nil && out.Value.n == n {
					require.True(t, want)
					want = false // it is the caller's
				}
				require.Equal(t, want, op.released[n].Load() == 1, "attempt %d discarded %d times", n, op.released[n].Load())
				require.LessOrEqual(t, op.released[n].Load(), int32(1))
				if out.Winner < 0 && op.answered[n].Load() && !op.fates[n].fails {
					require.True(t, ctx.Err() != nil, "a success was passed over")
				}
			}
		})
	})
}
