package loser_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/loser"
	"github.com/gohedge/hedge/internal/race"
)

const ms = time.Millisecond

// A call is the operation of a race, together with the guard and the list of losers.
type call struct {
	attempt func(a *race.Attempt, n int) (string, error)
	discard func(v string) // nil does nothing
	losers  *loser.List    // nil: a list of 8
	terms   loser.EndOptions

	mu        sync.Mutex // guards discarded
	discarded []string
}

var _ race.LoserPolicy[string] = (*call)(nil)

func (c *call) Attempt(a *race.Attempt, n int) (string, error) { return c.attempt(a, n) }
func (c *call) Admit(int) bool                                 { return true }
func (c *call) Ended(int)                                      {}

func (c *call) Discard(v string, _ error) {
	if c.discard != nil {
		c.discard(v)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.discarded = append(c.discarded, v)
}

func (c *call) Lost(a *race.Attempt, _ int, running bool) func() {
	if running {
		return c.losers.EndLoser(a, c.terms)
	}
	return c.losers.Add(a, c.terms.Grace)
}

func (c *call) IsQueued(a *race.Attempt) bool { return loser.IsQueued(a) }

func (c *call) Failed(_ *race.Attempt, v string, _ error, _ func()) (string, bool) { return v, true }

// results returns the values that were discarded, sorted.
func (c *call) results() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.discarded))
}

// run runs a race with one hedge after the delay, and returns its result and its duration.
func (c *call) run(ctx context.Context, delay time.Duration) (race.Result[string], time.Duration) {
	if c.losers == nil {
		c.losers = &loser.List{Max: 8}
	}
	var r race.Race[string]
	r.Style = race.Options[string]{Async: true, LoserPolicy: c}
	start := time.Now()
	out := r.Run(ctx, c, &race.FixedSchedule{Delays: []time.Duration{delay}, UsualLatency: time.Second})
	return out, time.Since(start)
}

// answerAfter returns an attempt that succeeds after the n-th duration, unless it is cancelled before.
func answerAfter(ds ...time.Duration) func(*race.Attempt, int) (string, error) {
	return func(a *race.Attempt, n int) (string, error) {
		if err := doubles.Sleep(a, ds[n]); err != nil {
			return "", err
		}
		return fmt.Sprint("answer ", n), nil
	}
}

// runGuarded runs a race that a hedge wins after 15 ms. The primary is guarded.
func runGuarded(terms loser.EndOptions, primary func(a *race.Attempt, g *loser.Guard)) race.Result[string] {
	c := &call{terms: terms, attempt: func(a *race.Attempt, n int) (string, error) {
		if n == 1 {
			return answerAfter(0, 5*ms)(a, n)
		}
		g := new(loser.Guard)
		g.Attach(a)
		primary(a, g)
		g.Returned()
		return "", context.Cause(a)
	}}
	out, _ := c.run(context.Background(), 10*ms)
	return out
}

// cancelledAtOnce are the options for losers without a grace period.
var cancelledAtOnce = loser.EndOptions{}

func TestListCancelsLoserThatWaitsForConnection(t *testing.T) {
	for _, waits := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			runGuarded(loser.EndOptions{Grace: time.Second}, func(a *race.Attempt, g *loser.Guard) {
				g.GetConn()
				if !waits {
					g.GotConn(a, false, 0)
				}
				<-a.Done()
				ended <- time.Since(start)
			})
			want := 15 * ms
			if !waits {
				want += time.Second
			}
			assert.Equal(t, want, <-ended)
		})
	}
}

func TestListKeepsPromptLoserOnlyIfItsCancellationIsDelayed(t *testing.T) {
	for name, test := range map[string]struct {
		connect func(a *race.Attempt, g *loser.Guard)
		lingers bool
	}{
		"a new connection":           {func(a *race.Attempt, g *loser.Guard) { g.GotConn(a, false, 0) }, false},
		"one that was idle for long": {func(a *race.Attempt, g *loser.Guard) { g.GotConn(a, true, time.Second) }, false},
		"one that was just in use":   {func(a *race.Attempt, g *loser.Guard) { g.GotConn(a, true, 0) }, true},
		"its answer arrives":         {func(a *race.Attempt, g *loser.Guard) { g.ResponseStarted(a) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, ended := time.Now(), make(chan time.Duration, 1)
				runGuarded(loser.EndOptions{Grace: 3 * time.Second, Prompt: true}, func(a *race.Attempt, g *loser.Guard) {
					test.connect(a, g)
					<-a.Done()
					ended <- time.Since(start)
				})
				if took := <-ended; test.lingers {
					assert.GreaterOrEqual(t, took, 3*time.Second)
				} else {
					assert.Equal(t, 15*ms, took)
				}
			})
		})
	}
}

