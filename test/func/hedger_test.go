package func_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestDoHedgesSlowFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stats *hedge.Stats
		h := hedge.NewHedger(hedge.WithStats(&stats))
		slow := false
		var n atomic.Int32
		f := func(ctx context.Context) (int, error) {
			me := int(n.Add(1))
			if slow && me == 1 {
				return 0, doubles.Sleep(ctx, time.Second)
			}
			return me, doubles.Sleep(ctx, usual)
		}
		for range 20 {
			_, err := hedge.Do(t.Context(), h, "query", f)
			require.NoError(t, err)
		}
		slow = true
		n.Store(0)
		got, err := hedge.Do(t.Context(), h, "query", f)
		require.NoError(t, err)
		assert.Equal(t, 2, got)
		assert.EqualValues(t, 1, stats.HedgeWins.Load())
		assert.Equal(t, "query", h.Snapshot().Keys[0].Host)

		n.Store(0)
		_, err = hedge.Do(hedge.WithoutHedging(t.Context()), h, "query", f)
		require.NoError(t, err)
		assert.EqualValues(t, 1, n.Load())

		h.SetEnabled(false)
		n.Store(0)
		_, err = hedge.Do(t.Context(), h, "query", f)
		require.NoError(t, err)
		assert.EqualValues(t, 1, n.Load())
		assert.Error(t, h.Update(func(c *hedge.Config) { c.MaxKeys = 0 }))
	})
}

func TestDoWithoutHedgerCallsOnce(t *testing.T) {
	got, err := hedge.Do(t.Context(), nil, "k", func(context.Context) (string, error) { return "v", errDown })
	assert.Equal(t, "v", got)
	assert.Same(t, errDown, err)
}

type file struct{ closed *atomic.Int32 }

func (f *file) Close() error { f.closed.Add(1); return errors.New("ignored") }

func TestDoClosesResultOfLoser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed, n atomic.Int32
		f := func(ctx context.Context) (*file, error) {
			if n.Add(1) == 1 {
				time.Sleep(50 * ms) // deaf to its context
			}
			return &file{&closed}, nil
		}
		h := hedge.NewHedger()
		got, err := hedge.Do(hedge.WithDelay(t.Context(), 10*ms), h, "k", f)
		require.NoError(t, err)
		synctest.Wait()
		assert.EqualValues(t, 1, closed.Load())
		assert.NotNil(t, got)
	})
}

// held is a result of Do that keeps its context.
type held struct {
	ctx, derived context.Context
	cancel       context.CancelFunc // not called
	after        atomic.Int32
	channel      <-chan struct{}
}

func hold(ctx context.Context) *held {
	h := &held{ctx: ctx, channel: ctx.Done()}
	h.derived, h.cancel = context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { h.after.Add(1) })
	return h
}

func (h *held) lives() bool {
	select {
	case <-h.channel:
		return false
	default:
		return h.ctx.Err() == nil && h.derived.Err() == nil && h.after.Load() == 0
	}
}

var errStop = errors.New("stop")

func TestContextOfWinnerLivesAsLongAsContextOfDo(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		for winner := range 3 { // 0: no hedge; 1: a hedge that loses; 2: a hedge that wins
			for _, detached := range []bool{false, true} {
				h := fixture.NewWarmHedger(t, hedge.WithMaxHedges(1))
				ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
				var n atomic.Int64
				var loser atomic.Pointer[held]
				f := func(ctx context.Context) (*held, error) {
					me := hold(ctx)
					if attempt := n.Add(1); winner == 0 || int(attempt) == winner {
						return me, doubles.Sleep(ctx, []time.Duration{usual, 3 * usual, usual}[winner])
					}
					loser.Store(me)
					return me, doubles.Sleep(ctx, time.Hour)
				}
				do := func() (*held, error) { return hedge.Do(ctx, h, "k", f) }
				if detached {
					do = func() (*held, error) { return hedge.DoDetached(ctx, h, "k", f, nil) }
				}
				won, err := do()
				require.NoError(t, err)
				time.Sleep(time.Minute)
				runtime.GC()
				synctest.Wait()
				assert.True(t, won.lives(), "winner %d", winner)
				assert.Equal(t, "value", won.derived.Value(key{}))
				later, stop := context.WithCancel(won.ctx)
				defer stop()
				assert.NoError(t, later.Err())

				if winner > 0 {
					lost := loser.Load()
					assert.Equal(t, context.Canceled, lost.ctx.Err())
					assert.Equal(t, context.Canceled, lost.derived.Err())
					assert.Equal(t, race.ErrLost, context.Cause(lost.ctx))
					assert.Equal(t, race.ErrLost, context.Cause(lost.derived))
					assert.EqualValues(t, 1, lost.after.Load())
				}

				cancel(errStop)
				synctest.Wait()
				<-won.channel
				for _, ctx := range []context.Context{won.ctx, won.derived, later} {
					assert.Equal(t, context.Canceled, ctx.Err())
					assert.Equal(t, errStop, context.Cause(ctx))
				}
				assert.EqualValues(t, 1, won.after.Load())
			}
		}
	})
}

