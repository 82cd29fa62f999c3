package dnshedge

import (
	"context"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A clientQuery is a query of a DNS client that waits in a queue for its answer. It is also the context of the exchange
// that finds the answer. The context ends when a newer query displaces this query from the full queue.
type clientQuery struct {
	transport.EmbeddedContext
	core       *core
	queue      *fairQueue
	queueEntry queuedQuery
}

// enqueueQuery adds a client's query to queue. In a full queue, the oldest query of the longest subqueue is cancelled.
// subqueueKey is the client's address or the question's domain. ctx, whose end cancels the query, must have no values.
// The caller must call answerQueuedQuery.
func (c *core) enqueueQuery(ctx context.Context, queue *fairQueue, subqueueKey string) *clientQuery {
	w := &clientQuery{core: c, queue: queue}
	w.Begin(ctx, 0) // detachContext drops the values
	queue.enqueue(&w.queueEntry, w, subqueueKey)
	return w
}

// answerQueuedQuery answers the question q of a queued query, and removes the query from its queue. displaced is true
// if a newer query has displaced it; an error in r is then ErrTooManyQuestions. If inlineCtx ends, an exchange that the
// calling goroutine runs is cancelled.
func (w *clientQuery) answerQueuedQuery(inlineCtx context.Context, q *wire.Query) (r *result, displaced bool) {
	defer w.End(nil)
	defer w.queue.dequeue(&w.queueEntry) // also if the user's code calls runtime.Goexit
	// An exchange in this goroutine may end after w was cancelled.
	r = w.core.answerQuestion(w, inlineCtx, q, "")
	if displaced = w.queue.dequeue(&w.queueEntry); displaced && r.err != nil {
		r = &result{err: newError(q, ErrTooManyQuestions)}
	}
	return r, displaced
}

// Cancel cancels the exchange of the query and counts the query as dropped. The fairQueue calls Cancel when a newer
// query displaces this query.
func (w *clientQuery) Cancel() {
	w.EmbeddedContext.Cancel()
	w.core.count.dropped.Add(1)
}
