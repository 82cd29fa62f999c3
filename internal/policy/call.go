package policy

import (
	"context"
	"errors"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// A Call is the state of one call from Begin to End: its latency key, its schedule and its hedges. The zero value is ready for
// Begin, and a Call may be used again after End. It must not be copied between Begin and End.
type Call struct {
	// Key is the latency key of the call, as passed to Begin. It is kept after End, because the next call often has the same
	// key.
	Key *Key
	// IsRetry is true if the caller has marked the call as a retry. Adapters that support marks set it for each call before
	// Begin. It must not change during the race.
	IsRetry bool

	// Begin and SetStart write these fields before the race of the call starts. They must not change during the race.
	ctx           context.Context
	start         time.Time     // start of the call by the clock of the engine, see SetStart
	schedule      *Schedule     // schedule of the call; nil: no hedge becomes due
	startedBefore time.Duration // time from start to Begin; 0 unless SetStart was called
	// denialAtStart is the reason for which the mode of the engine denied hedges when the call began; None if it denied none. A
	// change of the mode does not allow hedges of the call.
	denialAtStart observe.Reason

	// AdmitRequest and SkipSurplus write these fields while they hold the lock of the race. They may only be read after the race.
	progress callProgress // last point of its schedule that the call has reached
	// predictedHedgeEnd is the time from start to the predicted response to a hedge that shadow mode did not send. It is the
	// earliest prediction of the call; 0 means that there is none.
	predictedHedgeEnd time.Duration
	// Denied is the reason why the latest hedge that was due after a delay or a failure was denied. It is None if no hedge was
	// denied.
	Denied observe.Reason
	// Hedges is the number of hedges that Admit or AdmitRequest has allowed to start.
	Hedges int

	// attemptStarts holds the time from start to the start of each attempt, by attempt number. MarkHedgeStart writes the element
	// of a hedge before the hedge starts. After that, only the goroutine of an attempt uses the element of that attempt.
	attemptStarts [1 + race.MaxHedges]time.Duration
	flags         atomic.Uint32 // bit n is set if hedge n was admitted, but could not be sent; see also the constants
}

// Further bits of Call.flags.
const (
	flagAfterFailure = 1 << 8  // times 1<<n: the failure of another attempt has started hedge n
	flagInBubble     = 1 << 30 // the call started before its engine was made, see IsInBubble
	flagRescheduled  = 1 << 31 // set by MarkRescheduled
	withdrawnHedges  = flagAfterFailure - 1
)

// A callProgress is the last point of its schedule that a call has reached. Points are ordered by time.
type callProgress uint8

const (
	reachedNothing    callProgress = iota
	reachedFirstDelay              // the first hedge delay
	reachedSlowMarker              // the slow marker, from which the call counts as slow
)

// An Outcome describes how a call ended, from the point of view of its caller.
type Outcome struct {
	// Answered is true if the caller gets a response. It is false if the call failed or its caller cancelled it.
	Answered bool
	// Winner is the number of the attempt whose result the caller gets: 0 for the primary. It is -1 if no attempt succeeded.
	Winner int
	// HeldBack is true if a hedge has won, but its response was passed to the caller much later than it arrived.
	HeldBack bool
	// LatencyUnknown is true if the measured latency is only an upper bound: the response arrived before the caller asked for
	// it, or the time of its first byte is unknown.
	LatencyUnknown bool
	// AnswersNotTaken is the number of hedges whose responses were discarded, because only the primary may end the call with a
	// response like theirs, see [race.ErrAnswer].
	AnswersNotTaken int
	// Setup is the time in which the winner set up its connection. It is not part of the recorded latency.
	Setup time.Duration
	// Delay is the delay of the first hedge. 0 stands for the first delay of the schedule.
	Delay time.Duration
}

// hedgeWon reports whether a hedge won and made the call faster. It is false if its response was passed to the caller
// much later than it arrived.
func (o *Outcome) hedgeWon() bool { return o.Winner > 0 && !o.HeldBack }

// Begin starts the call c on the key k: it counts the call and, unless that is a retry, deposits tokens in the budget of k. It
// returns the schedule of the call's hedges, or nil if the call must not be hedged.
//
// A positive delay is a fixed hedge delay that the caller has set for this call. If delay is 0, the schedule has the learned
// delays of k.
func (c *Call) Begin(ctx context.Context, k *Key, delay time.Duration) *Schedule {
	return c.BeginWithOverride(ctx, k, delay, nil)
}

// BeginWithOverride does the same as Begin, but the override t, which may be nil, changes the schedule. A positive delay takes
// precedence over the delays of t.
func (c *Call) BeginWithOverride(ctx context.Context, k *Key, delay time.Duration, t *PolicyOverride) *Schedule {
	c.initialize(ctx, k)
	var p *Schedule
	if c.IsRetry {
		p = k.BeginRetry(c.start)
	} else {
		p = k.Begin(c.start)
	}
	c.denialAtStart = k.denialByMode()
	switch {
	case delay > 0:
		p = NewFixedSchedule(delay, t.MaxHedges(k.engine.Config().MaxHedges)).copySlowThresholds(p)
	case t != nil:
		p = t.adjustSchedule(p, k.engine.Config())
	}
	c.schedule = p
	if c.notifier() != nil && len(p.hedgeDelays()) == 0 {
		c.reportDenied(k.engine.Config().unscheduledReason())
	}
	return p
}

// notifier returns the notifier of the engine, or nil if the engine has no observers.
func (c *Call) notifier() *observers.Notifier { return c.Key.engine.setup.Notifier }

// initialize prepares c for a call on k that starts now. It assigns fields one by one, because assigning the whole struct is
// slower during garbage collection.
func (c *Call) initialize(ctx context.Context, k *Key) {
	start, age := k.engine.now()
	c.ctx, c.Key, c.start, c.schedule, c.startedBefore = ctx, k, start, nil, 0
	c.progress, c.predictedHedgeEnd, c.Denied = reachedNothing, 0, None
	if c.Hedges > 0 {
		c.Hedges, c.attemptStarts = 0, [1 + race.MaxHedges]time.Duration{}
	}
	if c.flags.Load() != 0 {
		c.flags.Store(0)
	}
	if age < 0 {
		c.flags.Store(flagInBubble)
	}
}

// P99Latency returns the 99th percentile of the latencies that were learned for the call's key. It is 0 if too few latencies
// are known or the call has no schedule.
func (c *Call) P99Latency() time.Duration { return c.RaceSchedule().UsualLatency }

// noHedges is the schedule of a call that is not hedged. It is never modified.
var noHedges race.FixedSchedule

// RaceSchedule returns the hedge delays of this call in the form that a race needs. It is never nil. It has no delays if the
// call is not hedged.
func (c *Call) RaceSchedule() *race.FixedSchedule {
	if c.schedule == nil {
		return &noHedges
	}
	return &c.schedule.FixedSchedule
}

// IsInBubble reports whether the call runs in a bubble of testing/synctest, or its engine was made in one. It must be called
// after Begin.
//
// The fake clock of a bubble starts in the year 2000. So a call that starts before its engine was made must be in a bubble.
func (c *Call) IsInBubble() bool {
	return c.Key.engine.inBubble || c.flags.Load()&flagInBubble != 0
}

// SetStart moves the start of the call back to the time start. It is for a call whose primary was sent before Begin. It must
// be called after Begin, and before the race starts.
func (c *Call) SetStart(start time.Time) {
	begin := c.start
	c.start = c.Key.engine.engineTime(start)
	c.startedBefore = begin.Sub(c.start)
}

// MarkRescheduled records that hedges of this call may start earlier than their delays in the schedule, for example because
// an attempt failed. Such an early hedge does not show that the call is slow.
func (c *Call) MarkRescheduled() { c.flags.Or(flagRescheduled) }

// Elapsed returns the time since the start of the call.
func (c *Call) Elapsed() time.Duration { return time.Since(c.start) }

// ElapsedSinceBegin returns the time since Begin was called. It is shorter than Elapsed if SetStart has set an earlier start.
func (c *Call) ElapsedSinceBegin() time.Duration { return c.Elapsed() - c.startedBefore }

// WouldBeDenied predicts whether the hedge that request describes would be denied at the future time startTime. The caller
// can use the prediction to avoid work for a hedge without a chance.
//
// ctx must be the context of an attempt, because the prediction uses its deadline: an attempt can still run after its call
// has ended.
func (c *Call) WouldBeDenied(ctx context.Context, startTime time.Time, request HedgeRequest) bool {
	deadline, _ := ctx.Deadline()
	return c.Key.wouldBeDenied(startTime, deadline, request)
}

// isBeforeDelay reports whether the call has not yet reached the delay with the given index at the time now. A hedge can
// start before its delay: always with index [Immediate] or [race.AfterFailure], and otherwise only after MarkRescheduled.
func (c *Call) isBeforeDelay(now time.Time, index int) bool {
	return index < 0 || c.flags.Load()&flagRescheduled != 0 && c.schedule != nil && index < len(c.schedule.Delays) && now.Sub(c.start) < c.schedule.Delays[index]
}

// Admit decides whether a hedge may start now. The argument index is the index of the delay in the schedule after which the
// hedge is due, or [race.AfterFailure]. If Admit returns true, the budget has paid for the hedge, and the caller must call
// Ended when the hedge has ended.
func (c *Call) Admit(index int) bool { return c.AdmitRequest(index, HedgeRequest{}, None) }

// Immediate is the delay index of a hedge that starts together with the primary. If such a hedge is denied, Call.Denied does
// not change.
const Immediate = -1

// AdmitRequest decides, like Admit, whether a hedge may start now. The argument request describes the hedge.
//
// If the adapter has already denied the hedge, denial is the reason, and otherwise [None]. AdmitRequest then only records
// and reports the denial, and returns false.
func (c *Call) AdmitRequest(index int, request HedgeRequest, denial observe.Reason) bool {
	now := time.Now()
	request.AfterFailure = index == race.AfterFailure
	isBefore := c.isBeforeDelay(now, index)
	if !isBefore {
		c.progress = max(c.progress, reachedFirstDelay)
	}
	if c.predictedHedgeEnd > 0 && now.Sub(c.start) >= c.predictedHedgeEnd {
		return false // in shadow mode: a hedge would have ended the call by now
	}
	isMarker := c.schedule != nil && index == c.schedule.slowMarkerIndex && index >= 0
	if isMarker && c.schedule.hasOwnMarker { // no hedge is due at this delay
		c.recordSlowCall(index, isBefore)
		return false
	}
	slow := isMarker && !isBefore
	if slow {
		c.progress = reachedSlowMarker
	}
	if denial == None {
		deadline, _ := c.ctx.Deadline()
		denial = c.Key.admit(now, slow, deadline, request, c.denialAtStart)
	} else {
		c.Key.recordDenied(slow, denial)
	}
	if denial == observe.DeniedShadow {
		c.predictHedgeEnd(now)
	}
	if denial != None && index != Immediate {
		c.Denied = denial
	}
	if denial != None {
		if c.notifier() != nil {
			c.reportDenied(denial)
		}
		return false
	}
	if c.Hedges++; request.AfterFailure {
		c.flags.Or(flagAfterFailure << c.Hedges)
	}
	return true
}

// predictHedgeEnd predicts when a hedge would have ended that shadow mode did not send. The hedge would have started at the
// time now. The call keeps its earliest prediction.
func (c *Call) predictHedgeEnd(now time.Time) {
	if d := c.Key.RandomLatency(); d > 0 && (c.predictedHedgeEnd == 0 || now.Sub(c.start)+d < c.predictedHedgeEnd) {
		c.predictedHedgeEnd = now.Sub(c.start) + d
	}
}

// SkipSurplus reports whether the hedge with the given index of the schedule must be skipped, because hedges that are not in
// the schedule, a probe or hedges after failures, have used up the maximum number maxHedges of hedges. It then records that
// the call has reached the delay: if that is the slow marker of the schedule, the call counts as slow.
func (c *Call) SkipSurplus(index, maxHedges int) bool {
	if c.Hedges <= index || c.Hedges < maxHedges {
		return false
	}
	isBefore := c.isBeforeDelay(time.Now(), index)
	if !isBefore {
		c.progress = max(c.progress, reachedFirstDelay)
	}
	c.recordSlowCall(index, isBefore)
	return true
}

// recordSlowCall counts the call as slow if index is the index of the schedule's slow marker: the delay from which a call
// counts as slow. It does nothing if isBefore is true, which means that the call has not reached the delay yet.
func (c *Call) recordSlowCall(index int, isBefore bool) {
	if c.schedule != nil && index == c.schedule.slowMarkerIndex && !isBefore {
		c.progress = reachedSlowMarker
		c.Key.recordSlowCall()
	}
}

// Withdraw takes back the admission of hedge n, which then could not be sent. Its tokens return to the budget, and it counts
// as denied for the given reason.
//
// The attempt of the hedge must fail with [race.ErrRefused]. The argument request must be that of AdmitRequest. The argument
// ctx must be the context of the attempt, because Withdraw may be called after the end of the call.
func (c *Call) Withdraw(ctx context.Context, n int, reason observe.Reason, request HedgeRequest) {
	c.flags.Or(1 << n)
	request.AfterFailure = c.IsAfterFailure(n)
	c.Key.Withdraw(time.Now(), reason, request)
	c.notifier().Notify(func(o observe.Observer) { o.Denied(ctx, c.Key.Info, reason) })
}

// reportDenied reports to observers why a hedge is not sent, or why the call is not hedged at all.
func (c *Call) reportDenied(reason observe.Reason) {
	c.notifier().Notify(func(o observe.Observer) { o.Denied(c.ctx, c.Key.Info, reason) })
}

// MarkHedgeStart records that the hedge that was admitted last starts now. The caller must hold the lock of the race. Calls that
// do not use AttemptLatency need not call it.
func (c *Call) MarkHedgeStart() { c.attemptStarts[c.Hedges] = time.Since(c.start) }

// AttemptLatency returns the time since the start of attempt n. It must be called in the goroutine of the attempt.
func (c *Call) AttemptLatency(n int) time.Duration { return time.Since(c.start) - c.attemptStarts[n] }

// IsAfterFailure reports whether the failure of another attempt has started attempt n, see [race.AfterFailure].
func (c *Call) IsAfterFailure(n int) bool { return c.flags.Load()&(flagAfterFailure<<n) != 0 }

// SentHedges returns the number of hedges that were sent. The number can change until the race of the call is over.
func (c *Call) SentHedges() int {
	if c.Hedges == 0 {
		return 0
	}
	return c.Hedges - bits.OnesCount32(c.flags.Load()&withdrawnHedges)
}

// Ended implements [race.Op]. It records that one admitted hedge is no longer in flight.
func (c *Call) Ended(int) { c.Key.HedgeEnded() }

// ClearReferences drops the context and the schedule of a call that has ended. Otherwise they could not be garbage collected
// until the Call is used again.
func (c *Call) ClearReferences() { c.ctx, c.schedule = nil, nil }

// End records the outcome o of the call, which ends now, so that the key learns from it. shadowWon is true if a hedge that
// shadow mode did not send would have won.
func (c *Call) End(o Outcome) (shadowWon bool) {
	took := time.Since(c.start) // takes half as long as time.Now
	var gone error
	if !o.Answered {
		gone = c.ctx.Err()
	}
	hedgeWon := o.hedgeWon()
	saved, shadowWon := c.Key.recordResult(c.start.Add(took), &Result{
		Latency:           took - o.Setup,
		Waited:            took - c.startedBefore,
		Answered:          o.Answered,
		LatencyUnknown:    o.LatencyUnknown,
		Abandoned:         gone != nil,
		Canceled:          gone != nil && errors.Is(gone, context.Canceled),
		Hedges:            c.SentHedges(),
		ReachedFirstDelay: c.progress >= reachedFirstDelay,
		HasSlowMarker:     c.schedule != nil && c.schedule.slowMarkerIndex >= 0,
		Slow:              c.progress == reachedSlowMarker,
		HedgeWon:          hedgeWon,
		WonAfterFailure:   hedgeWon && c.IsAfterFailure(o.Winner),
		PredictedHedgeEnd: c.predictedHedgeEnd,
	})
	if c.notifier() != nil {
		c.reportEnd(&o, took, saved)
	}
	return shadowWon
}

// reportEnd reports the outcome of the call to observers. took is the latency of the call, and saved is the estimated time that
// the winning hedge saved.
func (c *Call) reportEnd(o *Outcome, took, saved time.Duration) {
	r := observe.RequestResult{
		Attempts: 1 + c.SentHedges(), Winner: -1, Latency: took, Delay: o.Delay, AnswersNotTaken: o.AnswersNotTaken, Saved: saved, HeldBack: o.HeldBack,
		IsRetry: c.IsRetry,
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

// AttemptObserver returns the observer for the race of this call, which reports the attempts to the observers of the engine.
// It is c itself, or nil if the engine has no observers.
func (c *Call) AttemptObserver() race.AttemptObserver {
	if c.notifier() == nil {
		return nil
	}
	return c
}

// AttemptStarted implements [race.AttemptObserver]. It reports to observers that attempt n starts.
func (c *Call) AttemptStarted(ctx context.Context, n int) {
	c.reportStart(ctx, observe.AttemptInfo{Number: n, IsRetry: c.IsRetry && n == 0})
}

// AttemptEnded implements [race.AttemptObserver]. It reports to observers that attempt n has ended with the given outcome.
func (c *Call) AttemptEnded(ctx context.Context, n int, outcome race.Outcome) {
	c.reportOutcome(ctx, observe.AttemptInfo{Number: n, IsRetry: c.IsRetry && n == 0}, outcome)
}

// reportStart reports the start of the attempt a to observers.
func (c *Call) reportStart(ctx context.Context, a observe.AttemptInfo) {
	if c.notifier() == nil {
		return
	}
	if a.Number > 0 {
		c.attemptStarts[a.Number] = time.Since(c.start)
	}
	c.notifier().Notify(func(o observe.Observer) { o.AttemptStart(ctx, c.Key.Info, a) })
}

// reportOutcome reports the end of the attempt a to observers.
func (c *Call) reportOutcome(ctx context.Context, a observe.AttemptInfo, outcome race.Outcome) {
	if c.notifier() == nil {
		return
	}
	r := observe.AttemptResult{AttemptInfo: a, Outcome: observe.Outcome(outcome.String()), Latency: c.AttemptLatency(a.Number)}
	if c.flags.Load()&(1<<a.Number) != 0 {
		r.Outcome = observe.Withdrawn
	}
	c.notifier().Notify(func(o observe.Observer) { o.AttemptDone(ctx, c.Key.Info, r) })
}

// DenialAtStart returns the reason for which the mode of the engine denied hedges when the call began, for BeginResumption.
func (c *Call) DenialAtStart() observe.Reason { return c.denialAtStart }

// BeginResumption prepares c for a hedge that resumes a stalled response body: it requests the missing bytes of a call that has
// already ended. Therefore c deposits no tokens, and its latency is not recorded.
// denialAtStart is the DenialAtStart of that call.
//
// The hedge needs Admit, as other hedges do. If it is admitted, the caller must call EndResumption.
func (c *Call) BeginResumption(ctx context.Context, k *Key, denialAtStart observe.Reason) {
	c.initialize(ctx, k)
	c.denialAtStart = denialAtStart
}

// EndResumption ends a hedge that was started with BeginResumption. won is true if the caller of the stalled call gets the
// bytes of this hedge.
func (c *Call) EndResumption(won bool) {
	c.Key.HedgeEnded()
	if won {
		c.Key.recordResumptionWin()
	}
}

// ResumptionStarted reports to observers that attempt n, which requests the missing bytes, starts.
func (c *Call) ResumptionStarted(ctx context.Context, n int) {
	c.reportStart(ctx, observe.AttemptInfo{Number: n, IsResumption: true})
}

// ResumptionEnded reports to observers that attempt n has ended with the given outcome.
func (c *Call) ResumptionEnded(ctx context.Context, n int, outcome race.Outcome) {
	c.reportOutcome(ctx, observe.AttemptInfo{Number: n, IsResumption: true}, outcome)
}
