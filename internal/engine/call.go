package engine

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A Call is one call's way through its key. The zero value is ready for Begin.
// It must not be copied while the call lasts.
type Call struct {
	ctx     context.Context
	key     *Key
	start   time.Time
	learned bool
	reached bool
	ghost   time.Duration // when a hedge that was not sent would have answered; 0: none

	observer Observer // the engine's
	delay    time.Duration
	began    [1 + race.MaxHedges]time.Duration // of each attempt, since start
	winner   int                               // known if there is an observer

	// Denied is why the call's last refused hedge was refused; Go if none was.
	Denied Verdict
	// Hedges is how many hedges were admitted. Read it once the race is over.
	Hedges int
}

// Begin counts the call and returns the plan for it: the key's, or what the
// caller asks for with a delay of its own (0: none).
func (c *Call) Begin(ctx context.Context, k *Key, delay time.Duration) *Plan {
	*c = Call{ctx: ctx, key: k, start: time.Now(), observer: k.engine.observer}
	p := k.Begin(c.start)
	if delay > 0 {
		p = Patience(delay, k.engine.Config().MaxHedges)
	} else {
		c.learned = p != nil
	}
	if c.observer == nil {
		return p
	}
	if p != nil && len(p.Delays) > 0 {
		c.delay = p.Delays[0]
	} else {
		c.observer.Denied(ctx, k.Name, k.engine.Config().unplanned())
	}
	return p
}

// Admit decides whether the hedge of the given stage may start, see [Key.Strike].
// Each hedge that starts must call the key's Landed when it has ended.
func (c *Call) Admit(stage int, veto Verdict) bool {
	c.reached = true
	now := time.Now()
	if c.ghost > 0 && now.Sub(c.start) >= c.ghost {
		return false // a hedge would have answered, and there would be no call any more
	}
	deadline, _ := c.ctx.Deadline()
	v := c.key.Strike(now, stage, c.learned, deadline, veto)
	if v == Shadow {
		if d := c.key.Draw(); d > 0 && (c.ghost == 0 || now.Sub(c.start)+d < c.ghost) {
			c.ghost = now.Sub(c.start) + d
		}
	}
	if c.observer != nil && (v == Go || v == Budget || v == Shadow) {
		c.observer.Budget(c.key.Name, c.key.bucket.Tokens())
	}
	if v != Go {
		c.Denied = v
		if c.observer != nil {
			c.observer.Denied(c.ctx, c.key.Name, v)
		}
		return false
	}
	c.Hedges++
	return true
}

// End learns from the call, which the caller saw end now. If what answered had
// to set up a connection first, that took setup, and is not learned.
func (c *Call) End(answered, hedgeWon bool, setup time.Duration) {
	took := time.Since(c.start) // half the price of time.Now
	saved := c.key.Done(c.start.Add(took), Result{
		Latency:  took - setup,
		Answered: answered,
		Gone:     !answered && c.ctx.Err() != nil,
		Reached:  c.reached,
		Learned:  c.learned,
		HedgeWon: hedgeWon,
		Ghost:    c.ghost,
	})
	if c.observer == nil {
		return
	}
	r := Report{Attempts: 1 + c.Hedges, Winner: c.winner, Latency: took, Delay: c.delay, Saved: saved}
	if !answered {
		r.Winner = -1
	}
	c.observer.RequestDone(c.ctx, c.key.Name, r)
}
