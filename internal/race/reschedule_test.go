package race_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/race"
)

var errFatal = errors.New("fatal")

// A part is the behaviour of one attempt: its duration and its error.
type part struct {
	takes time.Duration
	err   func(took time.Duration) error // nil: it succeeds
}

// next is the error of a failed attempt after which the next hedge starts after d.
func next(hedges int, d time.Duration) func(time.Duration) error {
	return func(took time.Duration) error {
		return &grpcattempt.NonFatalError{Hedges: hedges, Elapsed: took, After: d}
	}
}

func fatal(time.Duration) error { return errFatal }

// acted is a script that runs parts and records the start of each.
func acted(parts ...part) (s *script, began func() []time.Duration) {
	var mu sync.Mutex
	var at []time.Duration
	start := time.Now()
	answers := takes(make([]time.Duration, len(parts))...)
	s = &script{attempt: func(a *race.Attempt, n int) (string, error) {
		mu.Lock()
		at = append(at, time.Since(start))
		mu.Unlock()
		if err := doubles.Sleep(a, parts[n].takes); err != nil {
			return "", err
		}
		answer, _ := answers(a, n)
		if f := parts[n].err; f != nil {
			return answer, f(time.Since(start))
		}
		return answer, nil
	}}
	return s, func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return at
	}
}

// runMovable runs a race with the schedule of a gRPC call.
func runMovable(ctx context.Context, s *script, style setup, delays ...time.Duration) (race.Result[string], time.Duration) {
	var r race.Race[string]
	start := time.Now()
	r.Style = style.Options
	schedule := new(grpcattempt.Schedule)
	schedule.SetDelays(delays, style.usual)
	out := r.Run(ctx, s, schedule)
	return out, time.Since(start)
}

func TestFailureMovesNextHedge(t *testing.T) {
	const forever = time.Hour
	for name, test := range map[string]struct {
		parts  []part
		usual  time.Duration
		began  []time.Duration
		took   time.Duration
		winner int
	}{
		"at once, and the others keep their distance": {
			[]part{{20 * ms, next(3, 0)}, {forever, nil}, {forever, nil}, {10 * ms, nil}}, time.Second,
			[]time.Duration{0, 20 * ms, 120 * ms, 220 * ms}, 230 * ms, 3},
		"at once, if it is a hedge's": {
			[]part{{forever, nil}, {30 * ms, next(3, 0)}, {10 * ms, nil}}, time.Second,
			[]time.Duration{0, 100 * ms, 130 * ms}, 140 * ms, 2},
		"after a while": {
			[]part{{20 * ms, next(2, 400*ms)}, {forever, nil}, {10 * ms, nil}}, time.Second,
			[]time.Duration{0, 420 * ms, 520 * ms}, 530 * ms, 2},
		"one after the other": {
			[]part{{20 * ms, next(4, 0)}, {20 * ms, next(4, 0)}, {20 * ms, next(4, 0)}, {20 * ms, next(4, 0)}, {20 * ms, next(4, 0)}}, time.Second,
			[]time.Duration{0, 20 * ms, 40 * ms, 60 * ms, 80 * ms}, 100 * ms, -1},
		"if there is one": {
			[]part{{20 * ms, next(1, 0)}, {20 * ms, next(1, 0)}}, time.Second,
			[]time.Duration{0, 20 * ms}, 40 * ms, -1},
		"not if the primary has failed for good": {
			[]part{{120 * ms, fatal}, {50 * ms, next(3, 0)}}, time.Second,
			[]time.Duration{0, 100 * ms}, 150 * ms, -1},
		"not after longer than it may be held": {
			[]part{{20 * ms, next(3, 2*time.Second)}}, time.Second,
			[]time.Duration{0}, 20 * ms, -1},
		"then the one that was due does not start either": {
			[]part{{120 * ms, next(3, 2*time.Second)}, {300 * ms, next(3, 0)}, {10 * ms, nil}, {10 * ms, nil}}, time.Second,
			[]time.Duration{0, 100 * ms}, 400 * ms, -1},
		"how long it may be held does not grow with the hedges": {
			[]part{{20 * ms, next(4, time.Second)}, {20 * ms, next(4, 1010*ms)}, {10 * ms, nil}}, time.Second,
			[]time.Duration{0, 1020 * ms}, 1040 * ms, -1},
		"none that was put off is waited for, once none is to start": {
			[]part{{120 * ms, next(3, time.Second)}, {70 * ms, next(0, 0)}, {10 * ms, nil}}, time.Second,
			[]time.Duration{0, 100 * ms}, 170 * ms, -1},
		"a failure is held until the youngest had its time": {
			[]part{{20 * ms, next(2, 0)}, {forever, nil}, {forever, nil}}, 150 * ms,
			[]time.Duration{0, 20 * ms, 120 * ms}, 270 * ms, -1},
		"a failure for good of the last hedge ends the wait": {
			[]part{{20 * ms, next(3, 0)}, {30 * ms, fatal}}, time.Second,
			[]time.Duration{0, 20 * ms}, 50 * ms, -1},
		"a put off hedge replaces one that was due": {
			[]part{{forever, nil}, {30 * ms, next(3, 300*ms)}, {10 * ms, nil}}, time.Second,
			[]time.Duration{0, 100 * ms, 430 * ms}, 440 * ms, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for style, s := range map[string]setup{"in place": {}, "detached": detached} {
				t.Run(style, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						op, began := acted(test.parts...)
						s.usual = test.usual
						delays := []time.Duration{100 * ms, 200 * ms, 300 * ms, 400 * ms}
						out, took := runMovable(t.Context(), op, s, delays[:min(len(delays), max(len(test.parts)-1, 1))]...)
						assert.Equal(t, test.took, took)
						assert.Equal(t, test.began, began())
						assert.Equal(t, test.winner, out.Winner)
						time.Sleep(3 * time.Hour)
						assert.Equal(t, test.began, began(), "nothing starts after the race")
						assert.Len(t, op.gone(), len(test.began)-1, "all results except the returned one are discarded")
					})
				})
			}
		})
	}
}

// TestFailureMovesOnlyDelaysOfHedges checks that a slow marker is not moved.
func TestFailureMovesOnlyDelaysOfHedges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := acted(part{10 * ms, next(1, 0)}, part{500 * ms, nil})
		start := time.Now()
		var asked []time.Duration
		s.admit = func(index int) bool {
			asked = append(asked, time.Since(start))
			return index == 0
		}
		out, _ := runMovable(t.Context(), s, inPlace, 100*ms, 300*ms)
		assert.Equal(t, 1, out.Winner)
		assert.Equal(t, []time.Duration{10 * ms, 300 * ms}, asked)
	})
}

func TestRunDoesNotWaitForMovedHedgeThatIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := acted(part{10 * ms, next(3, 0)})
		s.admit = func(int) bool { return false }
		out, took := runMovable(t.Context(), s, inPlace, 100*ms, 200*ms, 300*ms)
		assert.Equal(t, 10*ms, took)
		assert.Equal(t, "answer 0", out.Value)
		assert.Equal(t, 1, out.Started)
	})
}

func TestRunDoesNotWaitForMovedHedgeAfterCallerCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		s, began := acted(part{10 * ms, next(3, 500*ms)})
		out, took := runMovable(ctx, s, setup{}, 100*ms)
		assert.Equal(t, 50*ms, took)
		assert.Equal(t, -1, out.Winner)
		time.Sleep(time.Second)
		assert.Len(t, began(), 1)
	})
}
