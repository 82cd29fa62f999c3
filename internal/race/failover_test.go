package race_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/race"
)

// failover is the error of a failed attempt that starts a hedge, which may run for d after the primary has failed.
func failover(d time.Duration) func(time.Duration) error {
	return func(took time.Duration) error {
		return &grpcattempt.FailoverError{Elapsed: took, Timeout: func() time.Duration { return d }}
	}
}

func TestFailureStartsHedgeBesideSchedule(t *testing.T) {
	const forever = time.Hour
	for name, test := range map[string]struct {
		parts  []part
		began  []time.Duration
		took   time.Duration
		winner int
	}{
		"of the primary, and no hedge of the schedule follows": {
			[]part{{20 * ms, failover(forever)}, {500 * ms, nil}},
			[]time.Duration{0, 20 * ms}, 520 * ms, 1},
		"of a hedge, and the next hedge of the schedule is in time": {
			[]part{{forever, nil}, {30 * ms, failover(0)}, {forever, nil}, {10 * ms, nil}},
			[]time.Duration{0, 100 * ms, 130 * ms, 200 * ms}, 210 * ms, 3},
		"one after the other, up to the maximum": {
			[]part{{20 * ms, failover(0)}, {20 * ms, failover(0)}, {20 * ms, failover(0)}, {20 * ms, failover(0)}, {20 * ms, failover(0)}},
			[]time.Duration{0, 20 * ms, 40 * ms, 60 * ms, 80 * ms}, 100 * ms, -1},
		"while another hedge runs": {
			[]part{{120 * ms, failover(0)}, {forever, nil}, {15 * ms, nil}},
			[]time.Duration{0, 100 * ms, 120 * ms}, 135 * ms, 2},
		"which has the time that the failure gives it": {
			[]part{{20 * ms, failover(300 * ms)}, {forever, nil}},
			[]time.Duration{0, 20 * ms}, 320 * ms, -1},
		"which has a second at most": {
			[]part{{20 * ms, failover(forever)}, {forever, nil}},
			[]time.Duration{0, 20 * ms}, 20*ms + time.Second, -1},
		"which has less than hedges of the schedule": {
			[]part{{20 * ms, failover(30 * ms)}, {forever, nil}},
			[]time.Duration{0, 20 * ms}, 50 * ms, -1},
		"which has as long as hedges of the schedule if its time is not known": {
			[]part{{20 * ms, failover(0)}, {forever, nil}},
			[]time.Duration{0, 20 * ms}, 170 * ms, -1},
		"while one of the schedule runs, which keeps its time": {
			[]part{{120 * ms, failover(30 * ms)}, {forever, nil}, {forever, nil}},
			[]time.Duration{0, 100 * ms, 120 * ms}, 250 * ms, -1},
		"while one of the schedule runs, which gets no more time": {
			[]part{{195 * ms, failover(5 * ms)}, {forever, nil}, {forever, nil}},
			[]time.Duration{0, 100 * ms, 195 * ms}, 250 * ms, -1},
		"while one of the schedule runs, which fails first": {
			[]part{{120 * ms, failover(60 * ms)}, {30 * ms, fatal}, {forever, nil}},
			[]time.Duration{0, 100 * ms, 120 * ms}, 180 * ms, -1},
		"late, and the wait does not begin again": {
			[]part{{3 * ms, failover(forever)}, {987 * ms, failover(forever)}, {forever, nil}},
			[]time.Duration{0, 3 * ms, 990 * ms}, 3*ms + time.Second, -1},
		"whose time ends with the start of a younger one": {
			[]part{{20 * ms, failover(800 * ms)}, {30 * ms, failover(200 * ms)}, {forever, nil}},
			[]time.Duration{0, 20 * ms, 50 * ms}, 250 * ms, -1},
		"whose time ends with the start of one of the schedule": {
			[]part{{250 * ms, fatal}, {20 * ms, failover(forever)}, {forever, nil}, {forever, nil}},
			[]time.Duration{0, 100 * ms, 120 * ms, 200 * ms}, 350 * ms, -1},
	} {
		t.Run(name, func(t *testing.T) {
			for style, s := range map[string]setup{"in place": {}, "detached": detached} {
				t.Run(style, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						op, began := acted(test.parts...)
						s.usual = 150 * ms
						out, took := runMovable(t.Context(), op, s, 100*ms, 200*ms, 300*ms, 400*ms)
						assert.Equal(t, test.took, took)
						assert.Equal(t, test.began, began())
						assert.Equal(t, test.winner, out.Winner)
						if test.winner < 0 {
							assert.Equal(t, "answer 0", out.Value)
						}
						time.Sleep(3 * time.Hour)
						assert.Equal(t, test.began, began(), "nothing starts after the race")
						assert.Len(t, op.gone(), len(test.began)-1, "all results except the returned one are discarded")
					})
				})
			}
		})
	}
}

