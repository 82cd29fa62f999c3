package group

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An eventReporter reports the events of one exchange to observers: queries, denied hedges, and the end of the
// exchange. Without observers, it is nil; reportDenied and reportOutcome then do nothing, and no other method may be
// called. Only the goroutine of attempt n uses lastQueries[n].
type eventReporter struct {
	notifier    *observers.Notifier
	ctx         context.Context
	first       *Server                      // first server of the group; its latency key marks the exchange's events
	delay       time.Duration                // delay of the first hedge, set before the first attempt; 0: no hedge is due
	lastQueries [1 + MaxHedges]reportedQuery // last query of each attempt
}

// A reportedQuery is a query whose start was reported to observers. The zero value means that no query was reported.
type reportedQuery struct {
	server *Server   // server that the query went to; nil: there is no query
	sent   time.Time // time at which the query was sent
	number int       // number that observers get for the attempt
}

var _ race.AttemptObserver = (*eventReporter)(nil)

// reportDenied reports to observers that the given reason prevents the next hedge of the exchange, or all of them.
func (t *eventReporter) reportDenied(reason observe.Reason) {
	if t != nil {
		t.notifier.Notify(func(o observe.Observer) { o.Denied(t.ctx, t.first.key.Info, reason) })
	}
}

// reportQuery reports to observers that an attempt sends a query to s, and stores that query in last. A query that last
// already holds is first reported as failed. ctx is the context of the attempt, and number its number for observers.
func (t *eventReporter) reportQuery(ctx context.Context, last *reportedQuery, number int, s *Server) {
	t.reportOutcome(ctx, last, race.Failed)
	*last = reportedQuery{s, time.Now(), number}
	t.notifier.Notify(func(o observe.Observer) { o.AttemptStart(ctx, s.key.Info, observe.AttemptInfo{Number: number}) })
}

// reportOutcome reports to observers that the query q has ended with the given outcome, and its latency. ctx is the
// context of the attempt. It does nothing if q is the zero value, because no query was reported.
func (t *eventReporter) reportOutcome(ctx context.Context, q *reportedQuery, outcome race.Outcome) {
	if q.server != nil {
		r := observe.AttemptResult{AttemptInfo: observe.AttemptInfo{Number: q.number}, Outcome: observe.Outcome(outcome.String()), Latency: time.Since(q.sent)}
		t.notifier.Notify(func(o observe.Observer) { o.AttemptDone(ctx, q.server.key.Info, r) })
	}
}

// AttemptStarted implements race.AttemptObserver. It does nothing, because no server is selected yet. reportQuery
// reports the start instead.
func (t *eventReporter) AttemptStarted(context.Context, int) {}

// AttemptEnded implements race.AttemptObserver. It reports the outcome and the latency of the last query of attempt n.
// It does nothing if attempt n has sent no query.
func (t *eventReporter) AttemptEnded(ctx context.Context, n int, outcome race.Outcome) {
	t.reportOutcome(ctx, &t.lastQueries[n], outcome)
}

// reportEnd reports the end of an exchange to observers. winner is the observers' number of the successful attempt, or
// -1. hedges is the number of hedges sent. It must not be called if policy.Call.End is called, which reports the end as
// well.
func (t *eventReporter) reportEnd(winner, hedges int, took time.Duration) {
	r := observe.RequestResult{Attempts: 1 + hedges, Winner: winner, Latency: took, Delay: t.delay}
	t.notifier.Notify(func(o observe.Observer) { o.RequestDone(t.ctx, t.first.key.Info, r) })
}
