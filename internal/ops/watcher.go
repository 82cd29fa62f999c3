package ops

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// A Watcher passes an engine's events to observers. A panic of an observer does not
// leave it; that an observer ends its goroutine cannot be prevented. It is safe for concurrent use; its fields must not be changed after first use.
type Watcher struct {
	Observers        []observe.Observer
	Client, Protocol string // as in [observe.KeyInfo]
	Log              *Log   // is told of panics
}

var _ engine.Observer = (*Watcher)(nil)

func (w *Watcher) key(n engine.Name) observe.KeyInfo {
	return observe.KeyInfo{Client: w.Client, Protocol: w.Protocol, Host: n.Host, Route: n.Route}
}

func (w *Watcher) tell(f func(observe.Observer)) { tell(w.Observers, w.Log, f) }

// tell calls f for each observer. A panic must not leave it: f may run in a
// goroutine of a timer, where a panic ends the process.
func tell(observers []observe.Observer, log *Log, f func(observe.Observer)) {
	for _, o := range observers {
		tellOne(o, log, f)
	}
}

func tellOne(o observe.Observer, log *Log, f func(observe.Observer)) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			log.Panicked(o, p)
		} else if !returned {
			log.Panicked(o, "runtime.Goexit")
		}
	}()
	f(o)
	returned = true
}

// AttemptStart tells that attempt n begins.
func (w *Watcher) AttemptStart(ctx context.Context, name engine.Name, n int) {
	w.tell(func(o observe.Observer) { o.AttemptStart(ctx, w.key(name), observe.AttemptInfo{Number: n}) })
}

// AttemptDone tells how attempt n ended, and how long it took.
func (w *Watcher) AttemptDone(ctx context.Context, name engine.Name, n int, how race.Outcome, took time.Duration) {
	outcome := [...]observe.Outcome{race.Won: observe.Won, race.Lost: observe.Lost, race.Failed: observe.Failed}[how]
	r := observe.AttemptResult{AttemptInfo: observe.AttemptInfo{Number: n}, Outcome: outcome, Latency: took}
	w.tell(func(o observe.Observer) { o.AttemptDone(ctx, w.key(name), r) })
}

// RequestDone tells how a call ended.
func (w *Watcher) RequestDone(ctx context.Context, name engine.Name, r engine.Report) {
	w.tell(func(o observe.Observer) { o.RequestDone(ctx, w.key(name), observe.RequestResult(r)) })
}

// Denied tells why a hedge, or any hedge of a call, is not sent.
func (w *Watcher) Denied(ctx context.Context, name engine.Name, reason observe.Reason) {
	w.tell(func(o observe.Observer) { o.Denied(ctx, w.key(name), reason) })
}

// Budget tells how many hedges the budget would still pay for.
func (w *Watcher) Budget(name engine.Name, tokens float64) {
	w.tell(func(o observe.Observer) { o.Budget(w.key(name), tokens) })
}

// Audited tells what the audit of a host has found.
func (w *Watcher) Audited(name engine.Name, v observe.Audit) {
	w.tell(func(o observe.Observer) { o.Audited(w.key(name), v) })
}

// A LimiterWatcher passes a Limiter's events to observers, as a [Watcher] does an engine's.
type LimiterWatcher struct {
	Observers []observe.Observer
	Name      string // the Limiter's
	Log       *Log   // is told of panics
}

// Limited tells what became of a request.
func (w *LimiterWatcher) Limited(ctx context.Context, r observe.LimiterResult) {
	tell(w.Observers, w.Log, func(o observe.Observer) { o.Limited(ctx, w.Name, r) })
}
