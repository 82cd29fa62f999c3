package dnshedge

import (
	"context"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A clientQuery is a query that a DNS client has sent to this process (ServeDNS or Server) and that waits for its
// answer in a fairQueue.
//
// It is also the context of the exchange that answers the query. This context has no values. It ends when a newer query
// displaces this query from the full queue.
type clientQuery struct {
	transport.EmbeddedContext
	core       *core
	queue      *fairQueue
	queueEntry queuedQuery
}

// enqueueQuery adds a query of a DNS client to the queue l, and returns the query. The caller must then call
// answerQueuedQuery. subqueueKey selects the subqueue. It is the client's address, or the domain of the question.
//
// The end of ctx cancels the query. If the queue is full, enqueueQuery cancels the oldest query of the longest
// subqueue, which may be the new query. ctx must have no values, because the exchange does not get them (see
// detachContext).
func (c *core) enqueueQuery(ctx context.Context, l *fairQueue, subqueueKey string) *clientQuery {
	w := &clientQuery{core: c, queue: l}
	w.Begin(ctx, 0)
	l.enqueue(&w.queueEntry, w, subqueueKey)
	return w
}

// answerQueuedQuery answers the question q of the queued query w, and returns the answer or an error in r. It then
// removes w from its queue, and ends w, which is also a context.
//
// The calling goroutine may run the exchange with the servers itself. answerQueuedQuery then returns when the exchange
// has ended, even if w was cancelled before. The end of the context inlineCtx cancels this exchange.
//
// displaced is true if a newer query has displaced w from the queue. An error in r is then ErrTooManyQuestions.
func (w *clientQuery) answerQueuedQuery(inlineCtx context.Context, q *wire.Query) (r *result, displaced bool) {
	defer w.End(nil)
	defer w.queue.dequeue(&w.queueEntry) // also if the user's code calls runtime.Goexit
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
