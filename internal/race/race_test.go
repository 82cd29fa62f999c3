package race_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/race"
)

const ms = time.Millisecond

// script is an Op whose attempts run given functions. It records the calls of its methods.
type script struct {
	attempt func(a *race.Attempt, n int) (string, error)
	admit   func(index int) bool // nil admits

	mu        sync.Mutex
	started   []int
	discarded []string
	errs      []error // of discarded attempts
}

func (s *script) Attempt(a *race.Attempt, n int) (string, error) {
	s.mu.Lock()
	s.started = append(s.started, n)
	s.mu.Unlock()
	return s.attempt(a, n)
}

func (s *script) Discard(v string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discarded = append(s.discarded, v)
	s.errs = append(s.errs, err)
}

func (s *script) Admit(index int) bool { return s.admit == nil || s.admit(index) }
func (s *script) Ended(int)            {}

func (s *script) gone() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.discarded))
}

// lingering is a LoserPolicy that cancels losers after a grace period. It holds every failure.
type lingering struct {
	grace time.Duration
	count atomic.Int32 // losers that run on
}

func (l *lingering) Lost(a *race.Attempt, _ int, _ bool) func() {
	l.count.Add(1)
	timer := time.AfterFunc(l.grace, a.Cancel)
	return func() { timer.Stop(); l.count.Add(-1) }
}

func (*lingering) IsQueued(*race.Attempt) bool { return false }

func (*lingering) Failed(_ *race.Attempt, v string, _ error, _ func()) (string, bool) { return v, true }

// after returns a schedule with one delay.
func after(d time.Duration) *race.FixedSchedule {
	return &race.FixedSchedule{Delays: []time.Duration{d}, UsualLatency: time.Second}
}

// takes returns an attempt that succeeds after the n-th duration, unless it is cancelled before.
func takes(ds ...time.Duration) func(*race.Attempt, int) (string, error) {
	return func(a *race.Attempt, n int) (string, error) {
		if err := doubles.Sleep(a, ds[n]); err != nil {
			return "", err
		}
		return fmt.Sprint("answer ", n), nil
	}
}

// A setup is the style in which a test runs a race.
type setup struct {
	race.Options[string]
	usual time.Duration // see [race.FixedSchedule]
}

func run(s *script, style setup, delays ...time.Duration) (race.Result[string], time.Duration) {
	return runIn(context.Background(), s, style, delays...)
}

func runIn(ctx context.Context, s *script, style setup, delays ...time.Duration) (race.Result[string], time.Duration) {
	var r race.Race[string]
	start := time.Now()
	r.Style = style.Options
	out := r.Run(ctx, s, &race.FixedSchedule{Delays: delays, UsualLatency: style.usual})
	return out, time.Since(start)
}

var (
	inPlace  = setup{usual: time.Second}
	detached = setup{race.Options[string]{Async: true}, time.Second}
)

// styles runs f in every style, each in a bubble of fake time.
func styles(t *testing.T, f func(t *testing.T, style setup)) {
	for name, style := range map[string]setup{
		"in place": inPlace, "detached": detached,
		"lingering": {race.Options[string]{Async: true, LoserPolicy: &lingering{grace: time.Second}}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, style) })
		})
	}
}

func TestRunStartsNoHedgeForFastPrimary(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: takes(9 * ms)}
		out, took := run(s, style, 10*ms, 20*ms)
		assert.Equal(t, "answer 0", out.Value)
		assert.NoError(t, out.Err)
		assert.Equal(t, 0, out.Winner)
		assert.Equal(t, 1, out.Started)
		assert.Equal(t, 9*ms, took)
		time.Sleep(time.Second)
		assert.Equal(t, []int{0}, s.started, "no hedge starts once the primary has returned")
		assert.Empty(t, s.gone())
	})
}

func TestRunReturnsHedgeBeforeSlowPrimary(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: takes(500*ms, 5*ms)}
		out, took := run(s, style, 10*ms, 100*ms)
		assert.Equal(t, "answer 1", out.Value)
		assert.Equal(t, 1, out.Winner)
		assert.Equal(t, 2, out.Started)
		assert.Equal(t, 15*ms, took)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Len(t, s.gone(), 1, "the loser is discarded")
	})
}