func TestGuardDelaysCancellationWhileResponseArrives(t *testing.T) {
	for arriving, want := range map[time.Duration]time.Duration{
		30 * ms:          30 * ms,              // the answer is there: cancelled then
		10 * time.Second: loser.MaxCancelDelay, // it never comes
	} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			runGuarded(cancelledAtOnce, func(a *race.Attempt, g *loser.Guard) {
				context.AfterFunc(a, func() { ended <- time.Since(start) })
				g.ResponseStarted(a)
				select {
				case <-time.After(arriving):
				case <-a.Done():
				}
			})
			assert.Equal(t, want, <-ended)
		})
	}
}

func TestGuardDelaysCancellationAfterGraceOnlyWhileResponseIsRecent(t *testing.T) {
	for began, want := range map[time.Duration]time.Duration{0: 15*ms + time.Second, 15 * ms: 15*ms + time.Second, 100 * ms: 100*ms + loser.MaxCancelDelay} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			runGuarded(loser.EndOptions{Grace: time.Second}, func(a *race.Attempt, g *loser.Guard) {
				g.GotConn(a, false, 0)
				time.Sleep(began)
				g.ResponseStarted(a) // a status of 1xx, of which nobody tells
				<-a.Done()
				ended <- time.Since(start)
			})
			assert.Equal(t, want, <-ended)
		})
	}
}

func TestGuardHoldsResponseOfCancelledAttemptUntilItReturns(t *testing.T) {
	for lasts, want := range map[time.Duration]time.Duration{3 * ms: 3 * ms, time.Hour: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			held := make(chan time.Duration, 1)
			runGuarded(cancelledAtOnce, func(a *race.Attempt, g *loser.Guard) {
				<-a.Done()
				go func() { // the connection's reader
					start := time.Now()
					g.ResponseStarted(a)
					held <- time.Since(start)
				}()
				time.Sleep(lasts)
			})
			assert.Equal(t, want, <-held)
			time.Sleep(time.Hour)
		})
	}
}

func TestGuardDelaysCancellationUntilUsedConnectionHasSettled(t *testing.T) {
	for idle, want := range map[time.Duration]time.Duration{0: 100 * ms, 60 * ms: 40 * ms, 90 * ms: 15 * ms, time.Hour: 15 * ms} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			out := runGuarded(cancelledAtOnce, func(a *race.Attempt, g *loser.Guard) {
				g.GotConn(a, true, idle)
				<-a.Done()
				ended <- time.Since(start)
			})
			assert.Equal(t, 1, out.Winner)
			assert.Equal(t, 15*ms, time.Since(start), "the caller does not wait until the connection has settled")
			assert.Equal(t, want, <-ended, "idle for %v", idle)
		})
	}
}

func TestGuardLetsConnectionOfCancelledAttemptSettle(t *testing.T) {
	for _, used := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			took := make(chan time.Duration, 1)
			runGuarded(cancelledAtOnce, func(a *race.Attempt, g *loser.Guard) {
				g.GetConn()
				<-a.Done() // and the connection comes at the same moment
				start := time.Now()
				g.GotConn(a, used, 30*ms)
				took <- time.Since(start)
			})
			assert.Equal(t, map[bool]time.Duration{true: 70 * ms, false: 0}[used], <-took)
		})
	}
}

func TestGuardDelaysCancellationForResponseThatArrivesWhileConnectionSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, ended := time.Now(), make(chan time.Duration, 1)
		runGuarded(cancelledAtOnce, func(a *race.Attempt, g *loser.Guard) {
			context.AfterFunc(a, func() { ended <- time.Since(start) })
			g.GotConn(a, true, 0)
			time.Sleep(50 * ms)
			g.ResponseStarted(a)
			time.Sleep(200 * ms)
		})
		assert.Equal(t, 250*ms, <-ended)
	})
}

func TestGuardAllowsCancellationOfAttemptSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, ended := time.Now(), make(chan time.Duration, 1)
		runGuarded(cancelledAtOnce, func(a *race.Attempt, g *loser.Guard) {
			g.ResponseStarted(a)
			g.GotConn(a, false, 0)
			<-a.Done()
			ended <- time.Since(start)
		})
		assert.Equal(t, 15*ms, <-ended)
	})
}

func TestGuardAllowsCancellationAfter1xx(t *testing.T) {
	for name, at := range map[string]time.Duration{"before it": 5 * ms, "after it": 40 * ms} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, ended := time.Now(), make(chan time.Duration, 1)
				runGuarded(cancelledAtOnce, func(a *race.Attempt, g *loser.Guard) { // lost after 15 ms
					time.Sleep(5 * ms)
					g.ResponseStarted(a) // a 103 begins to arrive
					time.Sleep(at)
					g.Got1xx()
					<-a.Done()
					ended <- time.Since(start)
				})
				assert.Equal(t, max(15*ms, 5*ms+at), <-ended)
			})
		})
	}
}
