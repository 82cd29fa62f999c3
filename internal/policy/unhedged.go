package policy

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/observe"
)

// Unhedged is a call that is sent once. It is reported to observers, and its latency is not recorded.
type Unhedged struct {
	watcher *observers.Notifier // nil: there are no observers
	ctx     context.Context
	key     observe.KeyInfo
	start   time.Time
}

// Observed reports whether there are observers.
func (e *Engine) Observed() bool { return e.setup.Watcher != nil }

// BeginUnhedged begins a call that is not hedged for the given reason.
func (e *Engine) BeginUnhedged(ctx context.Context, name Name, reason observe.Reason) Unhedged {
	if !e.Observed() {
		return Unhedged{}
	}
	u := Unhedged{watcher: e.setup.Watcher, ctx: ctx, key: e.keyInfo(name)}
	u.watcher.Notify(func(o observe.Observer) { o.Denied(ctx, u.key, reason) })
	u.watcher.Notify(func(o observe.Observer) { o.AttemptStart(ctx, u.key, observe.AttemptInfo{}) })
	u.start = time.Now()
	return u
}

// Done ends the call.
func (u Unhedged) Done(answered bool) {
	if u.watcher == nil {
		return
	}
	took, how, winner := time.Since(u.start), observe.Won, 0
	if !answered {
		how, winner = observe.Failed, -1
	}
	u.watcher.Notify(func(o observe.Observer) {
		o.AttemptDone(u.ctx, u.key, observe.AttemptResult{Outcome: how, Latency: took})
	})
	u.watcher.Notify(func(o observe.Observer) {
		o.RequestDone(u.ctx, u.key, observe.RequestResult{Attempts: 1, Winner: winner, Latency: took})
	})
}