func TestRunStartsSecondHedgeAfterItsDelay(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: takes(500*ms, 500*ms, 5*ms)}
		out, took := run(s, style, 10*ms, 30*ms)
		assert.Equal(t, 2, out.Winner)
		assert.Equal(t, 35*ms, took)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Len(t, s.gone(), 2)
	})
}

func TestRunReturnsPrimaryThatSucceedsBeforeHedge(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: takes(12*ms, 50*ms)}
		out, took := run(s, style, 10*ms)
		assert.Equal(t, 0, out.Winner)
		assert.Equal(t, 2, out.Started)
		assert.Equal(t, 12*ms, took)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Len(t, s.gone(), 1)
	})
}

var errDown = errors.New("down")

func TestRunReturnsFailureWithoutHedgesAtOnce(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(*race.Attempt, int) (string, error) { return "reply", errDown }}
		out, took := run(s, style, 10*ms)
		assert.Same(t, errDown, out.Err)
		assert.Equal(t, "reply", out.Value, "a failure keeps its value")
		assert.Equal(t, -1, out.Winner)
		assert.Zero(t, took)
		time.Sleep(time.Second)
		assert.Equal(t, []int{0}, s.started, "hedging is not retrying")
	})
}

func TestRunReturnsSlowSuccessAfterFastFailure(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 1 {
				return "failed hedge", errDown
			}
			return takes(40*ms)(a, n)
		}}
		out, took := run(s, style, 10*ms)
		assert.Equal(t, "answer 0", out.Value)
		assert.NoError(t, out.Err)
		assert.Equal(t, 40*ms, took)
		assert.Equal(t, []string{"failed hedge"}, s.gone())
	})
}

func TestRunHoldsFailureWhileHedgeRuns(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				return "failed primary", errors.Join(doubles.Sleep(a, 20*ms), errDown)
			}
			return takes(0, 30*ms)(a, n)
		}}
		out, took := run(s, style, 10*ms)
		assert.Equal(t, "answer 1", out.Value)
		assert.Equal(t, 40*ms, took)
		synctest.Wait()
		assert.Equal(t, []string{"failed primary"}, s.gone())
	})
}

func TestRunReturnsErrorOfPrimaryIfAllAttemptsFail(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			_ = doubles.Sleep(a, 20*ms)
			return fmt.Sprint("failed ", n), []error{errDown, errors.New("other")}[n]
		}}
		out, took := run(s, style, 10*ms)
		assert.Same(t, errDown, out.Err, "verbatim")
		assert.Equal(t, "failed 0", out.Value)
		assert.Equal(t, -1, out.Winner)
		assert.Equal(t, 30*ms, took)
		synctest.Wait()
		assert.Equal(t, []string{"failed 1"}, s.gone())
	})
}

func TestRunWaitsForPrimaryAfterRefusedHedge(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: takes(50 * ms), admit: func(int) bool { return false }}
		out, took := run(s, style, 10*ms, 20*ms)
		assert.Equal(t, 0, out.Winner)
		assert.Equal(t, 1, out.Started)
		assert.Equal(t, 50*ms, took)
	})
}

func TestRunAsksForAdmissionAtEachDelay(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: takes(time.Second, 5*ms), admit: func(index int) bool { return index == 1 }}
		out, took := run(s, style, 10*ms, 20*ms)
		assert.Equal(t, 1, out.Winner)
		assert.Equal(t, 25*ms, took)
		time.Sleep(2 * time.Second)
	})
}

func TestRunStartsAtMostMaxHedges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{attempt: takes(time.Second, time.Second, time.Second, time.Second)}
		out, took := run(s, inPlace, 10*ms, 20*ms, 30*ms, 40*ms, 50*ms)
		assert.Equal(t, 1+race.MaxHedges, out.Started)
		assert.Equal(t, time.Second, took)
	})
}

func TestRunStartsHedgeAtLateDelayAfterDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{attempt: takes(time.Second, 10*ms), admit: func(index int) bool { return index == 4 }}
		out, took := run(s, setup{}, 10*ms, 20*ms, 30*ms, 40*ms, 50*ms)
		assert.Equal(t, 1, out.Winner)
		assert.Equal(t, 60*ms, took)
	})
}

// paced is a schedule whose first hedge is due after 10 ms. The times of further hedges are not known in advance.
type paced struct {
	race.FixedSchedule
	next func() (time.Duration, bool)
}

