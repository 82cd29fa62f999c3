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

// A Call is the state of one call from Begin to End. The zero value is ready for Begin. It must not be copied while the call lasts.
type Call struct {
	// Written by Begin and Due, before the race; only read in it.
	ctx      context.Context
	key      *Key
	start    time.Time
	schedule *Schedule
	override *PolicyOverride // nil: the configuration holds
	watcher  *watch.Watcher  // the engine's; nil: there are no observers
	delay    time.Duration   // before the first hedge, for observers; 0: the call is not hedged

	// Written by Admit and Finished, with the race locked. The caller reads them once the race is over.
	reachedFirstDelay bool
	slow              bool          // the call has reached the delay by which it counts as slow
	predictedHedgeEnd time.Duration // when the first hedge that shadow mode did not send would have answered; 0: none would
	winner            int           // number of the attempt that answered; known if there are observers
	ahead             time.Duration // from the start of the call to Begin, see Began
	latencyUnknown    bool          // see MarkLatencyUnknown; written by the caller once the race is over
	// Denied is the reason of the last denial of a hedge that was due after a delay; None if there was no denial.
	Denied observe.Reason
	// Hedges is the number of admitted hedges.
	Hedges int
	// NotTaken is the number of hedges whose answer ends a call only if the primary gives it. The caller writes it before End.
	NotTaken int
	// ShadowWon reports whether a hedge that shadow mode did not send would have won. End writes it.
	ShadowWon bool

	began       [1 + race.MaxHedges]time.Duration // start of each attempt, since start; written and read for that attempt alone
	rescheduled atomic.Bool                       // see MarkRescheduled
	withdrawn   atomic.Int32                      // hedges that were admitted and could not be sent
}

// Begin counts the call and returns its schedule: that of the key, or one with the delay that the caller asks for; 0: the caller asks for
// none.
func (c *Call) Begin(ctx context.Context, k *Key, delay time.Duration) *Schedule {
	return c.BeginOn(ctx, k, delay, nil)
}

// BeginOn is Begin for a call with an override; nil: there is none. A delay that the caller asks for takes precedence.
func (c *Call) BeginOn(ctx context.Context, k *Key, delay time.Duration, t *PolicyOverride) *Schedule {
	c.reset(ctx, k, t)
	p := k.Begin(c.start)
	switch {
	case delay > 0:
		p = NewFixedSchedule(delay, t.Most(k.engine.Config().MaxHedges)).copyLatencyMarks(p)
	case t != nil:
		p = t.adjust(p, k.engine.Config())
	}
	c.schedule = p
	if c.watcher == nil {
		return p
	}
	if p != nil && len(p.hedges()) > 0 {
		c.delay = p.Delays[0]
	} else {
		c.reportDenied(k.engine.Config().unscheduledReason())
	}
	return p
}

// reset makes c a call that begins now. It writes the fields one by one: while the garbage collector runs, that costs a fraction of
// the price of writing the whole struct.
func (c *Call) reset(ctx context.Context, k *Key, t *PolicyOverride) {
	c.ctx, c.key, c.start, c.schedule, c.override, c.watcher, c.delay = ctx, k, k.engine.now(), nil, t, k.engine.setup.Watcher, 0
	c.reachedFirstDelay, c.slow, c.latencyUnknown, c.predictedHedgeEnd, c.winner, c.ahead, c.Denied, c.NotTaken = false, false, false, 0, 0, 0, None, 0
	if c.Hedges > 0 {
		c.Hedges, c.began = 0, [1 + race.MaxHedges]time.Duration{}
		c.withdrawn.Store(0)
	}
	if c.rescheduled.Load() {
		c.rescheduled.Store(false)
	}
}

// Usual returns the 99th percentile of the latencies of the key; 0 if it is not known.
func (c *Call) Usual() time.Duration {
	if c.schedule == nil {
		return 0
	}
	return c.schedule.P99
}

// InBubble reports whether the call, or the making of its engine, happens in a bubble of testing/synctest. The clock of a bubble is not
// monotonic and begins in the year 2000, before any engine outside was made.
func (c *Call) InBubble() bool {
	e := c.key.engine
	return e.bubble || c.start.Before(e.born)
}

// Began sets the start of a call that started before Begin.
func (c *Call) Began(at time.Time) {
	begin := c.start
	c.start = c.key.engine.clock(at)
	c.ahead = begin.Sub(c.start)
}

// Due sets the delay before the first hedge, for observers, if it is not that of the schedule.
func (c *Call) Due(delay time.Duration) { c.delay = delay }

