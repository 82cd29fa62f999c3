package dnshedge

import (
	"context"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A clientQuery is a query that a program has sent to this process (ServeDNS or Server) and that waits for its answer.
// It waits in a fairQueue, which limits the number of waiting queries.
//
// It is also the context of the exchange that answers the query. This context has no values. It ends when a newer query
// displaces this query from the full queue.
type clientQuery struct {
	transport.InlineContext
	core       *core
	queue      *fairQueue
	queueEntry queuedQuery
}

// enqueueQuery adds a query of a DNS client to the queue l, and returns the query's entry in the queue. The caller must
// then call answerQueuedQuery, which answers the query and removes the entry. If the queue is full, the oldest query of
// the longest subqueue is cancelled.
//
// subqueueKey selects the subqueue. It is the client's address, or the domain of the question. The query is also
// cancelled when ctx ends. ctx must have no values, because detachContext does not pass on the values of a clientQuery.
func (c *core) enqueueQuery(ctx context.Context, l *fairQueue, subqueueKey string) *clientQuery {
	w := &clientQuery{core: c, queue: l}
	w.Begin(ctx, 0)
	l.enqueue(&w.queueEntry, w, subqueueKey)
	return w
}

// answerQueuedQuery answers the question q of the queued query w. It then removes w from its queue, and ends w as a
// context. r is the answer, or an error.
//
// The calling goroutine may query the servers itself, which saves a goroutine. It then returns when the servers have
// answered, even if w ends before. When stay ends, these queries are cancelled.
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
