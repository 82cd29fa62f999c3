package policy

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/watch"
	"github.com/gohedge/hedge/observe"
)

// A Call is one call's way through its key. The zero value is ready for Begin.
// It must not be copied while the call lasts.
type Call struct {
	// Written by Begin and Due, before the race; only read in it.
	ctx     context.Context
	key     *Key
	start   time.Time
	plan    *Schedule
	terms   *PolicyOverride // nil: those of the configuration
	watcher *watch.Watcher  // the engine's; nil: there are no observers
	delay   time.Duration   // after which the call is to be hedged, for observers; 0: not at all

	// Written by Admit and Finished, with the race locked. The caller reads them once the race is over.
	reached bool          // its first delay
	slow    bool          // it has reached the delay by which it counts as slow
	unsent  time.Duration // when a hedge that was not sent would have answered; 0: none
	winner  int           // the attempt that answered; known if there are observers
	ahead   time.Duration // by which the call began before Begin, see Began
	untimed bool          // see MarkLatencyUnknown; written by the caller once the race is over
	// Denied is why the call's last denied hedge was denied, of those that a delay was for; None if none was.
	Denied observe.Reason
	// Hedges is how many hedges were admitted.
	Hedges int
	// NotTaken is how many of them had an answer that ends a call only if it is the primary's. The
	// caller writes it before End.
	NotTaken int
	// ShadowWon is whether a hedge that shadow mode did not send would have won. End writes it.
	ShadowWon bool

	began   [1 + race.MaxHedges]time.Duration // of each attempt, since start; written and read for that attempt alone
	moved   atomic.Bool                       // see MarkRescheduled
	refused atomic.Int32                      // hedges that were admitted and refused by what is below; whoever carries one counts it
}

// Begin counts the call and returns the plan for it: the key's, or what the
// caller asks for with a delay of its own (0: none).
func (c *Call) Begin(ctx context.Context, k *Key, delay time.Duration) *Schedule {
	return c.BeginOn(ctx, k, delay, nil)
}

// BeginOn is Begin for a call on terms of its own. A delay that the caller asks for counts more than theirs.
func (c *Call) BeginOn(ctx context.Context, k *Key, delay time.Duration, t *PolicyOverride) *Schedule {
	c.reset(ctx, k, t)
	p := k.Begin(c.start)
	switch {
	case delay > 0:
		p = NewFixedSchedule(delay, t.Most(k.engine.Config().MaxHedges)).like(p)
	case t != nil:
		p = t.plan(p, k.engine.Config())
	}
	c.plan = p
	if c.watcher == nil {
		return p
	}
	if p != nil && len(p.hedges()) > 0 {
		c.delay = p.Delays[0]
	} else {
		c.tellDenied(k.engine.Config().unplanned())
	}
	return p
}

// reset makes c a call that begins now. It writes the fields one by one: while the garbage
// collector runs, that costs a fraction of what writing the whole struct does.
func (c *Call) reset(ctx context.Context, k *Key, t *PolicyOverride) {
	c.ctx, c.key, c.start, c.plan, c.terms, c.watcher, c.delay = ctx, k, k.engine.now(), nil, t, k.engine.setup.Watcher, 0
	c.reached, c.slow, c.untimed, c.unsent, c.winner, c.ahead, c.Denied, c.NotTaken = false, false, false, 0, 0, 0, None, 0
	if c.Hedges > 0 {
		c.Hedges, c.began = 0, [1 + race.MaxHedges]time.Duration{}
		c.refused.Store(0)
	}
	if c.moved.Load() {
		c.moved.Store(false)
	}
}

// Usual returns the 99th percentile of what callers of the key wait; 0 if that is not known.
func (c *Call) Usual() time.Duration {
	if c.plan == nil {
		return 0
	}
	return c.plan.P99
}

// InBubble reports whether the call, or the making of its engine, happens in a bubble of testing/synctest. The clock of a bubble is not
// monotonic and begins in the year 2000, before any engine outside was made.
func (c *Call) InBubble() bool {
	e := c.key.engine
	return e.bubble || c.start.Before(e.born)
}

// Began says when the call began, if that was before Begin.
func (c *Call) Began(at time.Time) {
	begin := c.start
	c.start = c.key.engine.clock(at)
	c.ahead = begin.Sub(c.start)
}

