package dnshedge

import (
	"context"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// waiter is a question that a client has sent to this server and that waits for its answer. It is a context without values, which ends
// when the line is full and a later question takes its place.
type waiter struct {
	transport.Span
	core  *core
	line  *line
	place place
}

// enter adds a question to a line. If the line is full, the question that has waited longest, of those in the longest lane, is
// cancelled. The context of the question must have no values. The caller calls answer, and then End.
func (c *core) enter(ctx context.Context, l *line, lane string) *waiter {
	w := &waiter{core: c, line: l}
	w.Begin(ctx, 0)
	l.enter(&w.place, w, lane)
	return w
}

// answer is core.answer. If a later question has taken the place meanwhile, displaced is true, and the result is
// ErrTooManyQuestions unless there is an answer.
func (w *waiter) answer(stay context.Context, q *wire.Query) (r *result, displaced bool) {
	defer w.line.leave(&w.place) // also if code of the user ends the goroutine
	r = w.core.answer(w, stay, q, "")
	if displaced = w.line.leave(&w.place); displaced && r.err != nil {
		r = &result{err: &Error{Name: q.Text(), Type: q.Type, Err: ErrTooManyQuestions}}
	}
	return r, displaced
}

// Cancel ends the question because a later one has taken its place.
func (w *waiter) Cancel() {
	w.Span.Cancel()
	w.core.count.dropped.Add(1)
}
