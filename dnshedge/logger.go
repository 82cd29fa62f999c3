package dnshedge

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
)

const maxRecords = 1024 // limit of records that wait for a logger

// A logQueue passes log records to the user's handler in order, from a separate goroutine, so that code that logs may
// hold locks. A record is dropped if 1024 records (maxRecords) wait. A logQueue is safe for concurrent use.
type logQueue struct {
	panics *atomic.Int64 // counts panics of loggers

	mu      sync.Mutex // guards the fields below; no other lock is taken under it
	records []func()   // each passes a record to its handler
	running bool
	closed  bool
	wg      sync.WaitGroup // of the goroutine
}

// newLogger returns a logger that does not block its caller: its records go through the queue, and a goroutine passes
// them to the handler of l. It returns nil if l is nil.
func (q *logQueue) newLogger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return nil
	}
	return slog.New(queuedHandler{l.Handler(), q})
}

// addRecord adds a log record to the queue, or drops it if the queue is full or closed. The queue's goroutine calls
// handle, which passes the record to its handler.
func (q *logQueue) addRecord(handle func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.records) >= maxRecords {
		return
	}
	q.records = append(q.records, handle)
	if !q.running {
		q.running = true
		q.wg.Go(q.writeRecords)
	}
}

// writeRecords passes queued log records to their handlers until the queue is empty. It runs in the goroutine of the
// queue.
func (q *logQueue) writeRecords() {
	for {
		q.mu.Lock()
		records := q.records
		q.records = nil
		q.running = len(records) > 0
		q.mu.Unlock()
		if len(records) == 0 {
			return
		}
		for _, handle := range records {
			isHandled := false
			usercode.RunGuarded(func() { handle(); isHandled = true })
			if !isHandled { // the handler has panicked
				q.panics.Add(1)
			}
		}
	}
}

// closeQueue waits until all queued log records are passed to their handlers. Records that are added later are dropped.
func (q *logQueue) closeQueue() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wg.Wait()
}

// A queuedHandler is a slog.Handler that adds records to a logQueue. The queue passes them to the wrapped Handler
// later.
type queuedHandler struct {
	slog.Handler
	queue *logQueue
}

var _ slog.Handler = queuedHandler{}

func (h queuedHandler) Handle(_ context.Context, r slog.Record) error {
	h.queue.addRecord(func() { _ = h.Handler.Handle(context.Background(), r) })
	return nil
}

func (h queuedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return queuedHandler{h.Handler.WithAttrs(attrs), h.queue}
}

func (h queuedHandler) WithGroup(name string) slog.Handler {
	return queuedHandler{h.Handler.WithGroup(name), h.queue}
}