// MarkRescheduled records that hedges of the call are due at other times than its schedule says.
func (c *Call) MarkRescheduled() { c.rescheduled.Store(true) }

// Elapsed returns how long ago the call began.
func (c *Call) Elapsed() time.Duration { return time.Since(c.start) }

// WouldBeDenied predicts whether a request for a hedge at the given time will be denied. ctx is the context of the attempt that asks, which may
// outlive its call.
func (c *Call) WouldBeDenied(ctx context.Context, then time.Time, request HedgeRequest) bool {
	deadline, _ := ctx.Deadline()
	return c.key.wouldBeDenied(then, deadline, request)
}

// isBeforeDelay reports whether the delay with the given index has not passed yet. That happens if hedges are rescheduled, or start immediately.
func (c *Call) isBeforeDelay(now time.Time, index int) bool {
	return index == immediate || c.rescheduled.Load() && c.schedule != nil && index < len(c.schedule.Delays) && now.Sub(c.start) < c.schedule.Delays[index]
}

// AnsweredBy sets the number of the attempt that answered, if no race reports to the call, see [Call.Watch].
func (c *Call) AnsweredBy(n int) { c.winner = n }

// Admit decides whether the hedge that is due at the delay with the given index
// may start, see [Key.Admit].
func (c *Call) Admit(index int) bool { return c.AdmitRequest(index, HedgeRequest{}, None) }

// AdmitUnless is Admit for an adapter that has a reason of its own to deny the hedge. None is no reason.
func (c *Call) AdmitUnless(index int, denial observe.Reason) bool {
	return c.AdmitRequest(index, HedgeRequest{}, denial)
}

// immediate is the index of a hedge that starts together with the primary.
const immediate = -1

// AdmitImmediate decides whether a hedge may start together with the primary, before any delay has passed. If it may not, Denied stays as it is.
func (c *Call) AdmitImmediate(request HedgeRequest) bool {
	return c.AdmitRequest(immediate, request, None)
}

// AdmitRequest is AdmitUnless for a hedge that differs from a plain one.
func (c *Call) AdmitRequest(index int, request HedgeRequest, denial observe.Reason) bool {
	now := time.Now()
	isBefore := c.isBeforeDelay(now, index)
	c.reachedFirstDelay = c.reachedFirstDelay || !isBefore
	if c.predictedHedgeEnd > 0 && now.Sub(c.start) >= c.predictedHedgeEnd {
		return false // the call would have ended
	}
	isMarker := c.schedule != nil && index == c.schedule.slow && index != immediate
	if isMarker && c.schedule.hasMarker { // no hedge is due at this delay
		c.recordSlowCall(index, isBefore)
		return false
	}
	slow := isMarker && !isBefore
	c.slow = c.slow || slow
	if denial == None {
		deadline, _ := c.ctx.Deadline()
		denial = c.key.Admit(now, slow, deadline, request)
	} else {
		c.key.deny(slow, denial)
	}
	if denial == observe.DeniedShadow {
		c.predictHedgeEnd(now)
	}
	if denial != None && index != immediate {
		c.Denied = denial
	}
	if c.watcher != nil {
		c.reportDecision(denial)
	}
	if denial != None {
		return false
	}
	c.Hedges++
	return true
}

// predictHedgeEnd predicts when a hedge that shadow mode does not send would have answered, and stores the earliest prediction of the call.
func (c *Call) predictHedgeEnd(now time.Time) {
	if d := c.key.RandomLatency(); d > 0 && (c.predictedHedgeEnd == 0 || now.Sub(c.start)+d < c.predictedHedgeEnd) {
		c.predictedHedgeEnd = now.Sub(c.start) + d
	}
}

// SkipHedge records that the delay with the given index has passed when the call had sent all its hedges already. The call may count as slow by it.
func (c *Call) SkipHedge(index int) {
	isBefore := c.isBeforeDelay(time.Now(), index)
	c.reachedFirstDelay = c.reachedFirstDelay || !isBefore
	c.recordSlowCall(index, isBefore)
}

// recordSlowCall counts the call as slow if the delay with the given index is the one by which calls count as slow, and it has passed.
func (c *Call) recordSlowCall(index int, isBefore bool) {
	if c.schedule != nil && index == c.schedule.slow && !isBefore {
		c.slow = true
		c.key.recordSlowCall()
	}
}

// reportDecision reports to observers whether the hedge that was due is admitted.
func (c *Call) reportDecision(denial observe.Reason) {
	reported := denial != None // a hedge that is denied is not in flight
	defer c.key.EndedUnless(&reported)
	if denial == None || denial == observe.DeniedBudget || denial == observe.DeniedShadow {
		tokens := c.key.Tokens()
		c.watcher.Tell(func(o observe.Observer) { o.Budget(c.key.Info, tokens) })
	}
	if denial != None {
		c.reportDenied(denial)
	}
	reported = true
}

