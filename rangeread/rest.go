package rangeread

import (
	"errors"
	"runtime/debug"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

var errNothing = errors.New("rangeread: the store has sent nothing of what is missing")

// A rest is a request for what is missing of a body, beside the body or in its place.
type rest struct {
	policy.Call
	task    *task
	attempt *race.Attempt
	asked   time.Time
	answer  chan outcome
}

// ask asks for the bytes from from to to, by attempt number n. It returns nil if that is not admitted, and whether to ask again later.
func ask(t *task, from, to int64, n int) (r *rest, later bool) {
	r = &rest{task: t}
	r.BeginRest(t.ctx, t.key)
	if !t.admit(&r.Call, 0, from, to) {
		return nil, r.Denied != observe.DeniedShadow
	}
	t.store.stallHedges.Add(1)
	r.attempt, r.asked, r.answer = race.NewAttempt(t.ctx, n), time.Now(), make(chan outcome)
	t.begin()
	go r.run(from, to)
	return r, false
}

// run makes the request. If nobody wants its answer any more, it closes that.
func (r *rest) run(from, to int64) {
	defer r.task.end()
	done := r.attempt.Done()
	a := outcome{err: &race.Panic{}} // unless open returns
	defer func() {
		if v := recover(); v != nil {
			a.err = &race.Panic{Value: v, Stack: debug.Stack()}
		}
		if _, ok := a.err.(*race.Panic); ok {
			r.task.store.panics.Add(1)
		}
		select {
		case r.answer <- a:
		case <-done:
			if a.stream != nil {
				a.stream.shut()
			}
		}
	}()
	if a.stream, a.err = r.task.open(r.attempt, from, to); a.err == nil && a.stream.empty() {
		a.stream.shut()
		a = outcome{err: errNothing}
	}
}

// won says that its answer is read.
func (r *rest) won() {
	r.task.store.stallWins.Add(1)
	r.EndRest(true)
}

// lose ends the request, which nobody waits for any more.
func (r *rest) lose() {
	r.EndRest(false)
	r.attempt.Lose()
}
