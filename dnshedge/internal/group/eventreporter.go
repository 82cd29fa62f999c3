package group

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An eventReporter reports the events of one exchange to observers: the start and the outcome of queries, denied
// hedges, and the end of the exchange. Without observers, the eventReporter is nil, and only its methods reportDenied
// and reportOutcome may be called. They then do nothing.
//
// Each attempt has its own element of lastQueries, which only the goroutine of that attempt uses. The field delay must
// be set before the first attempt starts.
type eventReporter struct {
	notifier    *observers.Notifier
	ctx         context.Context
	first       *Server       // the first server of the group; events of the whole exchange carry its latency key
	delay       time.Duration // hedge delay of the first hedge; 0: no hedge is due
	lastQueries [1 + MaxHedges]reportedQuery
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

// reportQuery reports to observers that an attempt with the context ctx sends a query to s, and stores that query in
// last. If last already holds a query of the attempt, that query is first reported as failed. number is the number of
// the attempt for observers (see Exchange.observerNumber).
func (t *eventReporter) reportQuery(ctx context.Context, last *reportedQuery, number int, s *Server) {
	t.reportOutcome(ctx, last, race.Failed)
	*last = reportedQuery{s, time.Now(), number}
	t.notifier.Notify(func(o observe.Observer) { o.AttemptStart(ctx, s.key.Info, observe.AttemptInfo{Number: number}) })
}

// reportOutcome reports to observers that the query q has ended with the outcome how, and its latency. ctx is the
// context of the attempt. It does nothing if q is the zero value, because no query was reported.
func (t *eventReporter) reportOutcome(ctx context.Context, q *reportedQuery, how race.Outcome) {
	if q.server != nil {
		r := observe.AttemptResult{AttemptInfo: observe.AttemptInfo{Number: q.number}, Outcome: observe.Outcome(how.String()), Latency: time.Since(q.sent)}
		t.notifier.Notify(func(o observe.Observer) { o.AttemptDone(ctx, q.server.key.Info, r) })
	}
}

// AttemptStarted implements race.AttemptObserver. It does nothing, because no server is selected yet. reportQuery
// reports the start instead.
func (t *eventReporter) AttemptStarted(context.Context, int) {}

// AttemptEnded implements race.AttemptObserver. It reports the outcome and the latency of the last query of attempt n.
// It does nothing if attempt n has sent no query.
func (t *eventReporter) AttemptEnded(ctx context.Context, n int, how race.Outcome) {
	t.reportOutcome(ctx, &t.lastQueries[n], how)
}

// reportEnd reports the end of an exchange to observers. winner is the number of the successful attempt for observers,
// or -1 if none succeeded. hedges is the number of hedges sent, and took the duration of the exchange.
//
// It must only be called for an exchange whose latency is not recorded. Otherwise policy.Call.End, which records the
// latency, also reports the end.
func (t *eventReporter) reportEnd(winner, hedges int, took time.Duration) {
	r := observe.RequestResult{Attempts: 1 + hedges, Winner: winner, Latency: took, Delay: t.delay}
	t.notifier.Notify(func(o observe.Observer) { o.RequestDone(t.ctx, t.first.key.Info, r) })
}
