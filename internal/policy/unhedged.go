package policy

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An UnhedgedCall is a call that is sent without hedges, between its start and its end. It is reported to observers, but
// nothing is learned from it.
type UnhedgedCall struct {
	notifier *observers.Notifier // nil: there are no observers
	ctx      context.Context     // context of the call
	key      observe.KeyInfo     // latency key of the call
	start    time.Time           // start of the call
	attempt  observe.AttemptInfo // the only attempt of the call
}

// HasObservers reports whether the engine has observers. If it has none, nothing needs to be reported to them.
func (e *Engine) HasObservers() bool { return e.setup.Notifier != nil }

// ReportClient passes the state of the client that uses the engine to the observers.
func (e *Engine) ReportClient(s observe.ClientState) {
	e.setup.Notifier.Notify(func(o observe.Observer) { o.ClientCreated(s) })
}

// BeginUnhedged reports the start of a call that is sent without hedges to observers, with the reason why it is not hedged.
// The caller must call End on the result when the call has ended.
func (e *Engine) BeginUnhedged(ctx context.Context, name Name, reason observe.Reason) UnhedgedCall {
	if !e.HasObservers() {
		return UnhedgedCall{}
	}
	u := UnhedgedCall{notifier: e.setup.Notifier, ctx: ctx, key: e.keyInfo(name), attempt: observe.AttemptInfo{IsRetry: race.OverridesFrom(ctx).Retry}}
	u.notifier.Notify(func(o observe.Observer) { o.Denied(ctx, u.key, reason) })
	u.notifier.Notify(func(o observe.Observer) { o.AttemptStart(ctx, u.key, u.attempt) })
	u.start = time.Now()
	return u
}

// End reports the end of the call to observers. answered is true if the call succeeded.
func (u UnhedgedCall) End(answered bool) {
	if u.notifier == nil {
		return
	}
	took, how, winner := time.Since(u.start), observe.Won, 0
	if !answered {
		how, winner = observe.Failed, -1
	}
	u.notifier.Notify(func(o observe.Observer) {
		o.AttemptDone(u.ctx, u.key, observe.AttemptResult{AttemptInfo: u.attempt, Outcome: how, Latency: took})
	})
	u.notifier.Notify(func(o observe.Observer) {
		o.RequestDone(u.ctx, u.key, observe.RequestResult{Attempts: 1, Winner: winner, Latency: took, IsRetry: u.attempt.IsRetry})
	})
}
