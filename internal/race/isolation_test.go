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

// --- effects of losers on callers ---

// slowly is an Op whose Discard takes a given time.
type slowly struct {
	*script
	discards time.Duration
}

func (s slowly) Discard(v string, err error) {
	time.Sleep(s.discards)
	s.script.Discard(v, err)
}

func TestDiscardDelaysNoCaller(t *testing.T) {
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
				r.Style = inPlace.Options
				r.Run(context.Background(), s, after(10*ms))
				assert.Equal(t, 40*ms, time.Since(start))
				time.Sleep(2 * time.Second)
				assert.Len(t, s.gone(), 1)
			})
		})
	}
}

// panics is an Op with a method that panics.
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

func TestPanicInGoroutineOfTimerIsRecovered(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
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
			r.Style = style.Options
			out := r.Run(context.Background(), p, after(10*ms))
			assert.Equal(t, "answer 0", out.Value)
			assert.Equal(t, 40*ms, time.Since(start))
			synctest.Wait()
		}
	})
}

func whereItHappened(m map[string]int) { m["a"] = 1 }

func TestPanicOfAsynchronousPrimaryHasItsStack(t *testing.T) {
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

func TestEveryAttemptHasCauseOfCallerDeadline(t *testing.T) {
	mine := errors.New("my budget is spent")
	styles(t, func(t *testing.T, style setup) {
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
