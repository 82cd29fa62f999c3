package race_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/race"
)

// guardedRace runs a race that a hedge wins after 15 ms, and returns the context of its
// primary, which is guarded.
func guardedRace(style race.Style, primary func(a *race.Attempt, g *race.Guard)) race.Result[string] {
	s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
		if n == 1 {
			return takes(0, 5*ms)(a, n)
		}
		g := new(race.Guard)
		a.Guard(g)
		primary(a, g)
		g.Returned()
		return "", context.Cause(a)
	}}
	out, _ := run(s, style, 10*ms)
	return out
}

func TestLoserThatWaitsForAConnectionDoesNotLinger(t *testing.T) {
	for _, waits := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			linger := race.Style{Detach: true, Linger: &race.Linger{Max: 8}, Grace: time.Second}
			guardedRace(linger, func(a *race.Attempt, g *race.Guard) {
				g.Waiting(a)
				if !waits {
					g.Connected(a, false, 0)
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

// teller is a script whose attempts say how far their connections are.
type teller struct{ *script }

func (teller) Tells(int) bool { return true }

func TestLoserThatSaysNothingLingersUnlessItWouldTell(t *testing.T) {
	for _, tells := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
				if n == 0 {
					<-a.Done()
					ended <- time.Since(start)
					return "", context.Cause(a)
				}
				return takes(0, 5*ms)(a, n)
			}}
			op, want := race.Op[string](s), 15*ms+time.Second
			if tells {
				op, want = teller{s}, 15*ms
			}
			var r race.Race[string]
			r.Style = race.Style{Detach: true, Linger: &race.Linger{Max: 8}, Grace: time.Second}
			r.Run(t.Context(), op, s, []time.Duration{10 * ms})
			assert.Equal(t, want, <-ended)
		})
	}
}

func TestPromptLoserLingersOnlyIfItsCancellationWouldBePutOff(t *testing.T) {
	for name, test := range map[string]struct {
		connect func(a *race.Attempt, g *race.Guard)
		lingers bool
	}{
		"a new connection":           {func(a *race.Attempt, g *race.Guard) { g.Connected(a, false, 0) }, false},
		"one that was idle for long": {func(a *race.Attempt, g *race.Guard) { g.Connected(a, true, time.Second) }, false},
		"one that was just in use":   {func(a *race.Attempt, g *race.Guard) { g.Connected(a, true, 0) }, true},
		"its answer arrives":         {func(a *race.Attempt, g *race.Guard) { g.Answering(a) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, ended := time.Now(), make(chan time.Duration, 1)
				prompt := race.Style{Detach: true, Linger: &race.Linger{Max: 8}, Grace: 3 * time.Second, Prompt: true}
				guardedRace(prompt, func(a *race.Attempt, g *race.Guard) {
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

func TestAnswerThatArrivesIsNotCancelled(t *testing.T) {
	for arriving, want := range map[time.Duration]time.Duration{
		30 * ms:          30 * ms,       // the answer is there: cancelled then
		10 * time.Second: race.Patience, // it never comes
	} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			guardedRace(detached, func(a *race.Attempt, g *race.Guard) {
				context.AfterFunc(a, func() { ended <- time.Since(start) })
				g.Answering(a)
				select {
				case <-time.After(arriving):
				case <-a.Done():
				}
			})
			assert.Equal(t, want, <-ended)
		})
	}
}

func TestLoserWhoseAnswerBeganLongAgoLingersNoLonger(t *testing.T) {
	for began, want := range map[time.Duration]time.Duration{0: 15*ms + time.Second, 15 * ms: 15*ms + time.Second, 100 * ms: 100*ms + race.Patience} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			linger := race.Style{Detach: true, Linger: &race.Linger{Max: 8}, Grace: time.Second}
			guardedRace(linger, func(a *race.Attempt, g *race.Guard) {
				g.Connected(a, false, 0)
				time.Sleep(began)
				g.Answering(a) // a status of 1xx, of which nobody tells
				<-a.Done()
				ended <- time.Since(start)
			})
			assert.Equal(t, want, <-ended)
		})
	}
}