func TestContextOfAttemptEndsWithErrorOfCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fixture.NewWarmHedger(t)
		for _, wait := range []time.Duration{0, time.Hour} { // the caller's deadline passes after Do, and during it
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errStop)
			defer cancel()
			var first atomic.Pointer[held]
			_, _ = hedge.Do(ctx, h, "k", func(ctx context.Context) (*held, error) {
				me := hold(ctx)
				first.CompareAndSwap(nil, me)
				return me, doubles.Sleep(ctx, wait)
			})
			time.Sleep(time.Second)
			synctest.Wait()
			for _, ctx := range []context.Context{first.Load().ctx, first.Load().derived} {
				assert.Equal(t, context.DeadlineExceeded, ctx.Err())
				assert.Equal(t, errStop, context.Cause(ctx))
			}
		}
	})
}

func TestContextOfAttemptEndsAtOnceWithCaller(t *testing.T) {
	h := fixture.NewWarmHedger(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, _ = hedge.Do(ctx, h, "k", func(ctx context.Context) (int, error) {
		cancel()
		assert.Error(t, ctx.Err())
		select {
		case <-ctx.Done():
		default:
			t.Error("it is not done")
		}
		return 0, nil
	})
}

// TestStoppedAfterFuncOfAttemptIsNotCalled stops an AfterFunc of the context itself and of derived contexts.
func TestStoppedAfterFuncOfAttemptIsNotCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fixture.NewWarmHedger(t)
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		var stopLater func() bool
		won, err := hedge.Do(ctx, h, "k", func(ctx context.Context) (context.Context, error) {
			assert.True(t, context.AfterFunc(ctx, func() { calls++ })())
			stopLater = context.AfterFunc(ctx, func() { calls++ })
			return ctx, nil
		})
		require.NoError(t, err)
		assert.True(t, stopLater())
		assert.False(t, stopLater())
		assert.True(t, context.AfterFunc(won, func() { calls++ })())
		cancel()
		synctest.Wait()
		assert.Zero(t, calls)
	})
}

// TestContextDerivedInDoStartsNoGoroutine also derives contexts from a WithValue of the context.
func TestContextDerivedInDoStartsNoGoroutine(t *testing.T) {
	type key struct{}
	h := fixture.NewWarmHedger(t)
	won, err := hedge.Do(t.Context(), h, "k", func(ctx context.Context) (context.Context, error) {
		before := runtime.NumGoroutine()
		_, cancel := context.WithCancel(context.WithValue(ctx, key{}, 1))
		defer cancel()
		assert.Equal(t, before, runtime.NumGoroutine())
		return ctx, nil
	})
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	_, cancel := context.WithCancel(context.WithValue(won, key{}, 1))
	defer cancel()
	assert.Equal(t, before, runtime.NumGoroutine())
}

// TestContextDerivedFromWinnerSurvivesGarbageCollection derives contexts that nothing else refers to.
func TestContextDerivedFromWinnerSurvivesGarbageCollection(t *testing.T) {
	type key struct{}
	life, cancel := context.WithCancel(t.Context())
	h := hedge.NewHedger(hedge.WithMinDelay(time.Hour))
	var wg sync.WaitGroup
	for range 100 {
		wg.Add(2)
		_, err := hedge.Do(life, h, "k", func(ctx context.Context) (int, error) {
			context.AfterFunc(ctx, wg.Done)
			context.AfterFunc(context.WithValue(ctx, key{}, 1), wg.Done)
			return 0, nil
		})
		require.NoError(t, err)
	}
	for range 5 {
		runtime.GC()
	}
	cancel()
	wg.Wait()
}

