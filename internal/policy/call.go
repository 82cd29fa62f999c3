package policy

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// A Call is the state of one call from Begin to End. The zero value is ready for Begin. It must not be copied while the call lasts.
type Call struct {
	// Key is the latency key of the call. Begin sets it. It stays when the call has ended: the next call often has the same key.
	Key *Key

	// Written by Begin and Began, before the race; only read in it.
	ctx           context.Context
	start         time.Time
	schedule      *Schedule     // nil: no hedge can become due
	startedBefore time.Duration // from the start of the call to Begin, see Began

	// Written by AdmitRequest and SkipHedge, with the race locked. The caller reads them once the race is over.
	reachedFirstDelay bool
	slow              bool          // the call has reached the delay by which it counts as slow
	predictedHedgeEnd time.Duration // when the first hedge that shadow mode did not send would have answered; 0: none would
	// Denied is the reason of the last denial of a hedge that was due after a delay; None if there was no denial.
	Denied observe.Reason
	// Hedges is the number of admitted hedges.
	Hedges int

	attemptStarts   [1 + race.MaxHedges]time.Duration // start of each attempt, since start; written and read for that attempt alone
	rescheduled     atomic.Bool                       // see MarkRescheduled
	withdrawnHedges atomic.Int32                      // hedges that were admitted and could not be sent
}

// An Outcome is how a call has ended for its caller.
type Outcome struct {
	Answered        bool          // the caller gets an answer; otherwise the call has failed, or its caller has given up
	Winner          int           // number of the attempt whose result the caller gets; -1: none, or a failure of the primary
	HeldBack        bool          // the answer of the winner, a hedge, came much earlier than the caller got it
	LatencyUnknown  bool          // the answer arrived before the caller asked for it, or has no first byte
	AnswersNotTaken int           // hedges whose answer ends a call only if the primary gives it
	Setup           time.Duration // time in which the winner set up a connection; it is no part of the latency
	Delay           time.Duration // before the first hedge, if it is not that of the schedule; 0: it is
}

// hedgeWon reports whether a hedge has saved time.
func (o *Outcome) hedgeWon() bool { return o.Winner > 0 && !o.HeldBack }

// Begin counts the call and returns its schedule: that of the key, or one with the delay that the caller asks for; 0: the caller asks for
// none.
func (c *Call) Begin(ctx context.Context, k *Key, delay time.Duration) *Schedule {
	return c.BeginOn(ctx, k, delay, nil)
}

// BeginOn is Begin for a call with an override; nil: there is none. A delay that the caller asks for takes precedence.
func (c *Call) BeginOn(ctx context.Context, k *Key, delay time.Duration, t *PolicyOverride) *Schedule {
	c.initialize(ctx, k)
	p := k.Begin(c.start)
	switch {
	case delay > 0:
		p = NewFixedSchedule(delay, t.MaxHedges(k.engine.Config().MaxHedges)).copyLatencyMarks(p)
	case t != nil:
		p = t.adjustSchedule(p, k.engine.Config())
	}
	c.schedule = p
	if c.notifier() != nil && len(p.hedgeDelays()) == 0 {
		c.reportDenied(k.engine.Config().unscheduledReason())
	}
	return p
}

// notifier returns the observers; nil: there are none.
func (c *Call) notifier() *observers.Notifier { return c.Key.engine.setup.Notifier }

// initialize makes c a call that begins now. It writes the fields one by one: while the garbage collector runs, that costs a fraction of
// the price of writing the whole struct.
func (c *Call) initialize(ctx context.Context, k *Key) {
	c.ctx, c.Key, c.start, c.schedule, c.startedBefore = ctx, k, k.engine.now(), nil, 0
	c.reachedFirstDelay, c.slow, c.predictedHedgeEnd, c.Denied = false, false, 0, None
	if c.Hedges > 0 {
		c.Hedges, c.attemptStarts = 0, [1 + race.MaxHedges]time.Duration{}
		c.withdrawnHedges.Store(0)
	}
	if c.rescheduled.Load() {
		c.rescheduled.Store(false)
	}
}

// P99Latency returns the 99th percentile of the latencies of the key; 0 if it is not known.
func (c *Call) P99Latency() time.Duration { return c.RaceSchedule().UsualLatency }

// noHedges is the schedule of calls without hedges.
var noHedges race.FixedSchedule

// RaceSchedule returns the schedule of the call for its race.
func (c *Call) RaceSchedule() *race.FixedSchedule {
	if c.schedule == nil {
		return &noHedges
	}
	return &c.schedule.FixedSchedule
}

