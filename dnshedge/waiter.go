package dnshedge

import (
	"context"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// waiter is a question of a client that waits in a line.
type waiter struct {
	core   *core
	line   *line
	place  *place
	ctx    context.Context // of the question; ends when a later question takes the place
	cancel context.CancelFunc
}

// enter adds a question to a line. If the line is full, the question that has waited longest, of those in the longest lane, is
// cancelled. The caller calls answer, and then the waiter's cancel.
func (c *core) enter(ctx context.Context, l *line, lane string) *waiter {
	w := &waiter{core: c, line: l}
	w.ctx, w.cancel = context.WithCancel(ctx)
	w.place = l.enter(cancelFunc(func() {
		w.cancel()
		c.count.dropped.Add(1)
	}), lane)
	return w
}

// answer is core.answer. If a later question has taken the place meanwhile, displaced is true, and the result is
// ErrTooManyQuestions unless there is an answer.
func (w *waiter) answer(stay context.Context, q *wire.Query) (r *result, displaced bool) {
	defer w.line.leave(w.place) // also if code of the user ends the goroutine
	r = w.core.answer(w.ctx, stay, q, "")
	if displaced = w.line.leave(w.place); displaced && r.err != nil {
		r = &result{err: &Error{Name: q.Text(), Type: q.Type, Err: ErrTooManyQuestions}}
	}
	return r, displaced
}

// A cancelFunc waits in a line.
type cancelFunc func()

func (f cancelFunc) Cancel() { f() }