// Due says after which delay the call is to be hedged, if that is not the plan's.
func (c *Call) Due(delay time.Duration) { c.delay = delay }

// MarkRescheduled says that hedges of the call are due at other times than planned.
func (c *Call) MarkRescheduled() { c.moved.Store(true) }

// Elapsed returns how long ago the call began.
func (c *Call) Elapsed() time.Duration { return time.Since(c.start) }

// WouldBeDenied reports whether a hedge with a request that is due then would be denied, as far as is known now: ctx is the context of the attempt
// that asks, which may outlive its call.
func (c *Call) WouldBeDenied(ctx context.Context, then time.Time, request HedgeRequest) bool {
	k := c.key
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.engine.setup.Shadow {
		return true
	}
	deadline, _ := ctx.Deadline()
	return k.audit.IsDark() || k.tokens() < float64(request.tokens()) || k.brakes.deny(then, deadline, k.plan.Load(), k.inFlight.Load(), request.OtherBackend) != None
}

// early reports whether the delay with the given index has not passed, though the call is asked about it.
func (c *Call) early(now time.Time, index int) bool {
	return c.moved.Load() && c.plan != nil && index < len(c.plan.Delays) && now.Sub(c.start) < c.plan.Delays[index]
}

// AnsweredBy says which attempt has answered, if no race tells the call (see [Call.Watch]).
func (c *Call) AnsweredBy(n int) { c.winner = n }

// Admit decides whether the hedge that is due at the delay with the given index
// may start, see [Key.Admit].
func (c *Call) Admit(index int) bool { return c.AdmitUnless(index, None) }

// AdmitUnless is Admit for an adapter with a reason of its own to refuse, or None.
func (c *Call) AdmitUnless(index int, denial observe.Reason) bool {
	return c.AdmitRequest(index, HedgeRequest{Denial: denial})
}

// AdmitRequest is Admit for a hedge with a request. That of one that starts with the primary has no index.
func (c *Call) AdmitRequest(index int, request HedgeRequest) bool {
	now := time.Now()
	early := request.Immediate || c.early(now, index)
	c.reached = c.reached || !early
	if request.OverLimit {
		return c.passed(index, early)
	}
	if c.unsent > 0 && now.Sub(c.start) >= c.unsent {
		return false // a hedge would have answered, and there would be no call any more
	}
	deadline, _ := c.ctx.Deadline()
	counts := c.plan != nil && index == c.plan.slow && !request.Immediate
	if counts && c.plan.marked { // no hedge is due, whenever it is asked for
		return c.passed(index, early)
	}
	slow := counts && !early
	c.slow = c.slow || slow
	denial := c.key.Admit(now, slow, deadline, request)
	if denial == observe.DeniedShadow {
		if d := c.key.RandomLatency(); d > 0 && (c.unsent == 0 || now.Sub(c.start)+d < c.unsent) {
			c.unsent = now.Sub(c.start) + d
		}
	}
	if denial != None && !request.Immediate {
		c.Denied = denial
	}
	if c.watcher != nil {
		c.tell(denial)
	}
	if denial != None {
		return false
	}
	c.Hedges++
	return true
}

// passed learns that the call may count as slow at the delay with the given index, though no hedge is due. It reports false.
func (c *Call) passed(index int, early bool) bool {
	if c.plan != nil && index == c.plan.slow && !early {
		c.slow = true
		c.key.slowed()
	}
	return false
}

// tell tells of a hedge that was due.
func (c *Call) tell(denial observe.Reason) {
	told := denial != None // a hedge that is denied is not in flight
	defer c.key.EndedUnless(&told)
	if denial == None || denial == observe.DeniedBudget || denial == observe.DeniedShadow {
		tokens := c.key.Tokens()
		c.watcher.Tell(func(o observe.Observer) { o.Budget(c.key.Info, tokens) })
	}
	if denial != None {
		c.tellDenied(denial)
	}
	told = true
}

// Withdraw says that a hedge which was admitted with a request was not sent, for the given reason: what was to carry it refused. The attempt's
// error is then [race.ErrRefused]. It may be refused after its call: ctx is the context of the attempt.
func (c *Call) Withdraw(ctx context.Context, reason observe.Reason, request HedgeRequest) {
	c.refused.Add(1)
	c.key.Withdraw(time.Now(), reason, request)
	c.watcher.Tell(func(o observe.Observer) { o.Denied(ctx, c.key.Info, reason) })
}