// InBubble reports whether the call, or the making of its engine, happens in a bubble of testing/synctest. The clock of a bubble is not
// monotonic and begins in the year 2000, before any engine outside was made.
func (c *Call) InBubble() bool {
	e := c.Key.engine
	return e.inBubble || c.start.Before(e.startedAt)
}

// SetStart sets the start of a call that started before Begin.
func (c *Call) SetStart(at time.Time) {
	begin := c.start
	c.start = c.Key.engine.engineTime(at)
	c.startedBefore = begin.Sub(c.start)
}

// MarkRescheduled records that hedges of the call are due at other times than its schedule says.
func (c *Call) MarkRescheduled() { c.rescheduled.Store(true) }

// Elapsed returns how long ago the call began.
func (c *Call) Elapsed() time.Duration { return time.Since(c.start) }

// ElapsedSinceBegin returns how long ago Begin was called, which is later than the start of a call for which Began was called.
func (c *Call) ElapsedSinceBegin() time.Duration { return c.Elapsed() - c.startedBefore }

// WouldBeDenied predicts whether a request for a hedge at the given time will be denied. ctx is the context of the attempt that asks, which may
// outlive its call.
func (c *Call) WouldBeDenied(ctx context.Context, then time.Time, request HedgeRequest) bool {
	deadline, _ := ctx.Deadline()
	return c.Key.wouldBeDenied(then, deadline, request)
}

// isBeforeDelay reports whether the delay with the given index has not passed yet. That happens if hedges are rescheduled, or start immediately.
func (c *Call) isBeforeDelay(now time.Time, index int) bool {
	return index == Immediate || c.rescheduled.Load() && c.schedule != nil && index < len(c.schedule.Delays) && now.Sub(c.start) < c.schedule.Delays[index]
}

// Admit decides whether the hedge that is due at the delay with the given index
// may start, see [Key.Admit].
func (c *Call) Admit(index int) bool { return c.AdmitRequest(index, HedgeRequest{}, None) }

// Immediate is the index of a hedge that starts together with the primary, before any delay has passed. If it is denied, Denied stays as it is.
const Immediate = -1

