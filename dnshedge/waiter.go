package dnshedge

import (
	"context"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// clientQuery is a query of a DNS client that waits for its answer. It is a context without values. The context ends
// when the queue is full and a newer query displaces this query.
type clientQuery struct {
	transport.Span
	core       *core
	queue      *fairQueue
	queueEntry queuedQuery
}

// enterQueue adds a query to the queue l, under the subqueue key subqueueKey. If the queue is full, it cancels the oldest
// query of the longest subqueue. ctx must have no values. The caller must call answerInQueue, and then End.
func (c *core) enterQueue(ctx context.Context, l *fairQueue, subqueueKey string) *clientQuery {
	w := &clientQuery{core: c, queue: l}
	w.Begin(ctx, 0)
	l.enqueue(&w.queueEntry, w, subqueueKey)
	return w
}

// answerInQueue answers the query by core.answerQuestion, and removes it from the queue. displaced reports whether a
// newer query had displaced it. Then the error of r is ErrTooManyQuestions, unless r has an answer.
func (w *clientQuery) answerInQueue(stay context.Context, q *wire.Query) (r *result, displaced bool) {
	defer w.queue.dequeue(&w.queueEntry) // also if the user's code calls runtime.Goexit
	r = w.core.answerQuestion(w, stay, q, "")
	if displaced = w.queue.dequeue(&w.queueEntry); displaced && r.err != nil {
		r = &result{err: &Error{Name: q.Text(), Type: q.Type, Err: ErrTooManyQuestions}}
	}
	return r, displaced
}

// Cancel ends the query because a newer query has displaced it.
func (w *clientQuery) Cancel() {
	w.Span.Cancel()
	w.core.count.dropped.Add(1)
}