// TestDoLeavesNothingOnLongLivedContext makes many calls with one context.
func TestDoLeavesNothingOnLongLivedContext(t *testing.T) {
	life, cancel := context.WithCancel(t.Context())
	defer cancel()
	caller := &fixture.CountingContext{Context: life}
	h := hedge.NewHedger()
	for range 1000 {
		_, err := hedge.Do(caller, h, "k", func(ctx context.Context) (int, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			<-time.After(time.Microsecond)
			return 0, ctx.Err()
		})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		return caller.Children.Load() == 0
	}, 10*time.Second, time.Millisecond, "contexts hang on the caller's")
}

// TestDoneChannelClosesWithCallerAfterDo starts goroutines that keep only the channel ctx.Done().
func TestDoneChannelClosesWithCallerAfterDo(t *testing.T) {
	life, cancel := context.WithCancel(t.Context())
	caller := &fixture.CountingContext{Context: life}
	h := hedge.NewHedger(hedge.WithMinDelay(time.Hour))
	var wg sync.WaitGroup
	for range 100 {
		_, err := hedge.Do(caller, h, "k", func(ctx context.Context) (int, error) {
			done := ctx.Done()
			wg.Go(func() { <-done })
			return 0, nil
		})
		require.NoError(t, err)
	}
	for range 5 {
		runtime.GC()
	}
	// The first ten calls are not hedged: their function gets the caller's own context.
	assert.EqualValues(t, 90, caller.Children.Load(), "somebody waits")
	cancel()
	wg.Wait()
}

func TestDoDetachedReturnsWithWinner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fixture.NewWarmHedger(t, hedge.WithMaxHedges(1))
		var n, discarded, discards atomic.Int64
		deaf := func(context.Context) (int64, error) {
			me := n.Add(1)
			if me == 1 {
				time.Sleep(time.Second)
			}
			time.Sleep(usual)
			return me, nil
		}
		start := time.Now()
		got, err := hedge.DoDetached(t.Context(), h, "k", deaf, func(v int64) {
			discarded.Store(v)
			discards.Add(1)
		})
		require.NoError(t, err)
		assert.EqualValues(t, 2, got)
		assert.Less(t, time.Since(start), 3*usual)
		assert.EqualValues(t, 1, h.Snapshot().Stats.HedgeWins)
		assert.Zero(t, discards.Load())
		time.Sleep(time.Second + usual)
		assert.EqualValues(t, 1, discarded.Load())
		assert.EqualValues(t, 1, discards.Load(), "once")
	})
}

func TestDoDetachedReturnsWhenItsContextEnds(t *testing.T) {
	for name, warm := range map[string]func(*testing.T, ...hedge.FuncOption) *hedge.Hedger{
		"warm": fixture.NewWarmHedger,
		"cold": func(_ *testing.T, opts ...hedge.FuncOption) *hedge.Hedger { return hedge.NewHedger(opts...) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := warm(t)
				var running, discarded atomic.Int64
				for range 3 * hedge.MaxDetached { // each leaves up to three behind, one after the other
					ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
					start := time.Now()
					_, err := hedge.DoDetached(ctx, h, "k", func(ctx context.Context) (int, error) {
						running.Add(1)
						defer running.Add(-1)
						time.Sleep(time.Second)
						assert.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
						return 1, nil
					}, func(int) { discarded.Add(1) })
					assert.Equal(t, context.DeadlineExceeded, err)
					assert.Equal(t, 100*ms, time.Since(start))
					assert.Positive(t, running.Load())
					cancel()
					before := discarded.Load()
					time.Sleep(time.Second)
					assert.Zero(t, running.Load())
					assert.Positive(t, discarded.Load()-before, "results after the end of the context are discarded")
				}
				stats := h.Snapshot().Stats
				assert.Equal(t, 3*hedge.MaxDetached+stats.HedgesSent, discarded.Load(), "once each")
			})
		})
	}
}

func TestDoDetachedWaitsWithoutFreeSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hedge.NewHedger()
		var running atomic.Int64
		call := func(wait time.Duration) time.Duration {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			start := time.Now()
			_, err := hedge.DoDetached(ctx, h, "k", func(context.Context) (int, error) {
				running.Add(1)
				defer running.Add(-1)
				time.Sleep(time.Second)
				return 0, nil
			}, nil)
			if time.Since(start) < time.Second {
				assert.Equal(t, context.DeadlineExceeded, err)
			} else {
				assert.NoError(t, err, "the caller waited for this answer")
			}
			return time.Since(start)
		}
		var left, waited atomic.Int64
		var wg sync.WaitGroup
		for range 2 * hedge.MaxDetached {
			wg.Go(func() {
				switch took := call(10 * ms); took {
				case 10 * ms:
					left.Add(1)
				case time.Second:
					waited.Add(1)
				default:
					assert.Failf(t, "took", "%v", took)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, hedge.MaxDetached, left.Load())
		assert.EqualValues(t, hedge.MaxDetached, waited.Load())
		synctest.Wait()
		assert.Zero(t, running.Load())
		assert.Equal(t, 10*ms, call(10*ms), "a slot is free again")
		time.Sleep(time.Second)
	})
}

func TestDoDetachedWithoutHedgerCallsOnce(t *testing.T) {
	var n int
	f := func(context.Context) (int, error) { n++; return n, errDown }
	got, err := hedge.DoDetached(t.Context(), nil, "k", f, nil)
	assert.Equal(t, 1, got)
	assert.Same(t, errDown, err)
	got, err = hedge.DoDetached(hedge.WithoutHedging(t.Context()), hedge.NewHedger(), "k", f, nil)
	assert.Equal(t, 2, got)
	assert.Same(t, errDown, err)
}

func TestDoDetachedDiscardsNoFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fixture.NewWarmHedger(t, hedge.WithMaxHedges(1))
		var n atomic.Int64
		_, err := hedge.DoDetached(t.Context(), h, "k", func(context.Context) (int, error) {
			if n.Add(1) == 1 {
				time.Sleep(time.Second)
				return 7, errDown
			}
			return 0, nil
		}, func(int) { t.Error("discarded") })
		require.NoError(t, err)
		time.Sleep(time.Minute)
	})
}

func TestDoDetachedClosesResultOfLoser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed, n atomic.Int32
		_, err := hedge.DoDetached(hedge.WithDelay(t.Context(), 10*ms), fixture.NewWarmHedger(t), "k", func(context.Context) (*file, error) {
			if n.Add(1) == 1 {
				time.Sleep(time.Second)
			}
			return &file{&closed}, nil
		}, nil)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, closed.Load())
	})
}

func TestDoDetachedCountsPanicsOfLosers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fixture.NewWarmHedger(t, hedge.WithMaxHedges(1))
		for _, late := range []func() int{func() int { panic("late") }, func() int { return 1 }} { // its own, and discard's
			var n atomic.Int64
			_, err := hedge.DoDetached(t.Context(), h, "k", func(context.Context) (int, error) {
				if n.Add(1) == 1 {
					time.Sleep(time.Second)
					return late(), nil
				}
				return 0, nil
			}, func(int) { panic("discard") })
			require.NoError(t, err)
			time.Sleep(time.Minute)
		}
		assert.EqualValues(t, 2, h.Snapshot().Stats.HedgePanics)
		defer func() { // in another goroutine than it was raised in, whose stack it therefore brings
			assert.ErrorContains(t, recover().(error), "hedge: attempt panicked: first")
		}()
		_, _ = hedge.DoDetached(t.Context(), h, "k", func(context.Context) (int, error) { panic("first") }, nil)
		t.Error("the panic is the caller's")
	})
}

