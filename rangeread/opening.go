package rangeread

import (
	"context"
	"errors"
	"io"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
)

// An opening is the race for the first byte of a range. It implements [race.Op].
type opening struct {
	policy.Call
	race     race.Race[outcome]
	task     *task
	from, to int64
}

// open returns a stream of the bytes from from to to, and how many attempts there were. Hedged says that there may be more than one.
func open(ctx context.Context, t *task, from, to int64, hedged bool) (s *stream, started int, err error) {
	o := &opening{task: t, from: from, to: to}
	o.race.Style.Async, o.race.Style.Leave = true, func() bool { return true }
	if hedged {
		o.Begin(ctx, t.key, race.OverridesFrom(ctx).Delay)
	}
	out := o.race.Run(t.ctx, o, o.RaceSchedule())
	if hedged {
		answered := out.Winner >= 0
		o.End(policy.Outcome{
			Answered: answered, Winner: out.Winner, NotTaken: out.NotTaken,
			LatencyUnknown: answered && (out.Value.err != nil || out.Value.stream.empty()), // no first byte came
		})
	}
	if out.Winner > 0 {
		t.store.firstWins.Add(1)
	}
	if err = out.Err; err == nil {
		err = out.Value.err
	}
	if err != nil && out.Attempt != nil {
		out.Attempt.Release()
	}
	return out.Value.stream, out.Started, err
}

// Attempt opens a stream. That the object ends before, or is another one, or that nothing comes, is an answer of the store, and no failure.
func (o *opening) Attempt(a *race.Attempt, _ int) (outcome, error) {
	s, err := o.task.open(a, o.from, o.to)
	if err == io.EOF || errors.Is(err, ErrChanged) {
		return outcome{err: err}, race.ErrAnswer
	}
	if err == nil && s.empty() {
		err = race.ErrAnswer
	}
	return outcome{stream: s}, err
}

// Discard closes a stream that came too late.
func (o *opening) Discard(v outcome, err error) {
	if _, ok := err.(*race.Panic); ok {
		o.task.store.panics.Add(1)
	}
	if v.stream != nil {
		v.stream.shut()
	}
}

// Admit asks both budgets.
func (o *opening) Admit(index int) bool {
	if !o.task.admit(&o.Call, index, o.from, o.to) {
		return false
	}
	o.task.store.firstByteHedges.Add(1)
	return true
}