func (p *paced) Next(index int) (time.Duration, bool) {
	if index == 0 {
		return 10 * ms, true
	}
	return p.next()
}

func (*paced) HedgeTimeout(time.Duration) time.Duration { return math.MaxInt64 }

func TestRunCallsNextOfScheduleAfterAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var asked []time.Duration
		var indices []int
		s := &script{attempt: takes(time.Second)}
		s.admit = func(index int) bool {
			asked, indices = append(asked, time.Since(start)), append(indices, index)
			return false
		}
		var r race.Race[string]
		out := r.Run(context.Background(), s, &paced{next: func() (time.Duration, bool) { return 30 * ms, len(asked) < 3 }})
		assert.Equal(t, "answer 0", out.Value)
		assert.Equal(t, []time.Duration{10 * ms, 40 * ms, 70 * ms}, asked)
		assert.Equal(t, []int{0, 1, 2}, indices)
	})
}

func TestRunReturnsHedgeOfCustomSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{attempt: takes(time.Second, 5*ms)}
		s.admit = func(index int) bool { return index == 2 }
		start := time.Now()
		var r race.Race[string]
		r.Style = detached.Options
		out := r.Run(context.Background(), s, &paced{next: func() (time.Duration, bool) { return 30 * ms, true }})
		assert.Equal(t, "answer 1", out.Value)
		assert.Equal(t, 75*ms, time.Since(start))
	})
}

func TestLoserIsCancelledWithErrLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause, err error
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 1 {
				return "hedge", nil
			}
			<-a.Done()
			cause, err = context.Cause(a), a.Err()
			return "", err
		}}
		_, took := run(s, inPlace, 10*ms)
		assert.Equal(t, 10*ms, took)
		assert.Equal(t, race.ErrLost, cause)
		assert.ErrorIs(t, cause, context.Canceled)
		assert.Same(t, context.Canceled, err)
	})
}

func TestRunReturnsErrorOfPrimaryWhenCallerCancels(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(15*ms, cancel)
		mine := errors.New("the transport's own words")
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			<-a.Done()
			assert.Same(t, context.Canceled, a.Err())
			return "", mine
		}}
		out, took := runIn(ctx, s, style, 10*ms)
		assert.Same(t, mine, out.Err)
		assert.Equal(t, 15*ms, took)
		synctest.Wait()
	})
}

func TestEveryAttemptHasDeadlineOfCaller(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*ms)
		defer cancel()
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			want, _ := ctx.Deadline()
			got, ok := a.Deadline()
			assert.True(t, ok)
			assert.Equal(t, want, got)
			<-a.Done()
			assert.Equal(t, context.DeadlineExceeded, context.Cause(a))
			return "", a.Err()
		}}
		out, took := runIn(ctx, s, style, 10*ms)
		assert.Equal(t, context.DeadlineExceeded, out.Err)
		assert.Equal(t, 30*ms, took)
		synctest.Wait()
	})
}

func TestRunReturnsBeforeAsynchronousPrimaryIfAbandoned(t *testing.T) {
	for _, may := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{attempt: func(_ *race.Attempt, n int) (string, error) {
				time.Sleep(time.Second)
				return fmt.Sprint("answer ", n), nil
			}}
			ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
			defer cancel()
			asked := 0
			out, took := runIn(ctx, s, setup{Options: race.Options[string]{Async: true, TryAbandon: func() bool { asked++; return may }}}, 10*ms)
			assert.Equal(t, 1, asked)
			if may {
				assert.Equal(t, context.DeadlineExceeded, out.Err)
				assert.Equal(t, -1, out.Winner)
				assert.Equal(t, 100*ms, took)
				assert.Nil(t, out.Attempt, "it still runs")
			} else {
				assert.Equal(t, "answer 0", out.Value)
				assert.Equal(t, time.Second, took)
			}
			time.Sleep(2 * time.Second)
			if may {
				assert.Equal(t, []string{"answer 0", "answer 1"}, s.gone())
			} else {
				assert.Equal(t, []string{"answer 1"}, s.gone())
			}
		})
	}
}

