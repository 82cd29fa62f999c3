package group

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An eventReporter reports the events of an exchange to observers. Each element of attempts is used by the goroutine of that attempt alone; the
// delay is written before the race begins. A nil eventReporter reports nothing.
type eventReporter struct {
	watcher  *observers.Notifier
	ctx      context.Context
	first    *Server       // whose latency key observers get
	delay    time.Duration // of the first hedge; 0: no hedge is due
	attempts [1 + MaxHedges]struct {
		to     *Server // nil: no server was asked yet
		began  time.Time
		number int
	}
}

var _ race.AttemptObserver = (*eventReporter)(nil)

// newEventReporter returns a reporter; nil if there are no observers.
func newEventReporter(ctx context.Context, w *observers.Notifier, first *Server) *eventReporter {
	if w == nil {
		return nil
	}
	return &eventReporter{watcher: w, ctx: ctx, first: first}
}

// raceWatch returns t as the observer of a race; nil if there are no observers.
func (t *eventReporter) raceWatch() race.AttemptObserver {
	if t == nil {
		return nil
	}
	return t
}

// reportDenied reports why a hedge, or any hedge of the exchange, is not sent.
func (t *eventReporter) reportDenied(reason observe.Reason) {
	if t != nil {
		t.watcher.Notify(func(o observe.Observer) { o.Denied(t.ctx, t.first.key.Info, reason) })
	}
}

// reportAttempt reports that attempt n, which has another number for observers, asks a server, and that a server before in the same attempt has
// failed.
func (t *eventReporter) reportAttempt(ctx context.Context, n, number int, s *Server) {
	if t == nil {
		return
	}
	t.AttemptEnded(ctx, n, race.Failed)
	a := &t.attempts[n]
	a.to, a.began, a.number = s, time.Now(), number
	t.watcher.Notify(func(o observe.Observer) { o.AttemptStart(ctx, s.key.Info, observe.AttemptInfo{Number: a.number}) })
}

// AttemptStarted does nothing, because the server is not chosen yet.
func (t *eventReporter) AttemptStarted(context.Context, int) {}

// AttemptEnded reports the outcome of attempt n.
func (t *eventReporter) AttemptEnded(ctx context.Context, n int, how race.Outcome) {
	if a := &t.attempts[n]; a.to != nil {
		r := observe.AttemptResult{AttemptInfo: observe.AttemptInfo{Number: a.number}, Outcome: observe.Outcome(how.String()), Latency: time.Since(a.began)}
		t.watcher.Notify(func(o observe.Observer) { o.AttemptDone(ctx, a.to.key.Info, r) })
	}
}

// reportEnd reports the end of an exchange that the policy does not report.
func (t *eventReporter) reportEnd(winner, hedges int, took time.Duration) {
	r := observe.RequestResult{Attempts: 1 + hedges, Winner: winner, Latency: took, Delay: t.delay}
	t.watcher.Notify(func(o observe.Observer) { o.RequestDone(t.ctx, t.first.key.Info, r) })
}
