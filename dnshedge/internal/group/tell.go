package group

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// told is what observers were told of an exchange. What belongs to an attempt is used by the attempt's goroutine alone; the
// delay is written before the race begins. Of a nil told nobody is told.
type told struct {
	watcher  *observers.Notifier
	ctx      context.Context
	first    *Server       // by which observers know the exchange
	delay    time.Duration // after which the first hedge is due; 0: none is
	attempts [1 + MaxHedges]struct {
		to     *Server // nil: none was asked yet
		began  time.Time
		number int
	}
}

var _ race.Watch = (*told)(nil)

// tell returns a new told, or nil if there are no observers.
func tell(ctx context.Context, w *observers.Notifier, first *Server) *told {
	if w == nil {
		return nil
	}
	return &told{watcher: w, ctx: ctx, first: first}
}

// watch returns what the race is to tell of attempts: nil if there are no observers.
func (t *told) watch() race.Watch {
	if t == nil {
		return nil
	}
	return t
}

// denied tells why a hedge, or any hedge of the exchange, is not sent.
func (t *told) denied(reason observe.Reason) {
	if t != nil {
		t.watcher.Notify(func(o observe.Observer) { o.Denied(t.ctx, t.first.key.Info, reason) })
	}
}

// asks tells that attempt n, which observers know by number, asks a server, and if it asked another one before, that this
// one failed.
func (t *told) asks(ctx context.Context, n, number int, s *Server) {
	if t == nil {
		return
	}
	t.AttemptEnded(ctx, n, race.Failed)
	a := &t.attempts[n]
	a.to, a.began, a.number = s, time.Now(), number
	t.watcher.Notify(func(o observe.Observer) { o.AttemptStart(ctx, s.key.Info, observe.AttemptInfo{Number: a.number}) })
}

// AttemptStarted does nothing, because it is not known yet which server is asked.
func (t *told) AttemptStarted(context.Context, int) {}

// AttemptEnded tells how attempt n ended.
func (t *told) AttemptEnded(ctx context.Context, n int, how race.Outcome) {
	if a := &t.attempts[n]; a.to != nil {
		r := observe.AttemptResult{AttemptInfo: observe.AttemptInfo{Number: a.number}, Outcome: observe.Outcome(how.String()), Latency: time.Since(a.began)}
		t.watcher.Notify(func(o observe.Observer) { o.AttemptDone(ctx, a.to.key.Info, r) })
	}
}

// end tells how an exchange ended of which the engine knows nothing.
func (t *told) end(winner, hedges int, took time.Duration) {
	r := observe.RequestResult{Attempts: 1 + hedges, Winner: winner, Latency: took, Delay: t.delay}
	t.watcher.Notify(func(o observe.Observer) { o.RequestDone(t.ctx, t.first.key.Info, r) })
}