// TestFailureWithoutFailoverIsNotHeld has hedges that are not admitted. The LoserPolicy, which would read the body of a failed response,
// is not asked.
func TestFailureWithoutFailoverIsNotHeld(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		for name, refuse := range map[string]func(){
			"refused": func() {}, "panic": func() { panic("admit") },
		} {
			var indexes []int
			s, _ := acted(part{20 * ms, failover(time.Second)})
			s.admit = func(index int) bool {
				indexes = append(indexes, index)
				refuse()
				return false
			}
			style.LoserPolicy = keeper(func(func()) bool { t.Error("the failure is held"); return true })
			out, took := runMovable(t.Context(), s, style, 100*ms)
			assert.Equal(t, 20*ms, took, name)
			assert.Equal(t, "answer 0", out.Value)
			assert.Equal(t, []int{race.AfterFailure}, indexes)
			time.Sleep(time.Hour)
		}
	})
}

// TestAdmitOfFailoverMayEndGoroutine has an Admit that calls runtime.Goexit in the goroutine of a failed attempt.
func TestAdmitOfFailoverMayEndGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, parts := range map[string][]part{
			"of the primary": {{20 * ms, failover(0)}},
			"of a hedge":     {{150 * ms, fatal}, {20 * ms, failover(0)}},
		} {
			s, _ := acted(parts...)
			s.admit = func(index int) bool {
				if index == race.AfterFailure {
					runtime.Goexit()
				}
				return index == 0
			}
			out, took := runMovable(t.Context(), s, detached, 100*ms, 110*ms)
			assert.Equal(t, parts[0].takes, took, name)
			assert.Equal(t, "answer 0", out.Value, name)
			time.Sleep(time.Hour)
			assert.Len(t, s.gone(), len(parts)-1, name)
		}
	})
}

// TestNoFailoverAfterFailureIsReleased has a hedge that fails after the caller has got the failure of the primary.
func TestNoFailoverAfterFailureIsReleased(t *testing.T) {
	styles(t, func(t *testing.T, style setup) {
		s := &script{attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 0 {
				time.Sleep(120 * ms)
				return "primary", errDown
			}
			<-a.Done()
			return "", &grpcattempt.FailoverError{Elapsed: 120 * ms, Timeout: func() time.Duration { return time.Second }}
		}}
		style.LoserPolicy = keeper(func(func()) bool { return false })
		out, took := runMovable(context.Background(), s, style, 100*ms)
		assert.Same(t, errDown, out.Err)
		assert.Equal(t, 120*ms, took)
		time.Sleep(time.Hour)
		assert.Equal(t, []int{0, 1}, s.started)
	})
}

// TestFailureOfHedgeStartsNoneAfterFailureOfPrimary has a hedge that fails after the primary, in a way that would start
// another hedge before.
func TestFailureOfHedgeStartsNoneAfterFailureOfPrimary(t *testing.T) {
	for name, test := range map[string]struct {
		parts []part
		began []time.Duration
		took  time.Duration
	}{
		"that starts none": {
			[]part{{120 * ms, fatal}, {30 * ms, failover(time.Second)}, {time.Hour, nil}},
			[]time.Duration{0, 100 * ms}, 130 * ms},
		"that starts one": {
			[]part{{120 * ms, failover(200 * ms)}, {30 * ms, failover(time.Second)}, {time.Hour, nil}, {time.Hour, nil}},
			[]time.Duration{0, 100 * ms, 120 * ms}, 320 * ms},
		"that starts none, while one runs that a hedge has started": {
			[]part{{120 * ms, fatal}, {10 * ms, failover(time.Second)}, {30 * ms, failover(time.Second)}, {time.Hour, nil}},
			[]time.Duration{0, 100 * ms, 110 * ms}, 140 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			styles(t, func(t *testing.T, style setup) {
				op, began := acted(test.parts...)
				style.usual = 150 * ms
				out, took := runMovable(t.Context(), op, style, 100*ms)
				assert.Equal(t, test.took, took)
				assert.Equal(t, test.began, began())
				assert.Equal(t, -1, out.Winner)
				time.Sleep(3 * time.Hour)
			})
		})
	}
}

// queued is a LoserPolicy for which all running hedges wait for a connection.
type queued struct{ keeper }

func (queued) IsQueued(*race.Attempt) bool { return true }

// TestFailureOfPrimaryDoesNotCancelItsFailover has a failover that waits for a connection.
func TestFailureOfPrimaryDoesNotCancelItsFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op, _ := acted(part{20 * ms, failover(time.Second)}, part{30 * ms, nil})
		style := detached
		style.LoserPolicy = queued{func(func()) bool { return true }}
		out, took := runMovable(t.Context(), op, style, 100*ms)
		assert.Equal(t, "answer 1", out.Value)
		assert.Equal(t, 50*ms, took)
	})
}