func TestAnswerToACancelledAttemptWaitsForItsEnd(t *testing.T) {
	for lasts, want := range map[time.Duration]time.Duration{3 * ms: 3 * ms, time.Hour: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			held := make(chan time.Duration, 1)
			guardedRace(detached, func(a *race.Attempt, g *race.Guard) {
				<-a.Done()
				go func() { // the connection's reader
					start := time.Now()
					g.Answering(a)
					held <- time.Since(start)
				}()
				time.Sleep(lasts)
			})
			assert.Equal(t, want, <-held)
			time.Sleep(time.Hour)
		})
	}
}

func TestConnectionThatOthersHaveJustUsedIsNotCancelledAtOnce(t *testing.T) {
	for idle, want := range map[time.Duration]time.Duration{0: 100 * ms, 60 * ms: 40 * ms, 90 * ms: 15 * ms, time.Hour: 15 * ms} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			out := guardedRace(detached, func(a *race.Attempt, g *race.Guard) {
				g.Connected(a, true, idle)
				<-a.Done()
				ended <- time.Since(start)
			})
			assert.Equal(t, 1, out.Winner)
			assert.Equal(t, 15*ms, time.Since(start), "nobody waits for that")
			assert.Equal(t, want, <-ended, "idle for %v", idle)
		})
	}
}

func TestCancelledAttemptLetsItsConnectionSettle(t *testing.T) {
	for _, used := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			took := make(chan time.Duration, 1)
			guardedRace(detached, func(a *race.Attempt, g *race.Guard) {
				g.Waiting(a)
				<-a.Done() // and the connection comes at the same moment
				start := time.Now()
				g.Connected(a, used, 30*ms)
				took <- time.Since(start)
			})
			assert.Equal(t, map[bool]time.Duration{true: 70 * ms, false: 0}[used], <-took)
		})
	}
}

func TestAnswerThatArrivesWhileTheConnectionSettlesIsNotCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, ended := time.Now(), make(chan time.Duration, 1)
		guardedRace(detached, func(a *race.Attempt, g *race.Guard) {
			context.AfterFunc(a, func() { ended <- time.Since(start) })
			g.Connected(a, true, 0)
			time.Sleep(50 * ms)
			g.Answering(a)
			time.Sleep(200 * ms)
		})
		assert.Equal(t, 250*ms, <-ended)
	})
}

func TestRepetitionOnAnotherConnectionCanBeCancelledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, ended := time.Now(), make(chan time.Duration, 1)
		guardedRace(detached, func(a *race.Attempt, g *race.Guard) {
			g.Answering(a)
			g.Connected(a, false, 0)
			<-a.Done()
			ended <- time.Since(start)
		})
		assert.Equal(t, 15*ms, <-ended)
	})
}

// --- what a loser may not do to a caller ---

// slowly discards slowly.
type slowly struct {
	*script
	discards time.Duration
}

func (s slowly) Discard(v string, err error) {
	time.Sleep(s.discards)
	s.script.Discard(v, err)
}

func TestDiscardingDelaysNobody(t *testing.T) {
	for name, attempt := range map[string]func(*race.Attempt, int) (string, error){
		"a hedge that failed": func(a *race.Attempt, n int) (string, error) {
			if n == 1 {
				return "busy", errDown
			}
			_, _ = takes(40*ms)(a, n)
			return "busy", errDown
		},
		"a primary that came late": func(_ *race.Attempt, n int) (string, error) { // and is deaf to its context
			time.Sleep([]time.Duration{40 * ms, 5 * ms}[n])
			return "answer", nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := slowly{&script{attempt: attempt}, time.Second}
				var r race.Race[string]
				start := time.Now()
				r.Style = inPlace
				r.Run(context.Background(), s, s, []time.Duration{10 * ms})
				assert.Equal(t, 40*ms, time.Since(start))
				time.Sleep(2 * time.Second)
				assert.Len(t, s.gone(), 1)
			})
		})
	}
}

// panics is an Op and a Gate that panics where it is told.
type panics struct {
	*script
	admit, discard bool
}

func (p panics) Admit(int) bool {
	if p.admit {
		panic("gate")
	}
	return true
}

func (p panics) Discard(string, error) {
	if p.discard {
		panic("discard")
	}
}