// AdmitRequest is Admit for a hedge that differs from a plain one. An adapter that has a reason of its own to deny the hedge passes it as denial;
// None: it has no reason.
func (c *Call) AdmitRequest(index int, request HedgeRequest, denial observe.Reason) bool {
	now := time.Now()
	isBefore := c.isBeforeDelay(now, index)
	c.reachedFirstDelay = c.reachedFirstDelay || !isBefore
	if c.predictedHedgeEnd > 0 && now.Sub(c.start) >= c.predictedHedgeEnd {
		return false // the call would have ended
	}
	isMarker := c.schedule != nil && index == c.schedule.slowMarkerIndex && index != Immediate
	if isMarker && c.schedule.hasOwnMarker { // no hedge is due at this delay
		c.recordSlowCall(index, isBefore)
		return false
	}
	slow := isMarker && !isBefore
	c.slow = c.slow || slow
	if denial == None {
		deadline, _ := c.ctx.Deadline()
		denial = c.Key.Admit(now, slow, deadline, request)
	} else {
		c.Key.recordDenied(slow, denial)
	}
	if denial == observe.DeniedShadow {
		c.predictHedgeEnd(now)
	}
	if denial != None && index != Immediate {
		c.Denied = denial
	}
	if c.notifier() != nil {
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
	if d := c.Key.RandomLatency(); d > 0 && (c.predictedHedgeEnd == 0 || now.Sub(c.start)+d < c.predictedHedgeEnd) {
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
	if c.schedule != nil && index == c.schedule.slowMarkerIndex && !isBefore {
		c.slow = true
		c.Key.recordSlowCall()
	}
}

// reportDecision reports to observers whether the hedge that was due is admitted.
func (c *Call) reportDecision(denial observe.Reason) {
	reported := denial != None // a hedge that is denied is not in flight
	defer c.Key.HedgeEndedUnless(&reported)
	if denial == None || denial == observe.DeniedBudget || denial == observe.DeniedShadow {
		tokens := c.Key.Tokens()
		c.notifier().Notify(func(o observe.Observer) { o.Budget(c.Key.Info, tokens) })
	}
	if denial != None {
		c.reportDenied(denial)
	}
	reported = true
}

// Withdraw takes back the admission of a hedge that could not be sent, for the given reason. The request is the one that was admitted, and the
// attempt's error is then [race.ErrRefused]. Withdraw may be called after the call has ended: ctx is the context of the attempt.
func (c *Call) Withdraw(ctx context.Context, reason observe.Reason, request HedgeRequest) {
	c.withdrawnHedges.Add(1)
	c.Key.Withdraw(time.Now(), reason, request)
	c.notifier().Notify(func(o observe.Observer) { o.Denied(ctx, c.Key.Info, reason) })
}

// reportDenied reports to observers why a hedge, or any hedge of the call, is not sent.
func (c *Call) reportDenied(reason observe.Reason) {
	c.notifier().Notify(func(o observe.Observer) { o.Denied(c.ctx, c.Key.Info, reason) })
}

// SentHedges returns the number of hedges that were sent. It is complete when the race is over.
func (c *Call) SentHedges() int { return c.Hedges - int(c.withdrawnHedges.Load()) }

// HedgeEnded records that hedge n has ended.
func (c *Call) Ended(int) { c.Key.HedgeEnded() }

// ClearReferences drops the references to objects of the caller, once the call has ended.
func (c *Call) ClearReferences() { c.ctx, c.schedule = nil, nil }

// End records the outcome of the call, which ends for its caller now. It reports whether a hedge that shadow mode did not send would have won.
func (c *Call) End(o Outcome) (shadowWon bool) {
	took := time.Since(c.start) // half the price of time.Now
	var gone error
	if !o.Answered {
		gone = c.ctx.Err()
	}
	saved, shadowWon := c.Key.RecordCall(c.start.Add(took), Result{
		Latency:           took - o.Setup,
		Waited:            took - c.startedBefore,
		Answered:          o.Answered,
		LatencyUnknown:    o.LatencyUnknown,
		Abandoned:         gone != nil,
		Canceled:          errors.Is(gone, context.Canceled),
		Hedges:            c.SentHedges(),
		ReachedFirstDelay: c.reachedFirstDelay,
		Learned:           c.schedule != nil && c.schedule.slowMarkerIndex >= 0,
		Slow:              c.slow,
		HedgeWon:          o.hedgeWon(),
		PredictedHedgeEnd: c.predictedHedgeEnd,
	})
	if c.notifier() != nil {
		c.reportEnd(&o, took, saved)
	}
	return shadowWon
}

// reportEnd reports the outcome of the call to observers.
func (c *Call) reportEnd(o *Outcome, took, saved time.Duration) {
	r := observe.RequestResult{
		Attempts: 1 + c.SentHedges(), Winner: -1, Latency: took, Delay: o.Delay, AnswersNotTaken: o.AnswersNotTaken, Saved: saved, HeldBack: o.HeldBack,
		Share: c.Key.account.EffectiveShare(c.Key.engine.Config().Share),
	}
	if o.Answered {
		r.Winner = max(o.Winner, 0)
	}
	if delays := c.schedule.hedgeDelays(); r.Delay == 0 && len(delays) > 0 {
		r.Delay = delays[0]
	}
	c.Key.experiment.addVerdict(&r)
	c.notifier().Notify(func(o observe.Observer) { o.RequestDone(c.ctx, c.Key.Info, r) })
}

// AttemptObserver returns c if there are observers, to whom the race then reports through it; otherwise nil.
func (c *Call) AttemptObserver() race.AttemptObserver {
	if c.notifier() == nil {
		return nil
	}
	return c
}

// AttemptStarted reports to observers that attempt n begins.
func (c *Call) AttemptStarted(ctx context.Context, n int) {
	if c.notifier() == nil {
		return
	}
	if n > 0 {
		c.attemptStarts[n] = time.Since(c.start)
	}
	c.notifier().Notify(func(o observe.Observer) { o.AttemptStart(ctx, c.Key.Info, observe.AttemptInfo{Number: n}) })
}

// AttemptEnded reports to observers that attempt n has ended, and its outcome.
func (c *Call) AttemptEnded(ctx context.Context, n int, how race.Outcome) {
	if c.notifier() == nil {
		return
	}
	r := observe.AttemptResult{
		AttemptInfo: observe.AttemptInfo{Number: n}, Outcome: observe.Outcome(how.String()), Latency: time.Since(c.start) - c.attemptStarts[n],
	}
	c.notifier().Notify(func(o observe.Observer) { o.AttemptDone(ctx, c.Key.Info, r) })
}

// BeginResumption makes c the request for the rest of an answer that is being read. It is a hedge of a call that has ended: it earns no budget,
// and its latency is not recorded. It is admitted, started and finished as other hedges are. EndRest ends it.
func (c *Call) BeginResumption(ctx context.Context, k *Key) {
	c.initialize(ctx, k)
}

// EndResumption ends the request for the rest. Won reports whether its answer is read.
func (c *Call) EndResumption(won bool) {
	c.Key.HedgeEnded()
	if won {
		c.Key.recordResumptionWin()
	}
}