func TestRunReturnsHeldFailureWhenCallerCancels(t *testing.T) {
	for name, style := range map[string]setup{"in place": inPlace, "detached": detached,
		"lingering": {race.Options[string]{Async: true, LoserPolicy: &lingering{grace: time.Hour}}, time.Second}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
				defer cancel()
				s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
					if n == 0 {
						time.Sleep(20 * ms)
						return "", errDown
					}
					time.Sleep(time.Second) // deaf to its context
					return "deaf hedge", nil
				}}
				out, took := runIn(ctx, s, style, 10*ms)
				assert.Same(t, errDown, out.Err)
				assert.Equal(t, 50*ms, took)
				time.Sleep(2 * time.Second)
				assert.Equal(t, []string{"deaf hedge"}, s.gone(), "a late success is discarded")
			})
		})
	}
}

func TestRunWaitsForCancelledSynchronousPrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				time.Sleep(100 * ms)
				return "deaf primary", nil
			}
			return "hedge", nil
		}}
		out, took := run(s, inPlace, 10*ms)
		assert.Equal(t, "hedge", out.Value)
		assert.Equal(t, 100*ms, took)
		synctest.Wait()
		assert.Equal(t, []string{"deaf primary"}, s.gone())
	})
}

func TestRunDoesNotWaitForAsynchronousPrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				time.Sleep(100 * ms)
				return "deaf primary", nil
			}
			return "hedge", nil
		}}
		out, took := run(s, detached, 10*ms)
		assert.Equal(t, "hedge", out.Value)
		assert.Equal(t, 10*ms, took)
		time.Sleep(time.Second)
		assert.Equal(t, []string{"deaf primary"}, s.gone())
	})
}

func TestContextOfWinnerLivesUntilRelease(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var contexts [2]*race.Attempt
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			contexts[n] = a
			return takes(time.Second, 5*ms)(a, n)
		}}
		out, _ := runIn(ctx, s, style, 10*ms)
		require.Same(t, contexts[1], out.Attempt)
		assert.NoError(t, out.Attempt.Err())
		assert.True(t, out.Attempt.NeedsRelease())
		out.Attempt.Release()
		out.Attempt.Release()
		assert.ErrorIs(t, out.Attempt.Err(), context.Canceled)
		time.Sleep(2 * time.Second)
	})
}

func TestContextOfWinnerEndsWithCaller(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := &script{attempt: takes(time.Second, 5*ms)}
		out, _ := runIn(ctx, s, style, 10*ms)
		cancel(errDown)
		synctest.Wait()
		assert.ErrorIs(t, out.Attempt.Err(), context.Canceled)
		assert.Same(t, errDown, context.Cause(out.Attempt))
		time.Sleep(2 * time.Second)
	})
}

func TestPanicOfHedgeIsFailure(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 1 {
				panic("hedge")
			}
			return takes(40*ms)(a, n)
		}}
		out, took := run(s, style, 10*ms)
		assert.Equal(t, "answer 0", out.Value)
		assert.Equal(t, 40*ms, took)
		synctest.Wait()
		require.Len(t, s.errs, 1)
		var p *race.Panic
		require.ErrorAs(t, s.errs[0], &p)
		assert.Equal(t, "hedge", p.Value)
		assert.Contains(t, string(p.Stack), "race_test.go")
		assert.Contains(t, p.Error(), "panicked: hedge")
	})
}

func TestPanicOfHedgeDoesNotReplaceErrorOfPrimary(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 1 {
				panic("hedge")
			}
			_ = doubles.Sleep(a, 40*ms)
			return "", errDown
		}}
		out, _ := run(s, style, 10*ms)
		assert.Same(t, errDown, out.Err)
	})
}

func TestRunRethrowsPanicOfPrimary(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		hedged := errors.New("unset")
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				time.Sleep(20 * ms)
				panic(errDown)
			}
			hedged = doubles.Sleep(a, 20*ms)
			return "", errDown
		}}
		assert.PanicsWithError(t, "down", func() { run(s, style, 10*ms) })
		time.Sleep(time.Second)
		synctest.Wait()
		if style.Async {
			assert.NoError(t, hedged, "the panic is held like any failure")
		} else {
			assert.ErrorIs(t, hedged, context.Canceled, "the hedge does not outlive the race")
		}
	})
}

func TestRunIgnoresPanicOfAsynchronousPrimaryIfHedgeWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				time.Sleep(20 * ms)
				panic(errDown)
			}
			return takes(0, 20*ms)(a, n)
		}}
		out, _ := run(s, detached, 10*ms)
		assert.Equal(t, "answer 1", out.Value)
		synctest.Wait()
		var p *race.Panic
		require.ErrorAs(t, s.errs[0], &p)
	})
}

