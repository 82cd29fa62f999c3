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

	// Begin and SetStart write these fields before the race. The race only reads them.
	ctx           context.Context
	start         time.Time
	schedule      *Schedule     // nil: no hedge can become due
	startedBefore time.Duration // from the start of the call to Begin, see SetStart

	// AdmitRequest and SkipHedge write these fields with the race locked. The caller reads them after the race.
	reachedFirstDelay bool
	slow              bool          // the call has reached the delay by which it counts as slow
	predictedHedgeEnd time.Duration // from start to the predicted answer of the first hedge that shadow mode did not send; 0: no answer is predicted
	// Denied is the reason of the last denial of a hedge that was due after a delay; None if there was no denial.
	Denied observe.Reason
	// Hedges is the number of admitted hedges.
	Hedges int

	attemptStarts   [1 + race.MaxHedges]time.Duration // time from start to the start of each attempt; only the attempt itself uses its element
	rescheduled     atomic.Bool                       // see MarkRescheduled
	withdrawnHedges atomic.Int32                      // hedges that were admitted and could not be sent
}

// An Outcome is the result of a call as its caller gets it.
type Outcome struct {
	Answered        bool          // the caller gets an answer; false: the call failed, or its caller canceled it
	Winner          int           // number of the attempt whose result the caller gets; -1: no attempt succeeded
	HeldBack        bool          // the winner is a hedge, and the caller got its answer much later than it arrived
	LatencyUnknown  bool          // the latency is only an upper bound: the answer arrived before the caller asked for it, or has no first byte
	AnswersNotTaken int           // number of hedges with an answer that would end the call only from the primary, see [race.ErrAnswer]
	Setup           time.Duration // time in which the winner set up a connection; the learned latency does not include it
	Delay           time.Duration // delay of the first hedge; 0: that of the schedule
}

// hedgeWon reports whether a hedge gave the result earlier than the primary would have. It is false for a hedge that was held back.
func (o *Outcome) hedgeWon() bool { return o.Winner > 0 && !o.HeldBack }

// Begin counts the call and returns its schedule; nil: the call is not hedged. The schedule has the delay that the caller has set for this
// call, or the learned delays of the key if delay is 0.
func (c *Call) Begin(ctx context.Context, k *Key, delay time.Duration) *Schedule {
	return c.BeginOn(ctx, k, delay, nil)
}

// BeginOn does the same as Begin for a call to which the override t applies. If t is nil, no override applies. A positive delay takes
// precedence over t.
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

// notifier returns the notifier of the observers; nil if there are no observers.
func (c *Call) notifier() *observers.Notifier { return c.Key.engine.setup.Notifier }

// initialize resets c for a call on k that begins now. It assigns each field: during garbage collection, that is faster than an assignment
// of the whole struct.
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

// P99Latency returns the 99th percentile of the key's latencies; 0 if it is not known.
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

// InBubble reports whether the call or its engine was made in a bubble of testing/synctest. The clock of a bubble starts in the year 2000,
// so a call in a bubble begins before an engine that was made outside.
func (c *Call) InBubble() bool {
	e := c.Key.engine
	return e.inBubble || c.start.Before(e.startedAt)
}

// SetStart sets the start of the call to a time before Begin, for a call whose primary was sent before Begin.
func (c *Call) SetStart(at time.Time) {
	begin := c.start
	c.start = c.Key.engine.engineTime(at)
	c.startedBefore = begin.Sub(c.start)
}

// MarkRescheduled records that the delays of the schedule do not say when hedges of this call are due.
func (c *Call) MarkRescheduled() { c.rescheduled.Store(true) }

// Elapsed returns how long ago the call began.
func (c *Call) Elapsed() time.Duration { return time.Since(c.start) }

// ElapsedSinceBegin returns the time since Begin was called. After SetStart, it is shorter than Elapsed.
func (c *Call) ElapsedSinceBegin() time.Duration { return c.Elapsed() - c.startedBefore }

// WouldBeDenied predicts whether Admit will deny the hedge at the given time. It uses the deadline of ctx, which is the context of an
// attempt, because the attempt may outlive its call.
func (c *Call) WouldBeDenied(ctx context.Context, then time.Time, request HedgeRequest) bool {
	deadline, _ := ctx.Deadline()
	return c.Key.wouldBeDenied(then, deadline, request)
}

// isBeforeDelay reports whether the call has not yet reached the delay with the given index. This is possible for a rescheduled hedge, and
// always true for an [Immediate] one.
func (c *Call) isBeforeDelay(now time.Time, index int) bool {
	return index == Immediate || c.rescheduled.Load() && c.schedule != nil && index < len(c.schedule.Delays) && now.Sub(c.start) < c.schedule.Delays[index]
}

// Admit decides whether the hedge at the delay with the given index may start. If it reports true, the budget has paid for the hedge, and
// Ended must be called when it has ended.
func (c *Call) Admit(index int) bool { return c.AdmitRequest(index, HedgeRequest{}, None) }

// Immediate is the index of a hedge that starts together with the primary. Its denial is not stored in [Call].Denied.
const Immediate = -1