// TestDoDetachedLimitsAbandonedCalls makes calls whose first attempts never end.
func TestDoDetachedLimitsAbandonedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fixture.NewWarmHedger(t, hedge.WithMaxHedges(1), hedge.WithBudget(hedge.NewBudget(300, 10_000)))
		stuck := make(chan struct{})
		var running, most atomic.Int64
		call := func() {
			var n atomic.Int64
			_, err := hedge.DoDetached(hedge.WithDelay(t.Context(), ms), h, "k", func(context.Context) (int, error) {
				defer running.Add(-1)
				if now := running.Add(1); now > most.Load() {
					most.Store(now)
				}
				if n.Add(1) == 1 && most.Load() <= hedge.MaxDetached {
					<-stuck
				} else {
					time.Sleep(5 * ms)
				}
				return 0, nil
			}, nil)
			assert.NoError(t, err)
		}
		for range 2 * hedge.MaxDetached {
			call()
		}
		assert.EqualValues(t, hedge.MaxDetached+1, most.Load())
		assert.EqualValues(t, hedge.MaxDetached, running.Load())
		denied := h.Snapshot().Keys[0].Denied
		assert.Positive(t, denied[hedge.DeniedInFlight], "%v", denied)

		close(stuck)
		synctest.Wait()
		before := h.Snapshot().Stats.HedgesSent
		call()
		assert.Equal(t, before+1, h.Snapshot().Stats.HedgesSent, "a slot is free again")
		time.Sleep(time.Minute)
	})
}

// handed is a value that counts its Close calls.
type handed struct{ closed atomic.Int64 }

func (h *handed) Close() error { h.closed.Add(1); return nil }

// several is a closer of a type that is not comparable.
type several []*handed

func (s several) Close() error {
	for _, h := range s {
		_ = h.Close()
	}
	return nil
}

// closeFunc is a function that implements io.Closer.
type closeFunc func() error

func (c closeFunc) Close() error { return c() }

// twiceFrom makes calls by Do and DoDetached in which f is called twice, and returns the result of the last call and the statistics.
func twiceFrom[T any](t *testing.T, f func() T) (got T, stats *hedge.Stats) {
	h := hedge.NewHedger(hedge.WithStats(&stats), hedge.WithMaxHedges(1))
	for _, do := range []func(context.Context, func(context.Context) (T, error)) (T, error){
		func(ctx context.Context, f func(context.Context) (T, error)) (T, error) {
			return hedge.Do(ctx, h, "k", f)
		},
		func(ctx context.Context, f func(context.Context) (T, error)) (T, error) {
			return hedge.DoDetached(ctx, h, "k", f, nil)
		},
	} {
		var calls atomic.Int64
		var err error
		got, err = do(hedge.WithDelay(t.Context(), 10*ms), func(context.Context) (T, error) {
			if calls.Add(1) == 1 {
				time.Sleep(30 * ms)
			}
			return f(), nil
		})
		require.NoError(t, err)
		time.Sleep(time.Second)
		synctest.Wait()
		require.EqualValues(t, 2, calls.Load())
	}
	return got, stats
}

// logged is a result with a pointer that is usually nil.
type logged struct {
	io.Closer
	Failed error
	More   [1]any
}

// TestDoDoesNotCloseItsResult returns the same value from both calls, as a cache or a pool may do.
func TestDoDoesNotCloseItsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := new(handed)
		_, _ = twiceFrom(t, func() *handed { return one })
		_, _ = twiceFrom(t, func() io.Closer { return one })
		_, _ = twiceFrom(t, func() any { return one })
		_, _ = twiceFrom(t, func() logged { return logged{Closer: one} })
		_, _ = twiceFrom(t, func() io.Closer { return logged{Closer: one} })
		assert.Zero(t, one.closed.Load())

		var mu sync.Mutex
		var all []*handed
		each := func() *handed {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, new(handed))
			return all[len(all)-1]
		}
		got, _ := twiceFrom(t, each)
		assert.Zero(t, got.closed.Load())
		_, _ = twiceFrom(t, func() several { return several{each()} })
		_, _ = twiceFrom(t, func() closeFunc { return each().Close })
		closed := 0
		for _, h := range all {
			closed += int(h.closed.Load())
		}
		assert.Equal(t, 6, closed, "one of every two results")
	})
}

func TestDoIgnoresNilResultOfLoser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, stats := twiceFrom(t, func() *handed { return nil })
		assert.Zero(t, stats.HedgePanics.Load())
		_, stats = twiceFrom(t, func() io.Closer { return (*handed)(nil) })
		assert.Zero(t, stats.HedgePanics.Load())
		_, stats = twiceFrom(t, func() io.Closer { return nil })
		assert.Zero(t, stats.HedgePanics.Load())
	})
}