func TestGoexitOfPrimaryEndsGoroutineOfCaller(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(*race.Attempt, int) (string, error) { runtime.Goexit(); return "", nil }}
		returned := false
		done := make(chan struct{})
		go func() {
			defer close(done)
			run(s, style, 10*ms)
			returned = true
		}()
		<-done
		assert.False(t, returned)
	})
}

func TestHedgeIsNotAdmittedIfAdmitEndsGoroutine(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: takes(50*ms, 5*ms), admit: func(index int) bool {
			if index == 0 {
				runtime.Goexit()
			}
			return true
		}}
		out, took := run(s, style, 10*ms, 20*ms)
		assert.Equal(t, 1, out.Winner, "Admit is called again at the next delay")
		assert.Equal(t, 25*ms, took)
		time.Sleep(time.Second)
	})
}

// leaver is an AttemptObserver that ends the goroutine in which attempt n has ended.
type leaver int

func (leaver) AttemptStarted(context.Context, int) {}
func (l leaver) AttemptEnded(_ context.Context, n int, _ race.Outcome) {
	if n == int(l) {
		runtime.Goexit()
	}
}

func TestObserverThatEndsGoroutineEndsNothingElse(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		for n := range 2 { // the primary, and a hedge
			for _, wins := range []int{0, 1} {
				s := &script{attempt: takes([]time.Duration{20 * ms, time.Second}[wins], 15*ms)}
				style.Observer = leaver(n)
				var out *race.Result[string]
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					o, _ := run(s, style, 10*ms)
					out = &o
				}()
				<-ended
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if n == 0 && !style.Async { // the caller's goroutine
					assert.Nil(t, out)
					assert.Len(t, s.gone(), 2, "both are discarded")
					continue
				}
				require.NotNil(t, out)
				assert.Equal(t, wins, out.Winner)
				assert.Len(t, s.gone(), 1)
			}
		}
	})
}

func TestFailureIsDiscardedIfObserverEndsGoroutineOfCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				time.Sleep(15 * ms)
				return "primary", errors.New("failed")
			}
			<-a.Done()
			return "hedge", context.Cause(a)
		}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			run(s, setup{Options: race.Options[string]{Observer: leaver(0)}}, 10*ms)
		}()
		<-ended
		synctest.Wait()
		assert.Equal(t, []string{"hedge", "primary"}, s.gone())
	})
}

func TestWinningHedgeIsDiscardedIfPrimaryPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				<-a.Done()
				panic("primary")
			}
			return "hedge", nil
		}}
		assert.PanicsWithValue(t, "primary", func() { run(s, inPlace, 10*ms) })
		synctest.Wait()
		assert.Equal(t, []string{"hedge"}, s.gone())
	})
}

func TestResetReportsWhetherRaceIsReusable(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		var r race.Race[string]
		quick := &script{attempt: takes(5 * ms)}
		for range 3 {
			r.Style = style.Options
			out := r.Run(t.Context(), quick, after(10*ms))
			assert.Equal(t, "answer 0", out.Value)
			require.True(t, r.Reset())
		}
		slow := &script{attempt: takes(50*ms, 5*ms)}
		r.Style = style.Options
		out := r.Run(t.Context(), slow, after(10*ms))
		assert.Equal(t, 1, out.Winner)
		assert.False(t, r.Reset())
		time.Sleep(time.Second)
	})
}

func TestRunStartsNoHedgeWithoutDelays(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: takes(time.Hour)}
		out, took := run(s, style)
		assert.Equal(t, "answer 0", out.Value)
		assert.Equal(t, time.Hour, took)
	})
}

type key struct{}

func TestAttemptHasValuesOfCaller(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		defer cancel()
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			assert.Equal(t, "value", a.Value(key{}))
			a.Done()
			assert.Equal(t, "value", a.Value(key{}))
			return takes(50*ms, 5*ms)(a, n)
		}}
		runIn(ctx, s, style, 10*ms)
		time.Sleep(time.Second)
	})
}

