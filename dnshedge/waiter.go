package dnshedge

import (
	"context"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// clientQuery is a question that a client has sent to this server and that waits for its answer. It is a context without values, which ends
// when the line is full and a later question takes its place.
type clientQuery struct {
	transport.Span
	core  *core
	line  *fairQueue
	place queuedQuery
}

// enterQueue adds a question to a line. If the line is full, the question that has waited longest, of those in the longest lane, is
// cancelled. The context of the question must have no values. The caller calls answer, and then End.
func (c *core) enterQueue(ctx context.Context, l *fairQueue, lane string) *clientQuery {
	w := &clientQuery{core: c, line: l}
	w.Begin(ctx, 0)
	l.enqueue(&w.place, w, lane)
	return w
}

// answer is core.answer. If a later question has taken the place meanwhile, displaced is true, and the result is
// ErrTooManyQuestions unless there is an answer.
func (w *clientQuery) answerInQueue(stay context.Context, q *wire.Query) (r *result, displaced bool) {
	defer w.line.dequeue(&w.place) // also if code of the user ends the goroutine
	r = w.core.answerQuestion(w, stay, q, "")
	if displaced = w.line.dequeue(&w.place); displaced && r.err != nil {
		r = &result{err: &Error{Name: q.Text(), Type: q.Type, Err: ErrTooManyQuestions}}
	}
	return r, displaced
}

// Cancel ends the question because a later one has taken its place.
func (w *clientQuery) Cancel() {
	w.Span.Cancel()
	w.core.count.dropped.Add(1)
}
