package race_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/race"
)

// A plan is the behaviour of one attempt, decoded from three bytes.
type plan struct {
	lasts time.Duration
	fails bool
	panic bool
	deaf  bool // to its context
	moves bool // it fails and moves the next hedge
	next  bool // it fails and starts a hedge that is not in the schedule
	after time.Duration
}

// planned runs attempts according to their plans, and counts operations that must balance.
type planned struct {
	plans    []plan
	hedges   int // delays that move
	start    time.Time
	refuse   byte // a bit for each delay
	running  atomic.Int32
	begun    atomic.Int32
	released [1 + race.MaxHedges]atomic.Int32
	answered [1 + race.MaxHedges]atomic.Bool
	at       [1 + race.MaxHedges]atomic.Int64 // when it answered, in ns
	started  [1 + race.MaxHedges]atomic.Int32
	finished [1 + race.MaxHedges][race.Failed + 1]atomic.Int32
	ended    [1 + race.MaxHedges]atomic.Int32
	youngest atomic.Int64 // when the latest hedge began, in ns
	longer   atomic.Int64 // how long hedges may run because a failure has started them, at most, in ns
	beside   atomic.Int32 // hedges that are not in the schedule
	failed   atomic.Int64 // when the primary failed
}

func (p *planned) AttemptStarted(_ context.Context, n int) { p.started[n].Add(1) }
func (p *planned) AttemptEnded(_ context.Context, n int, how race.Outcome) {
	p.finished[n][how].Add(1)
}

type ticket struct{ n int }

var errPlanned = errors.New("planned")

func (p *planned) Admit(index int) bool {
	if index == race.AfterFailure {
		index = race.MaxHedges
	}
	if p.refuse>>index&1 != 0 {
		return false
	}
	if index == race.MaxHedges {
		p.beside.Add(1)
	}
	return true
}
func (p *planned) Ended(n int) { p.ended[n].Add(1) }

func (p *planned) Attempt(a *race.Attempt, n int) (*ticket, error) {
	p.begun.Add(1)
	p.running.Add(1)
	defer p.running.Add(-1)
	if n > 0 {
		p.youngest.Store(time.Now().UnixNano())
		if p.failed.Load() != 0 && !p.plans[0].moves && p.beside.Load() == 0 {
			panic("a hedge begins though the primary has failed")
		}
	} else {
		defer func() { p.failed.Store(time.Now().UnixNano()) }() // or it has answered
	}
	my := p.plans[n]
	if my.deaf {
		time.Sleep(my.lasts)
	} else if err := doubles.Sleep(a, my.lasts); err != nil {
		return nil, err
	}
	if my.panic && n > 0 {
		panic("planned")
	}
	p.answered[n].Store(true)
	p.at[n].Store(time.Now().UnixNano())
	switch {
	case my.fails && my.next:
		return &ticket{n}, &grpcattempt.FailoverError{Elapsed: time.Since(p.start), Timeout: func() time.Duration {
			p.longer.Store(max(p.longer.Load(), int64(10*my.after))) // the race holds its lock
			return 10 * my.after
		}}
	case my.fails && my.moves:
		return &ticket{n}, &grpcattempt.NonFatalError{Hedges: p.hedges, Elapsed: time.Since(p.start), After: my.after}
	case my.fails:
		return &ticket{n}, errPlanned
	}
	return &ticket{n}, nil
}

// ticketLosers is the LoserPolicy lingering for values of type ticket.
type ticketLosers struct{ lingering }

func (*ticketLosers) Failed(_ *race.Attempt, v *ticket, _ error, _ func()) (*ticket, bool) {
	return v, true
}

func (p *planned) Discard(v *ticket, _ error) {
	if v != nil {
		p.released[v.n].Add(1)
	}
}

