package group

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An eventReporter reports the events of one exchange to observers: the start and the outcome of queries, denied
// hedges, and the end. On a nil eventReporter, only reportDenied may be called, which then does nothing.
//
// Each attempt runs in one goroutine, and only that goroutine uses the attempt's element of the field attempts. The
// field delay must be set before the first attempt starts.
type eventReporter struct {
	notifier *observers.Notifier
	ctx      context.Context
	first    *Server       // the first server of the group; events of the whole exchange carry its latency key
	delay    time.Duration // hedge delay of the first hedge; 0: no hedge is due
	attempts [1 + MaxHedges]struct {
		to     *Server   // the server that the attempt's last query went to; nil: it has sent none
		began  time.Time // time at which that query was sent
		number int       // number that observers get for the attempt
	} // last query of each attempt
}

var _ race.AttemptObserver = (*eventReporter)(nil)

// reportDenied reports to observers that the given reason prevents the next hedge of the exchange, or all of them.
func (t *eventReporter) reportDenied(reason observe.Reason) {
	if t != nil {
		t.notifier.Notify(func(o observe.Observer) { o.Denied(t.ctx, t.first.key.Info, reason) })
	}
}

// reportAttempt reports to observers that attempt n of the race sends a query to s. observerNumber is the number of the
// attempt for observers, who count hedges and no retransmissions. If the attempt has already sent a query to another
// server, it first reports that query as failed.
func (t *eventReporter) reportAttempt(ctx context.Context, n, observerNumber int, s *Server) {
	t.AttemptEnded(ctx, n, race.Failed)
	a := &t.attempts[n]
	a.to, a.began, a.number = s, time.Now(), observerNumber
	t.notifier.Notify(func(o observe.Observer) { o.AttemptStart(ctx, s.key.Info, observe.AttemptInfo{Number: a.number}) })
}

// AttemptStarted implements race.AttemptObserver. It does nothing, because no server is selected yet. reportAttempt
// reports the start instead.
func (t *eventReporter) AttemptStarted(context.Context, int) {}

// AttemptEnded implements race.AttemptObserver. It reports the outcome and the latency of the last query of attempt n.
// It does nothing if attempt n has sent no query.
func (t *eventReporter) AttemptEnded(ctx context.Context, n int, how race.Outcome) {
	if a := &t.attempts[n]; a.to != nil {
		r := observe.AttemptResult{AttemptInfo: observe.AttemptInfo{Number: a.number}, Outcome: observe.Outcome(how.String()), Latency: time.Since(a.began)}
		t.notifier.Notify(func(o observe.Observer) { o.AttemptDone(ctx, a.to.key.Info, r) })
	}
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