// TestContextDerivedFromAttemptStartsNoGoroutine derives contexts from an Attempt, and from a WithValue of it. Package context starts a
// goroutine for a parent of an unknown type, which an Attempt must avoid.
func TestContextDerivedFromAttemptStartsNoGoroutine(t *testing.T) {
	s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
		before := runtime.NumGoroutine()
		for range 100 {
			child, cancel := context.WithCancel(context.WithValue(a, key{}, 1))
			defer cancel()
			assert.NoError(t, child.Err())
		}
		assert.Less(t, runtime.NumGoroutine(), before+50, "goroutines of other tests may still be ending")
		return "", nil
	}}
	for _, style := range []setup{inPlace, detached} {
		ctx, cancel := context.WithCancel(t.Context())
		runIn(ctx, s, style, time.Hour)
		cancel()
	}
}

func BenchmarkRace(b *testing.B) {
	delays := after(time.Second)
	for name, style := range map[string]setup{"in place": inPlace, "detached": detached} {
		b.Run(name, func(b *testing.B) {
			var r race.Race[string]
			b.ReportAllocs()
			for b.Loop() {
				r.Style = style.Options
				r.Run(context.Background(), quickOp{}, delays)
				r.Reset()
			}
		})
	}
}

type quickOp struct{}

func (quickOp) Attempt(*race.Attempt, int) (string, error) { return "", nil }
func (quickOp) Discard(string, error)                      {}
func (quickOp) Admit(int) bool                             { return true }
func (quickOp) Ended(int)                                  {}

// --- failure of the primary ---

// holding runs a race whose primary fails after 200 ms. Its hedge is due after 50 ms and hangs until it is cancelled.
func holding(t *testing.T, style setup, hedge func(a *race.Attempt)) (took time.Duration) {
	cancelled := make(chan time.Duration, 1)
	start := time.Now()
	s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
		if n == 0 {
			time.Sleep(200 * ms)
			return "primary", errDown
		}
		if hedge != nil {
			hedge(a)
		}
		<-a.Done()
		cancelled <- time.Since(start)
		return "", context.Cause(a)
	}}
	out, took := run(s, style, 50*ms)
	assert.Same(t, errDown, out.Err)
	assert.Equal(t, "primary", out.Value)
	assert.Equal(t, took, <-cancelled, "the hedge is cancelled then")
	return took
}

func TestFailureIsHeldUntilTimeoutOfYoungestHedge(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		for usual, want := range map[time.Duration]time.Duration{
			0:               250 * ms, // as long as the primary took
			ms:              200 * ms, // the youngest has had it already
			140 * ms:        200 * ms,
			160 * ms:        210 * ms,
			300 * ms:        350 * ms,
			time.Hour:       50*ms + time.Second,
			900 * ms:        950 * ms,
			-5 * time.Hour:  250 * ms,
			time.Nanosecond: 200 * ms,
		} {
			style.usual = usual
			assert.Equal(t, want, holding(t, style, nil), "%v", usual)
		}
	})
}

func TestFailureIsHeldWithoutLimitIfScheduleHasNoTimeout(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				time.Sleep(20 * ms)
				return "", errDown
			}
			return takes(0, time.Hour)(a, n)
		}}
		var r race.Race[string]
		r.Style = style.Options
		start := time.Now()
		out := r.Run(t.Context(), s, &paced{next: func() (time.Duration, bool) { return 0, false }})
		assert.Equal(t, "answer 1", out.Value)
		assert.Equal(t, time.Hour+10*ms, time.Since(start))
	})
}

func TestBoundHedgeTimeout(t *testing.T) {
	for _, c := range []struct{ usual, took, want time.Duration }{
		{0, 0, 10 * ms}, {0, 50 * ms, 50 * ms}, {0, 5 * time.Second, 5 * time.Second},
		{ms, 50 * ms, 10 * ms}, {30 * ms, 5 * ms, 30 * ms}, {2 * time.Second, 5 * ms, time.Second}, {2 * time.Second, 3 * time.Second, 2 * time.Second},
		{9 * time.Second, 3 * time.Second, 3 * time.Second},
	} {
		assert.Equal(t, c.want, race.HedgeTimeoutAfterFailure(c.usual, c.took), "%v", c)
	}
}

func TestRunStartsNoHedgeAfterFailureOfPrimary(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				time.Sleep(15 * ms)
				return "", errDown
			}
			return takes(0, 100*ms)(a, n)
		}}
		out, took := run(s, style, 10*ms, 20*ms, 30*ms)
		assert.Equal(t, "answer 1", out.Value)
		assert.Equal(t, 110*ms, took)
		assert.Equal(t, []int{0, 1}, s.started)
	})
}