// FuzzRun checks every schedule of attempts against the invariants of a race: no attempt outlives it; it has a winner or an error; every
// result is either returned or discarded, once; no success loses to a failure; the observer is notified of every attempt once, and of the
// right winner.
func FuzzRun(f *testing.F) {
	f.Add([]byte{1, 5, 0, 20, 0, 3, 0, 2, 2, 9, 1, 30, 4})
	f.Add([]byte{2, 0, 2, 9, 1, 8, 4, 7, 1, 1, 1, 1, 1})
	f.Add([]byte{7, 255, 0, 10, 8, 10, 1, 10, 2, 10, 0, 40, 0})
	f.Add([]byte{198, 0, 90, 4, 80, 4, 3, 0, 2, 0, 9, 9, 20})
	f.Add([]byte{5, 0, 20, 49, 30, 17, 200, 0, 9, 0, 9, 0, 15, 0, 10})
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
		op := &planned{refuse: next()}
		for range 1 + race.MaxHedges {
			lasts, bits := next(), next()
			op.plans = append(op.plans, plan{
				lasts: time.Duration(lasts) * ms, fails: bits&1 != 0, panic: bits&2 != 0, deaf: bits&4 != 0,
				moves: bits&8 != 0, next: bits&16 != 0, after: time.Duration(bits>>5) * 30 * ms,
			})
		}
		var delays []time.Duration
		for at, n := time.Duration(0), mode>>2%(race.MaxHedges+1); n > 0; n-- {
			at += time.Duration(1+next()%64) * ms
			delays = append(delays, at)
		}
		timeout := time.Duration(next()) * ms // 0: none
		usual := time.Duration(next()) * ms   // 0: not known

		synctest.Test(t, func(t *testing.T) {
			linger := &ticketLosers{lingering{grace: 50 * ms}}
			style := []race.Options[*ticket]{{}, {Async: true}, {Async: true, LoserPolicy: linger}}[mode%3]
			style.Observer = op
			if mode>>6&1 != 0 {
				style.TryAbandon = func() bool { return mode>>7 != 0 }
			}
			ctx, cancel := context.Background(), func() {}
			if timeout > 0 {
				ctx, cancel = context.WithTimeout(ctx, timeout)
			}
			defer cancel()

			var r race.Race[*ticket]
			start := time.Now()
			op.start, op.hedges = start, max(len(delays)-int(mode>>7), 0)
			r.Style = style
			schedule := new(grpcattempt.Schedule)
			schedule.SetDelays(delays, usual)
			out := r.Run(ctx, op, schedule)
			var limit, least int64 // until which a failure may be held, and must be held for a success
			if at := op.failed.Load(); out.Winner < 0 && at != 0 {
				took := time.Duration(at - start.UnixNano())
				bound := int64(race.HedgeTimeoutAfterFailure(usual, took))
				if longer := op.longer.Load(); longer > 0 {
					bound = max(bound, int64(race.HedgeTimeoutAfterFailure(time.Duration(longer), took)))
				}
				limit = max(at, op.youngest.Load()+bound)
				if op.beside.Load() > 0 && !slices.ContainsFunc(op.plans, func(p plan) bool { return p.moves }) {
					limit = min(limit, at+int64(max(took, race.MaxFailureDelay)))
				}
				longest := limit
				if least = limit; op.beside.Load() > 0 {
					least = at // a hedge beside the schedule may have less time than the youngest one
				}
				if op.plans[0].moves { // a hedge that is put off may not be admitted in the end
					longest += race.MaxHedges * int64(7*30*ms)
				}
				require.LessOrEqual(t, time.Now().UnixNano(), longest, "a failure is held too long")
			}
			require.LessOrEqual(t, out.Started, min(1+len(delays)+int(op.beside.Load()), 1+race.MaxHedges))
			if out.Winner >= 0 {
				require.NoError(t, out.Err)
				require.Equal(t, out.Winner, out.Value.n)
				require.False(t, op.plans[out.Winner].fails)
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
			require.Zero(t, op.running.Load())
			require.Zero(t, linger.count.Load())
			require.EqualValues(t, out.Started, op.begun.Load(), "nothing starts after the race")
			for n := range op.finished {
				begun := int32(0)
				if n < out.Started {
					begun = 1
				}
				won, all := op.finished[n][race.Won].Load(), int32(0)
				for how := range op.finished[n] {
					all += op.finished[n][how].Load()
				}
				require.Equal(t, begun, op.started[n].Load(), "attempt %d", n)
				require.Equal(t, begun, all, "attempt %d is reported once", n)
				require.Equal(t, n == out.Winner, won == 1, "attempt %d", n)
				require.Equal(t, begun == 1 && n > 0, op.ended[n].Load() == 1, "hedge %d ends once", n)
			}
			for n := range op.answered {
				want := op.answered[n].Load()
				if out.Value != nil && out.Value.n == n {
					require.True(t, want)
					want = false // it is the caller's
				}
				require.Equal(t, want, op.released[n].Load() == 1, "attempt %d discarded %d times", n, op.released[n].Load())
				require.LessOrEqual(t, op.released[n].Load(), int32(1))
				if out.Winner < 0 && op.answered[n].Load() && !op.plans[n].fails {
					require.True(t, ctx.Err() != nil || least > 0 && op.at[n].Load() >= least, "a success was not returned")
				}
			}
		})
	})
}
