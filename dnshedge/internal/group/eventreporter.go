package group

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An eventReporter reports the events of an exchange to observers. A nil eventReporter reports nothing.
//
// Only the goroutine of an attempt uses its element of attempts. delay is set before the race begins.
type eventReporter struct {
	watcher  *observers.Notifier
	ctx      context.Context
	first    *Server       // first server of the group; its latency key stands for the exchange
	delay    time.Duration // hedge delay of the first hedge; 0: no hedge is due
	attempts [1 + MaxHedges]struct {
		to     *Server // nil: no server was asked yet
		began  time.Time
		number int
	}
}

var _ race.AttemptObserver = (*eventReporter)(nil)

// newEventReporter returns a reporter of events to w for an exchange whose first server is first. It returns nil if w
// is nil.
func newEventReporter(ctx context.Context, w *observers.Notifier, first *Server) *eventReporter {
	if w == nil {
		return nil
	}
	return &eventReporter{watcher: w, ctx: ctx, first: first}
}

// raceObserver returns t as the observer of a race. It returns a nil interface if t is nil.
func (t *eventReporter) raceObserver() race.AttemptObserver {
	if t == nil {
		return nil
	}
	return t
}

// reportDenied reports the reason why a hedge, or every hedge of the exchange, is not sent.
func (t *eventReporter) reportDenied(reason observe.Reason) {
	if t != nil {
		t.watcher.Notify(func(o observe.Observer) { o.Denied(t.ctx, t.first.key.Info, reason) })
	}
}

// reportAttempt reports that attempt n sends a query to s. number is the attempt's number for observers. If the attempt
// has sent a query to another server before, it first reports that query as failed.
func (t *eventReporter) reportAttempt(ctx context.Context, n, number int, s *Server) {
	if t == nil {
		return
	}
	t.AttemptEnded(ctx, n, race.Failed)
	a := &t.attempts[n]
	a.to, a.began, a.number = s, time.Now(), number
	t.watcher.Notify(func(o observe.Observer) { o.AttemptStart(ctx, s.key.Info, observe.AttemptInfo{Number: a.number}) })
}

// AttemptStarted implements race.AttemptObserver. It does nothing, because the server is not selected yet; see
// reportAttempt.
func (t *eventReporter) AttemptStarted(context.Context, int) {}

// AttemptEnded implements race.AttemptObserver. It reports the outcome of attempt n and of the query that it sent last.
func (t *eventReporter) AttemptEnded(ctx context.Context, n int, how race.Outcome) {
	if a := &t.attempts[n]; a.to != nil {
		r := observe.AttemptResult{AttemptInfo: observe.AttemptInfo{Number: a.number}, Outcome: observe.Outcome(how.String()), Latency: time.Since(a.began)}
		t.watcher.Notify(func(o observe.Observer) { o.AttemptDone(ctx, a.to.key.Info, r) })
	}
}

// reportEnd reports the end of an exchange without a latency key; policy.Call reports that of the others.
func (t *eventReporter) reportEnd(winner, hedges int, took time.Duration) {
	r := observe.RequestResult{Attempts: 1 + hedges, Winner: winner, Latency: took, Delay: t.delay}
	t.watcher.Notify(func(o observe.Observer) { o.RequestDone(t.ctx, t.first.key.Info, r) })
}
