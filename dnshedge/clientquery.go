package dnshedge

import (
	"context"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A clientQuery is a query of a DNS client that waits for its answer, in a fairQueue that limits the waiting queries. It
// is also the context of the exchange. This context has no values, and ends when a newer query displaces the query from
// the full queue.
type clientQuery struct {
	transport.InlineContext
	core       *core
	queue      *fairQueue
	queueEntry queuedQuery
}

// enqueueQuery adds a DNS client's query to the queue l, and returns its entry. subqueueKey selects its subqueue: it is
// the client's address, or the domain of the question. If the queue is full, the oldest query of the longest subqueue is
// cancelled.
//
// ctx must have no values, because the exchange is shared with other callers. The caller must call answerQueuedQuery.
func (c *core) enqueueQuery(ctx context.Context, l *fairQueue, subqueueKey string) *clientQuery {
	w := &clientQuery{core: c, queue: l}
	w.Begin(ctx, 0)
	l.enqueue(&w.queueEntry, w, subqueueKey)
	return w
}

// answerQueuedQuery answers the question q of the queued query w, and then removes w from its queue and ends it. The
// calling goroutine may query the servers itself, until stay ends, which saves a goroutine.
//
// displaced is true if a newer query has displaced w from the queue. An error in r is then ErrTooManyQuestions.
func (w *clientQuery) answerQueuedQuery(stay context.Context, q *wire.Query) (r *result, displaced bool) {
	defer w.End(nil)
	defer w.queue.dequeue(&w.queueEntry) // also if the user's code calls runtime.Goexit
	r = w.core.answerQuestion(w, stay, q, "")
	if displaced = w.queue.dequeue(&w.queueEntry); displaced && r.err != nil {
		r = &result{err: newError(q, ErrTooManyQuestions)}
	}
	return r, displaced
}

// Cancel cancels the exchange of the query and counts the query as dropped. The fairQueue in which the query waits calls
// it when a newer query displaces this query.
func (w *clientQuery) Cancel() {
	w.InlineContext.Cancel()
	w.core.count.dropped.Add(1)
}