// AdmitRequest does the same as Admit for the hedge that request describes. If denial is not [None], the adapter denies the hedge for that
// reason: AdmitRequest then only records and reports the denial.
func (c *Call) AdmitRequest(index int, request HedgeRequest, denial observe.Reason) bool {
	now := time.Now()
	isBefore := c.isBeforeDelay(now, index)
	c.reachedFirstDelay = c.reachedFirstDelay || !isBefore
	if c.predictedHedgeEnd > 0 && now.Sub(c.start) >= c.predictedHedgeEnd {
		return false // in shadow mode: a hedge would have ended the call by now
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

// predictHedgeEnd predicts when a hedge that shadow mode does not send would have answered. It keeps the earliest prediction of the call.
func (c *Call) predictHedgeEnd(now time.Time) {
	if d := c.Key.RandomLatency(); d > 0 && (c.predictedHedgeEnd == 0 || now.Sub(c.start)+d < c.predictedHedgeEnd) {
		c.predictedHedgeEnd = now.Sub(c.start) + d
	}
}

// SkipHedge records that the call has reached the delay with the given index after it sent its maximum of hedges. The delay may be the slow
// marker of the schedule.
func (c *Call) SkipHedge(index int) {
	isBefore := c.isBeforeDelay(time.Now(), index)
	c.reachedFirstDelay = c.reachedFirstDelay || !isBefore
	c.recordSlowCall(index, isBefore)
}

// recordSlowCall counts the call as slow if index is the slow marker of the schedule, see [Schedule]. If isBefore is true, the delay has
// not passed, and recordSlowCall does nothing.
func (c *Call) recordSlowCall(index int, isBefore bool) {
	if c.schedule != nil && index == c.schedule.slowMarkerIndex && !isBefore {
		c.slow = true
		c.Key.recordSlowCall()
	}
}

// reportDecision reports to observers whether a hedge is admitted, and for which reason it is denied.
func (c *Call) reportDecision(denial observe.Reason) {
	reported := denial != None // a denied hedge is not in flight
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

// Withdraw takes back the admission of a hedge that could not be sent. The request must be equal to that of AdmitRequest, and the error of
// the attempt must be [race.ErrRefused]. Withdraw may be called after the end of the call, so ctx is the context of the attempt.
func (c *Call) Withdraw(ctx context.Context, reason observe.Reason, request HedgeRequest) {
	c.withdrawnHedges.Add(1)
	c.Key.Withdraw(time.Now(), reason, request)
	c.notifier().Notify(func(o observe.Observer) { o.Denied(ctx, c.Key.Info, reason) })
}

// reportDenied reports to observers why a hedge is not sent, or why the call is not hedged at all.
func (c *Call) reportDenied(reason observe.Reason) {
	c.notifier().Notify(func(o observe.Observer) { o.Denied(c.ctx, c.Key.Info, reason) })
}

// SentHedges returns the number of hedges that were sent. It is final when the race is over.
func (c *Call) SentHedges() int { return c.Hedges - int(c.withdrawnHedges.Load()) }

// Ended implements [race.Op]: the hedge is no longer in flight.
func (c *Call) Ended(int) { c.Key.HedgeEnded() }

// ClearReferences drops the references to the caller's objects, after the end of the call.
func (c *Call) ClearReferences() { c.ctx, c.schedule = nil, nil }

// End records the outcome of the call, which ends now. It reports whether a hedge that shadow mode did not send would have won.
func (c *Call) End(o Outcome) (shadowWon bool) {
	took := time.Since(c.start) // takes half as long as time.Now
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

// AttemptObserver returns the observer of the attempts that notifies the program's observers; nil if there are none.
func (c *Call) AttemptObserver() race.AttemptObserver {
	if c.notifier() == nil {
		return nil
	}
	return c
}

// AttemptStarted reports to observers that attempt n starts.
func (c *Call) AttemptStarted(ctx context.Context, n int) {
	if c.notifier() == nil {
		return
	}
	if n > 0 {
		c.attemptStarts[n] = time.Since(c.start)
	}
	c.notifier().Notify(func(o observe.Observer) { o.AttemptStart(ctx, c.Key.Info, observe.AttemptInfo{Number: n}) })
}

// AttemptEnded reports to observers that attempt n has ended with the given outcome.
func (c *Call) AttemptEnded(ctx context.Context, n int, how race.Outcome) {
	if c.notifier() == nil {
		return
	}
	r := observe.AttemptResult{
		AttemptInfo: observe.AttemptInfo{Number: n}, Outcome: observe.Outcome(how.String()), Latency: time.Since(c.start) - c.attemptStarts[n],
	}
	c.notifier().Notify(func(o observe.Observer) { o.AttemptDone(ctx, c.Key.Info, r) })
}

// BeginResumption makes c a hedge that resumes the response body of a call: it requests the bytes that are still missing. The call itself
// has ended, so c earns no tokens and its latency is not recorded. Like other hedges, it needs Admit. EndResumption ends it.
func (c *Call) BeginResumption(ctx context.Context, k *Key) {
	c.initialize(ctx, k)
}

// EndResumption ends the hedge of BeginResumption. If won is true, the caller gets its bytes.
func (c *Call) EndResumption(won bool) {
	c.Key.HedgeEnded()
	if won {
		c.Key.recordResumptionWin()
	}
}