func TestPanicOnTheTimersGoroutineEndsNothing(t *testing.T) {
	styles(t, func(t *testing.T, style race.Style) {
		for _, p := range []panics{
			{script: &script{attempt: takes(40*ms, 5*ms)}, admit: true},
			{script: &script{attempt: func(a *race.Attempt, n int) (string, error) {
				if n == 1 {
					return "", errDown
				}
				return takes(40*ms)(a, n)
			}}, discard: true},
		} {
			var r race.Race[string]
			start := time.Now()
			r.Style = style
			out := r.Run(context.Background(), p, p, []time.Duration{10 * ms})
			assert.Equal(t, "answer 0", out.Value)
			assert.Equal(t, 40*ms, time.Since(start))
			synctest.Wait()
		}
	})
}

func whereItHappened(m map[string]int) { m["a"] = 1 }

func TestPanicOfADetachedPrimarySaysWhereItHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{attempt: func(*race.Attempt, int) (string, error) { whereItHappened(nil); return "", nil }}
		defer func() {
			err, ok := recover().(error)
			if assert.True(t, ok) {
				assert.Contains(t, err.Error(), "assignment to entry in nil map")
				assert.Contains(t, err.Error(), "whereItHappened")
			}
		}()
		run(s, detached, 10*ms)
	})
}

// --- contexts ---

func TestCauseOfTheCallersDeadlineReachesEveryAttempt(t *testing.T) {
	mine := errors.New("my budget is spent")
	styles(t, func(t *testing.T, style race.Style) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 30*ms, mine)
		defer cancel()
		var saw [2]error
		var causes [2]error
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			derived, cancel := context.WithCancel(a)
			defer cancel()
			<-derived.Done()
			saw[n], causes[n] = derived.Err(), context.Cause(derived)
			return "", saw[n]
		}}
		runIn(ctx, s, style, 10*ms)
		synctest.Wait()
		for n := range saw {
			assert.Equal(t, context.DeadlineExceeded, saw[n], "attempt %d", n)
			assert.Same(t, mine, causes[n], "attempt %d", n)
		}
	})
}

func TestLoserLingersNoLongerThanTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 300*ms)
		defer cancel()
		start, ended := time.Now(), make(chan time.Duration, 1)
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 1 {
				return "hedge", nil
			}
			<-a.Done()
			ended <- time.Since(start)
			return "", a.Err()
		}}
		_, took := runIn(ctx, s, race.Style{Detach: true, Linger: &race.Linger{Max: 8}, Grace: time.Hour}, 10*ms)
		assert.Equal(t, 10*ms, took)
		cancel() // as callers do when they have their answer
		assert.Equal(t, 300*ms, <-ended)
	})
}

func TestANoteDoesNotPutOffTheCancellation(t *testing.T) {
	for name, at := range map[string]time.Duration{"before it": 5 * ms, "after it": 40 * ms} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, ended := time.Now(), make(chan time.Duration, 1)
				guardedRace(race.Style{Detach: true}, func(a *race.Attempt, g *race.Guard) { // lost after 15 ms
					time.Sleep(5 * ms)
					g.Answering(a) // a 103 begins to arrive
					time.Sleep(at)
					g.Informed()
					<-a.Done()
					ended <- time.Since(start)
				})
				assert.Equal(t, max(15*ms, 5*ms+at), <-ended)
			})
		})
	}
}

// stuck is an operation whose Discard ends with its attempt's context.
type stuck struct {
	*script
	contexts chan context.Context
	ended    chan time.Time
}

func (s stuck) Attempt(a *race.Attempt, n int) (string, error) {
	if n > 0 {
		s.contexts <- a
		return "refused", errDown
	}
	return s.script.Attempt(a, n)
}

func (s stuck) Discard(v string, err error) {
	<-(<-s.contexts).Done()
	s.ended <- time.Now()
}

func TestAttemptWhoseDiscardingTakesTooLongIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stuck{&script{attempt: takes(10 * time.Second)}, make(chan context.Context, 1), make(chan time.Time, 1)}
		start := time.Now()
		linger := &race.Linger{Max: 1}
		var r race.Race[string]
		r.Style = race.Style{Detach: true, Linger: linger, Grace: time.Second}
		out := r.Run(t.Context(), s, s, []time.Duration{time.Second})
		assert.Zero(t, out.Winner)
		assert.Equal(t, 2*time.Second, (<-s.ended).Sub(start))
		synctest.Wait()
		assert.Zero(t, linger.Len())
	})
}