// keeper is a LoserPolicy that replaces the value of a failed primary by another value.
type keeper func(release func()) (wait bool)

func (keeper) Lost(a *race.Attempt, _ int, running bool) func() {
	if running {
		a.Cancel()
	}
	return nil
}

func (keeper) IsQueued(*race.Attempt) bool { return false }

func (k keeper) Failed(_ *race.Attempt, v string, _ error, release func()) (string, bool) {
	return "held " + v, k(release)
}

func TestReleaseEndsHoldOfFailure(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		for name, c := range map[string]struct {
			hold keeper
			want time.Duration
		}{
			"at once":      {func(func()) bool { return false }, 20 * ms},
			"after 30 ms":  {func(release func()) bool { time.AfterFunc(30*ms, release); return true }, 50 * ms},
			"at the bound": {func(release func()) bool { time.AfterFunc(time.Hour, release); return true }, 10*ms + time.Second},
		} {
			var r race.Race[string]
			start := time.Now()
			h := &script{attempt: func(a *race.Attempt, n int) (string, error) {
				if n == 0 {
					time.Sleep(20 * ms)
					return "primary", errDown
				}
				<-a.Done()
				return "", context.Cause(a)
			}}
			r.Style = style.Options
			r.Style.LoserPolicy = c.hold
			out := r.Run(t.Context(), h, &race.FixedSchedule{Delays: []time.Duration{10 * ms}, UsualLatency: style.usual})
			assert.Same(t, errDown, out.Err)
			assert.Equal(t, "held primary", out.Value, name)
			assert.Equal(t, c.want, time.Since(start), name)
			time.Sleep(2 * time.Hour)
			assert.Empty(t, slices.DeleteFunc(h.gone(), func(v string) bool { return v == "" }), "the returned result is not discarded")
		}
		h := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			time.Sleep(20 * ms)
			if n == 0 {
				return "primary", errDown
			}
			return "hedge", nil
		}}
		var r race.Race[string]
		r.Style = style.Options
		r.Style.LoserPolicy = keeper(func(func()) bool { return true })
		out := r.Run(t.Context(), h, &race.FixedSchedule{Delays: []time.Duration{10 * ms}, UsualLatency: style.usual})
		assert.Equal(t, "hedge", out.Value)
		synctest.Wait()
		assert.Equal(t, []string{"held primary"}, h.gone())
	})
}

func TestErrAnswerEndsRaceOnlyFromPrimary(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		for bad := range 2 {
			s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
				v, err := takes(50*ms, 5*ms)(a, n)
				if n == bad && err == nil {
					err = race.ErrAnswer
				}
				return v, err
			}}
			style.Observer = nil
			out, took := run(s, style, 10*ms)
			if bad == 0 {
				assert.Equal(t, "answer 1", out.Value)
				assert.Zero(t, out.AnswersNotTaken)
				time.Sleep(time.Minute)
				continue
			}
			assert.Equal(t, "answer 0", out.Value)
			assert.NoError(t, out.Err)
			assert.Equal(t, 50*ms, took)
			assert.Equal(t, 1, out.AnswersNotTaken)
		}
		out, _ := run(&script{attempt: func(*race.Attempt, int) (string, error) { return "not found", race.ErrAnswer }}, style, 10*ms)
		assert.NoError(t, out.Err)
		assert.Zero(t, out.Winner)
	})
}

func TestResetClearsEveryFieldOfStyle(t *testing.T) {
	var r race.Race[string]
	s := &script{attempt: func(*race.Attempt, int) (string, error) { return "", nil }}
	r.Style = race.Options[string]{Async: true, Detach: race.DetachAll, FreshTimer: true, LoserPolicy: new(lingering),
		TryAbandon: func() bool { return true }, Observer: leaver(race.MaxHedges + 1), Primary: new(race.Attempt)}
	style := reflect.ValueOf(&r.Style).Elem()
	for i := range style.NumField() {
		require.False(t, style.Field(i).IsZero(), "a field without a value here: %s", style.Type().Field(i).Name)
	}
	r.Run(t.Context(), s, new(race.FixedSchedule))
	require.True(t, r.Reset())
	assert.True(t, style.IsZero(), "%+v", r.Style)
}