// tellDenied tells why a hedge, or any hedge of the call, is not sent.
func (c *Call) tellDenied(reason observe.Reason) {
	c.watcher.Tell(func(o observe.Observer) { o.Denied(c.ctx, c.key.Info, reason) })
}

// Sent returns how many hedges were sent. Ask once the race is over.
func (c *Call) Sent() int { return c.Hedges - int(c.refused.Load()) }

// Ended says that hedge n has ended.
func (c *Call) Ended(int) { c.key.Ended() }

// Forget drops what the call refers to that its caller made, once it has ended.
func (c *Call) Forget() { c.ctx, c.plan, c.terms = nil, nil, nil }

// MarkLatencyUnknown says that the answer was there before the caller asked for it, which is all that is known of its latency.
func (c *Call) MarkLatencyUnknown() { c.untimed = true }

// End learns from the call, which the caller saw end now. HedgeWon is false for a hedge whose answer was held back. If the attempt that answered had
// to set up a connection first, that took setup, and is not learned.
func (c *Call) End(answered, hedgeWon bool, setup time.Duration) {
	took := time.Since(c.start) // half the price of time.Now
	var gone error
	if !answered {
		gone = c.ctx.Err()
	}
	var saved time.Duration
	saved, c.ShadowWon = c.key.Done(c.start.Add(took), Result{
		Latency:           took - setup,
		Waited:            took - c.ahead,
		Answered:          answered,
		LatencyUnknown:    c.untimed,
		Abandoned:         gone != nil,
		Canceled:          errors.Is(gone, context.Canceled),
		Hedges:            c.Sent(),
		ReachedFirstDelay: c.reached,
		Learned:           c.plan != nil && c.plan.slow >= 0,
		Slow:              c.slow,
		HedgeWon:          hedgeWon,
		PredictedHedgeEnd: c.unsent,
	})
	if c.watcher == nil {
		return
	}
	r := observe.RequestResult{
		Attempts: 1 + c.Sent(), Winner: c.winner, Latency: took, Delay: c.delay, AnswersNotTaken: c.NotTaken, Saved: saved, HeldBack: answered && c.winner > 0 && !hedgeWon, Audit: string(c.key.audit.Verdict()),
		Share: c.key.purse.Share(c.key.engine.Config().Share),
	}
	if !answered {
		r.Winner = -1
	}
	c.watcher.Tell(func(o observe.Observer) { o.RequestDone(c.ctx, c.key.Info, r) })
}

// Watch returns what a race is to tell about the call: nil if there are no observers.
func (c *Call) Watch() race.Watch {
	if c.watcher == nil {
		return nil
	}
	return c
}

// Started tells that attempt n begins.
func (c *Call) Started(ctx context.Context, n int) {
	if c.watcher == nil {
		return
	}
	if n > 0 {
		c.began[n] = time.Since(c.start)
	}
	c.watcher.Tell(func(o observe.Observer) { o.AttemptStart(ctx, c.key.Info, observe.AttemptInfo{Number: n}) })
}

// Finished tells how attempt n ended.
func (c *Call) Finished(ctx context.Context, n int, how race.Outcome) {
	if c.watcher == nil {
		return
	}
	if how == race.Won {
		c.winner = n
	}
	r := observe.AttemptResult{
		AttemptInfo: observe.AttemptInfo{Number: n}, Outcome: observe.Outcome(how.String()), Latency: time.Since(c.start) - c.began[n],
	}
	c.watcher.Tell(func(o observe.Observer) { o.AttemptDone(ctx, c.key.Info, r) })
}

// BeginRest makes c the request for the rest of an answer that is being read, which is a
// hedge of a call that has ended. It is no call of its own: it earns no budget and teaches no
// latency. It is admitted, started and finished as other hedges are, and EndRest ends it.
func (c *Call) BeginRest(ctx context.Context, k *Key) {
	c.reset(ctx, k, nil)
}

// EndRest says that the request for the rest has ended, and whether its answer is read.
func (c *Call) EndRest(won bool) {
	c.key.Ended()
	if won {
		c.key.restWon()
	}
}
