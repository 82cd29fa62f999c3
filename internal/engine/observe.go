package engine

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// An Observer is told what happens to the calls of an Engine. Its methods are
// called by the goroutines that make the calls and must not block; some of them
// are called with a race locked.
type Observer interface {
	AttemptStart(ctx context.Context, name Name, n int)
	AttemptDone(ctx context.Context, name Name, n int, how race.Fate, took time.Duration)
	RequestDone(ctx context.Context, name Name, r Report)
	Denied(ctx context.Context, name Name, why Verdict)
	Budget(name Name, tokens float64)
}

// A Report is how a call ended.
type Report struct {
	Attempts int           // made, losers included
	Winner   int           // which of them; -1 if the caller got a failure
	Latency  time.Duration // what the caller waited
	Delay    time.Duration // after which the call was to be hedged; 0: not at all
	Saved    time.Duration // by the hedge that won, or would have in a rehearsal; an estimate
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

// Landed tells the observer what became of attempt n.
func (c *Call) Landed(ctx context.Context, n int, how race.Fate) {
	if c.observer == nil {
		return
	}
	if how == race.Won {
		c.winner = n
	}
	c.observer.AttemptDone(ctx, c.key.Name, n, how, time.Since(c.start)-c.began[n])
}

// A Passage is a call that is sent once, past the engine: it is told to the
// observer, and teaches nothing.
type Passage struct {
	observer Observer
	ctx      context.Context
	name     Name
	start    time.Time
}

// Watched reports whether there is an observer.
func (e *Engine) Watched() bool { return e.observer != nil }

// Pass begins the passage of a call that is not hedged for the given reason.
func (e *Engine) Pass(ctx context.Context, name Name, why Verdict) Passage {
	if e.observer == nil {
		return Passage{}
	}
	e.observer.Denied(ctx, name, why)
	e.observer.AttemptStart(ctx, name, 0)
	return Passage{e.observer, ctx, name, time.Now()}
}

// Done ends the passage.
func (p Passage) Done(answered bool) {
	if p.observer == nil {
		return
	}
	took, how, winner := time.Since(p.start), race.Won, 0
	if !answered {
		how, winner = race.Failed, -1
	}
	p.observer.AttemptDone(p.ctx, p.name, 0, how, took)
	p.observer.RequestDone(p.ctx, p.name, Report{Attempts: 1, Winner: winner, Latency: took})
}
