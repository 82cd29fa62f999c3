package dnshedge

import (
	"context"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// clientQuery is a query of a client that waits for its answer. It is a context without values. It ends when the queue is
// full and a later query displaces it.
type clientQuery struct {
	transport.Span
	core       *core
	queue      *fairQueue
	queueEntry queuedQuery
}

// enterQueue adds a query to a queue. If the queue is full, the longest waiting query of a longest subqueue is
// cancelled. The context of the query must have no values. The caller calls answerInQueue, and then End.
func (c *core) enterQueue(ctx context.Context, l *fairQueue, lane string) *clientQuery {
	w := &clientQuery{core: c, queue: l}
	w.Begin(ctx, 0)
	l.enqueue(&w.queueEntry, w, lane)
	return w
}

// answerInQueue answers the query as core.answerQuestion does. If a later query has displaced it meanwhile, displaced is
// true, and the result is ErrTooManyQuestions unless there is an answer.
func (w *clientQuery) answerInQueue(stay context.Context, q *wire.Query) (r *result, displaced bool) {
	defer w.queue.dequeue(&w.queueEntry) // also if code of the user ends the goroutine
	r = w.core.answerQuestion(w, stay, q, "")
	if displaced = w.queue.dequeue(&w.queueEntry); displaced && r.err != nil {
		r = &result{err: &Error{Name: q.Text(), Type: q.Type, Err: ErrTooManyQuestions}}
	}
	return r, displaced
}

// Cancel ends the query because a later query has displaced it.
func (w *clientQuery) Cancel() {
	w.Span.Cancel()
	w.core.count.dropped.Add(1)
}