// Withdraw takes back the admission of a hedge that could not be sent, for the given reason. The request is the one that was admitted, and the
// attempt's error is then [race.ErrRefused]. Withdraw may be called after the call has ended: ctx is the context of the attempt.
func (c *Call) Withdraw(ctx context.Context, reason observe.Reason, request HedgeRequest) {
	c.withdrawn.Add(1)
	c.key.Withdraw(time.Now(), reason, request)
	c.watcher.Tell(func(o observe.Observer) { o.Denied(ctx, c.key.Info, reason) })
}

// reportDenied reports to observers why a hedge, or any hedge of the call, is not sent.
func (c *Call) reportDenied(reason observe.Reason) {
	c.watcher.Tell(func(o observe.Observer) { o.Denied(c.ctx, c.key.Info, reason) })
}

// Sent returns the number of hedges that were sent. It is complete when the race is over.
func (c *Call) Sent() int { return c.Hedges - int(c.withdrawn.Load()) }

// Ended records that hedge n has ended.
func (c *Call) Ended(int) { c.key.Ended() }

// Forget drops the references to objects of the caller, once the call has ended.
func (c *Call) Forget() { c.ctx, c.schedule, c.override = nil, nil, nil }

// MarkLatencyUnknown records that the answer arrived before the caller asked for it, so that its latency is not known.
func (c *Call) MarkLatencyUnknown() { c.latencyUnknown = true }

// End records the result of the call, which ends for its caller now. HedgeWon is false for a hedge whose answer was held back. Setup is the time
// in which the attempt that answered set up a connection. It is no part of the latency.
func (c *Call) End(answered, hedgeWon bool, setup time.Duration) {
	took := time.Since(c.start) // half the price of time.Now
	var gone error
	if !answered {
		gone = c.ctx.Err()
	}
	var saved time.Duration
	saved, c.ShadowWon = c.key.RecordCall(c.start.Add(took), Result{
		Latency:           took - setup,
		Waited:            took - c.ahead,
		Answered:          answered,
		LatencyUnknown:    c.latencyUnknown,
		Abandoned:         gone != nil,
		Canceled:          errors.Is(gone, context.Canceled),
		Hedges:            c.Sent(),
		ReachedFirstDelay: c.reachedFirstDelay,
		Learned:           c.schedule != nil && c.schedule.slow >= 0,
		Slow:              c.slow,
		HedgeWon:          hedgeWon,
		PredictedHedgeEnd: c.predictedHedgeEnd,
	})
	if c.watcher == nil {
		return
	}
	r := observe.RequestResult{
		Attempts: 1 + c.Sent(), Winner: c.winner, Latency: took, Delay: c.delay, AnswersNotTaken: c.NotTaken, Saved: saved, HeldBack: answered && c.winner > 0 && !hedgeWon,
		Share: c.key.account.Share(c.key.engine.Config().Share),
	}
	if !answered {
		r.Winner = -1
	}
	c.key.experiment.describe(&r)
	c.watcher.Tell(func(o observe.Observer) { o.RequestDone(c.ctx, c.key.Info, r) })
}

// Watch returns c if there are observers, to whom the race then reports through it; otherwise nil.
func (c *Call) Watch() race.Watch {
	if c.watcher == nil {
		return nil
	}
	return c
}

// AttemptStarted reports to observers that attempt n begins.
func (c *Call) AttemptStarted(ctx context.Context, n int) {
	if c.watcher == nil {
		return
	}
	if n > 0 {
		c.began[n] = time.Since(c.start)
	}
	c.watcher.Tell(func(o observe.Observer) { o.AttemptStart(ctx, c.key.Info, observe.AttemptInfo{Number: n}) })
}

// AttemptEnded reports to observers that attempt n has ended, and its outcome.
func (c *Call) AttemptEnded(ctx context.Context, n int, how race.Outcome) {
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

// BeginRest makes c the request for the rest of an answer that is being read. It is a hedge of a call that has ended: it earns no budget,
// and its latency is not recorded. It is admitted, started and finished as other hedges are. EndRest ends it.
func (c *Call) BeginRest(ctx context.Context, k *Key) {
	c.reset(ctx, k, nil)
}

// EndRest ends the request for the rest. Won reports whether its answer is read.
func (c *Call) EndRest(won bool) {
	c.key.Ended()
	if won {
		c.key.recordRestWin()
	}
}
