package engine

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/race"

	"github.com/gohedge/hedge/observe"
)

// An Observer is told what happens to the calls of an Engine. Its methods are
// called by the goroutines that make the calls and must not block; some of them
// are called with a race locked.
type Observer interface {
	AttemptStart(ctx context.Context, name Name, n int)
	AttemptDone(ctx context.Context, name Name, n int, how race.Outcome, took time.Duration)
	RequestDone(ctx context.Context, name Name, r Report)
	Denied(ctx context.Context, name Name, reason observe.Reason)
	Budget(name Name, tokens float64)
	Audited(name Name, v observe.Audit)
}

// A Report is how a call ended.
type Report struct {
	Attempts int           // made, losers included
	Winner   int           // which of them; -1 if the caller got a failure
	Latency  time.Duration // what the caller waited
	Delay    time.Duration // after which the call was to be hedged; 0: not at all
	Saved    time.Duration // by the hedge that won, or would have in shadow mode; an estimate
	Audit    string        // the host's verdict; "" if it is not audited
}

// Watch returns what a race is to tell about the call: nil if there is no observer.
func (c *Call) Watch() race.Watch {
	if c.observer == nil {
		return nil
	}
	return c
}

// Started tells the observer that attempt n begins.
func (c *Call) Started(ctx context.Context, n int) {
	if c.observer == nil {
		return
	}
	if n > 0 {
		c.began[n] = time.Since(c.start)
	}
	c.observer.AttemptStart(ctx, c.key.Name, n)
}

// Finished tells the observer how attempt n ended.
func (c *Call) Finished(ctx context.Context, n int, how race.Outcome) {
	if c.observer == nil {
		return
	}
	if how == race.Won {
		c.winner = n
	}
	c.observer.AttemptDone(ctx, c.key.Name, n, how, time.Since(c.start)-c.began[n])
}

// Unhedged is a call that is sent once: the observer is told of it, and nothing is
// learned from it.
type Unhedged struct {
	observer Observer
	ctx      context.Context
	name     Name
	start    time.Time
}

// Observed reports whether there is an observer.
func (e *Engine) Observed() bool { return e.observer != nil }

// BeginUnhedged begins a call that is not hedged for the given reason.
func (e *Engine) BeginUnhedged(ctx context.Context, name Name, reason observe.Reason) Unhedged {
	if e.observer == nil {
		return Unhedged{}
	}
	e.observer.Denied(ctx, name, reason)
	e.observer.AttemptStart(ctx, name, 0)
	return Unhedged{e.observer, ctx, name, time.Now()}
}

// Done ends the call.
func (u Unhedged) Done(answered bool) {
	if u.observer == nil {
		return
	}
	took, how, winner := time.Since(u.start), race.Won, 0
	if !answered {
		how, winner = race.Failed, -1
	}
	u.observer.AttemptDone(u.ctx, u.name, 0, how, took)
	u.observer.RequestDone(u.ctx, u.name, Report{Attempts: 1, Winner: winner, Latency: took})
}
