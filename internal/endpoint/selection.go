package endpoint

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A Selection holds the endpoint of each attempt of one HTTP call, and records results for the health of the endpoints.
//
// Only the goroutine that runs the call may select endpoints and record the end of the call. Attempts may record their
// results concurrently.
//
// A Selection is also the hedge schedule of the call. It implements [race.Schedule].
type Selection struct {
	set      *Set
	detector *Detector
	eligible Mask // endpoints to which the request may be sent
	// endpoints of the attempts that have been admitted so far
	used   Mask
	hedges uint8           // number of admitted hedges; a probe counts as a hedge
	ctx    context.Context // the caller's context
	began  time.Time       // start of the call
	median time.Duration   // median latency of calls to the primary's endpoint; 0 if not known

	delays     *race.FixedSchedule         // hedge delays of the call
	attempts   [1 + race.MaxHedges]Attempt // by number of the attempt; 0 is the primary
	firstHedge *Attempt                    // the first admitted hedge other than the probe; nil if there is none yet
	probe

	primaryFailed atomic.Bool   // the failure of the primary was recorded
	localFailures atomic.Uint32 // bit n is set if attempt n failed in a way in which another endpoint may not, see MarkLocalFailure
}

var _ race.Schedule = (*Selection)(nil)

// A probe describes the probe of one call: a hedge that starts together with the primary. A probe tests whether an
// ejected endpoint works again, or measures the latency of an endpoint.
type probe struct {
	target    int           // index of the endpoint; -1 if the call has no probe
	lateAfter time.Duration // a probe that is unanswered for this time counts as a bad outcome; 0 means no limit
	sent      *Attempt      // the Attempt of the probe; nil if the probe was not sent
	failed    atomic.Bool   // the failure of the probe was recorded
}

// An Attempt holds the endpoint of one attempt of an HTTP call. The endpoint does not change after the attempt starts.
// A nil Attempt stands for an attempt of a client without endpoints.
type Attempt struct {
	selection *Selection   // the Selection of the call
	number    int          // 0 is the primary
	endpoint  int          // index in the Set
	failover  bool         // the failure of another attempt has started the attempt
	started   atomic.Int64 // start of the attempt, in nanoseconds after the start of the call
}

// Select selects the endpoint of a call's primary, and returns the Selection of the call. The argument ctx is the
// caller's context. The Mask eligible contains the endpoints to which the request may be sent; the caller must not pass
// an empty Mask.
func (s *Set) Select(ctx context.Context, d *Detector, eligible Mask) *Selection {
	sel := &Selection{set: s, detector: d, eligible: eligible, ctx: ctx, began: time.Now(), probe: probe{target: -1}}
	primary := sel.Primary()
	primary.selection, primary.endpoint = sel, d.SelectPrimary(eligible)
	sel.used = Mask(0).With(primary.endpoint)
	return sel
}

// Primary returns the Attempt that holds the endpoint of the call's primary.
func (s *Selection) Primary() *Attempt { return &s.attempts[0] }

// SelectProbe decides whether the call sends a probe, and to which endpoint. HasProbe returns the decision. The
// argument median is the median latency of calls to the primary's endpoint, or 0 if it is not known.
//
// Ejected endpoints get probes more often than endpoints that are known to be slower than median.
func (s *Selection) SelectProbe(median time.Duration) {
	s.median = median
	s.probe.target, s.probe.lateAfter = s.detector.selectProbe(s.eligible, s.attempts[0].endpoint, median)
}

// HasProbe reports whether SelectProbe decided that the call sends a probe. It returns false for a nil Selection.
func (s *Selection) HasProbe() bool { return s != nil && s.probe.target >= 0 }

// SelectHedge returns an Attempt with the endpoint of the next hedge, or of the probe if isProbe is true. If the hedge
// is admitted, the caller must call AddHedge. Otherwise the next SelectHedge reuses the Attempt.
//
// The first hedge goes to the primary's endpoint if that endpoint is healthy and the next endpoint is slower. Other
// hedges go to endpoints that the call has not used yet.
func (s *Selection) SelectHedge(isProbe bool) *Attempt {
	primary := s.attempts[0].endpoint
	hedge := s.nextAttempt()
	switch {
	case isProbe:
		hedge.endpoint = s.probe.target
	case s.detector.isNextSlower(s.eligible, primary, s.median) && s.shouldHedgeAtPrimary():
		hedge.endpoint = primary
	default:
		if s.hasHedgedAtPrimary() {
			s.detector.markSuspected(primary)
		}
		hedge.endpoint = s.detector.selectHedge(s.eligible, s.used, primary)
	}
	return hedge
}

// SelectFailover does the same as SelectHedge for a hedge that starts because an attempt has failed. The endpoint is one that the
// call has not used. SelectFailover returns nil if there is none that is not ejected. As for other hedges, an ejected endpoint may be
// selected as a trial.
func (s *Selection) SelectFailover() *Attempt {
	hedge := s.nextAttempt()
	if hedge.endpoint = s.detector.selectHedge(s.eligible, s.used, s.attempts[0].endpoint); s.used.Has(hedge.endpoint) {
		return nil
	}
	hedge.failover = true
	return hedge
}

// nextAttempt returns the Attempt of the next hedge, whose endpoint is not selected yet.
func (s *Selection) nextAttempt() *Attempt {
	hedge := &s.attempts[s.hedges+1]
	hedge.selection, hedge.number, hedge.failover = s, int(s.hedges)+1, false
	return hedge
}

// hasHedgedAtPrimary reports whether the first hedge of the call was sent to the primary's endpoint.
func (s *Selection) hasHedgedAtPrimary() bool {
	return s.firstHedge != nil && s.firstHedge.endpoint == s.attempts[0].endpoint
}

// shouldHedgeAtPrimary reports whether the health of the primary's endpoint permits the next hedge to go there as well.
// For the first hedge, the endpoint must be healthy.
//
// For a later hedge, the first hedge must have gone there too, and the endpoint must have promptly answered another
// call since this call began.
func (s *Selection) shouldHedgeAtPrimary() bool {
	if s.hasHedgedAtPrimary() {
		return s.detector.hasPromptAnswerSince(s.attempts[0].endpoint, s.began)
	}
	return s.firstHedge == nil && s.detector.isHealthy(s.attempts[0].endpoint)
}

// AddHedge records that the hedge was admitted. The caller must pass the result of the latest SelectHedge, and the same
// isProbe.
func (s *Selection) AddHedge(hedge *Attempt, isProbe bool) {
	s.hedges, s.used = uint8(hedge.number), s.used.With(hedge.endpoint)
	if isProbe {
		s.probe.sent = hedge
		s.detector.recordProbe(hedge.endpoint, s.attempts[0].endpoint, s.median)
	} else {
		if s.firstHedge == nil {
			s.firstHedge = hedge
		}
		s.detector.recordTrial(hedge.endpoint)
	}
	s.detector.recordHedge(hedge.endpoint)
}

// SetDelays sets the hedge delays of the call. It must be called before the race.
func (s *Selection) SetDelays(delays *race.FixedSchedule) { s.delays = delays }

// Next implements [race.Schedule]. A probe is due together with the primary, before the hedges with delays.
func (s *Selection) Next(index int) (wait time.Duration, ok bool) {
	if s.HasProbe() {
		if index == 0 {
			return 0, true
		}
		index--
	}
	return s.delays.Next(index)
}

// Failed implements [race.Schedule]. A failure of the primary stops hedging. If another endpoint may not fail in the same way, a
// failure of the primary or of a hedge, but not of a probe, starts another hedge at once.
func (s *Selection) Failed(n, next int, err error) race.Reschedule {
	change := s.delays.Failed(n, next, err)
	if s.localFailures.Load()>>n&1 != 0 && err != race.ErrAnswer && err != race.ErrRefused && s.probe.sent != &s.attempts[n] {
		change.Failover, change.Elapsed = s.failoverTimeout, time.Since(s.began)
	}
	return change
}

// failoverTimeout returns how long the youngest hedge, which a failure has started, may run after the primary has failed.
func (s *Selection) failoverTimeout() time.Duration {
	return s.detector.failoverTimeout(s.attempts[s.hedges].endpoint, s.delays.UsualLatency)
}

// HedgeTimeout implements [race.Schedule].
func (s *Selection) HedgeTimeout(took time.Duration) time.Duration {
	return s.delays.HedgeTimeout(took)
}

// TypicalCost returns the usual cost of the call's first hedge, in tokens of the hedge budget: its cost while no
// endpoint is ejected. The hedge budget uses it to predict whether hedges can be paid for.
func (s *Selection) TypicalCost() int {
	primary := s.attempts[0].endpoint
	if s.detector.isNextSlower(s.eligible, primary, s.median) {
		return s.set.endpoints[primary].cost
	}
	for i := range s.set.endpoints {
		if s.eligible.Has(i) && i != primary {
			return s.set.endpoints[i].cost
		}
	}
	return 1
}

// Selection returns the Selection of the call to which attempt a belongs. It returns nil for a nil Attempt.
func (a *Attempt) Selection() *Selection {
	if a == nil {
		return nil
	}
	return a.selection
}

// IsOtherEndpoint reports whether the endpoint of a differs from the endpoint of the call's primary. It returns false
// for a nil Attempt.
func (a *Attempt) IsOtherEndpoint() bool {
	return a != nil && a.endpoint != a.selection.attempts[0].endpoint
}

// IsFirstEndpoint reports whether a uses the first endpoint, for which the caller made the request. It returns true for
// a nil Attempt.
func (a *Attempt) IsFirstEndpoint() bool { return a == nil || a.endpoint == 0 }

// Host returns the host of the attempt's endpoint, in the form of [httpattempt.HostName]. It must not be called on a
// nil Attempt.
func (a *Attempt) Host() string { return a.selection.set.endpoints[a.endpoint].host }

// Cost returns the cost of a hedge at the attempt's endpoint, in tokens of the hedge budget. It must not be called on a
// nil Attempt.
func (a *Attempt) Cost() int { return a.selection.set.endpoints[a.endpoint].cost }

// ExpectedLatency returns the usual latency of the attempt's endpoint, or 0 if the endpoint has not answered yet. It must not be
// called on a nil Attempt.
func (a *Attempt) ExpectedLatency() time.Duration {
	return a.selection.detector.knownLatency(a.endpoint)
}

// MarkLocalFailure records that the attempt has failed in a way in which an attempt at another endpoint may not fail, such as a
// connection error. It must be called before the race gets the failure. It must not be called on a nil Attempt.
func (a *Attempt) MarkLocalFailure() { a.selection.localFailures.Or(1 << a.number) }

// RecordResult records the result of the attempt for the health of its endpoint. If answered is true, the attempt has
// succeeded. Otherwise it has failed. A nil Attempt records nothing.
//
// If excused is true, a failure does not count against the endpoint, because the attempt was cancelled or its server
// has pushed back.
func (a *Attempt) RecordResult(answered, excused bool) {
	if a == nil {
		return
	}
	s := a.selection
	took := time.Since(s.began) - time.Duration(a.started.Load())
	switch {
	case answered:
		s.detector.recordAnswer(s.eligible, a.endpoint, took)
		if a.number > 0 && a != s.probe.sent {
			s.detector.recordSuccess(a.endpoint)
		}
	case excused && a.failover:
		s.detector.recordUnansweredFailover(a.endpoint, took)
	case excused:
		s.detector.recordNoAnswer(a.endpoint, took)
	default:
		s.detector.recordFailure(a.endpoint)
		switch a {
		case s.Primary():
			s.primaryFailed.Store(true)
		case s.probe.sent:
			s.probe.failed.Store(true)
		}
	}
}

// A CallEnd describes how an HTTP call ended, as input of [Selection.RecordCallEnd].
type CallEnd struct {
	Winner         int           // number of the attempt whose response the caller gets; -1 if the call failed
	HedgeDenied    bool          // at least one hedge was due and was not admitted
	DeadlinePassed bool          // the deadline of the caller's context has passed
	Latency        time.Duration // time from the start to the end of the call
	P99            time.Duration // 99th percentile of the latency of calls to the primary's endpoint; 0 if not known
}

// isOverdue reports whether the call, which ended as e describes, missed the caller's deadline after an unusually long
// time. The time is unusual if it reaches the 99th percentile of latency, or unresponsiveFactor times the median
// latency. The second limit is needed while most calls time out: then the 99th percentile equals the deadline.
func (s *Selection) isOverdue(e CallEnd) bool {
	return e.DeadlinePassed && (e.Latency >= e.P99 || s.median > 0 && e.Latency >= unresponsiveFactor*s.median)
}

// RecordCallEnd records the outcomes of the primary and of the probe for the health of their endpoints. It must be
// called at the end of the call, because these outcomes depend on which attempt won. A nil Selection records nothing.
func (s *Selection) RecordCallEnd(e CallEnd) {
	if s == nil {
		return
	}
	primary := s.attempts[0].endpoint
	var hedged time.Duration // since the first hedge started
	if s.firstHedge != nil {
		hedged = e.Latency - time.Duration(s.firstHedge.started.Load())
	}
	isLate, isFutile := s.detector.isLate(s.eligible, primary, e.Latency), s.detector.isLate(s.eligible, primary, hedged)
	switch {
	case s.primaryFailed.Load(): // the failure is recorded
	case e.Winner < 0:
		if s.isOverdue(e) {
			s.detector.recordOvertaken(primary)
		}
	case e.Winner == 0:
		if s.firstHedge != nil && isFutile {
			s.detector.recordHedgeResult(primary, false)
		}
		if isLate && !s.detector.areHedgesFutile(primary) {
			s.detector.recordOvertaken(primary)
		} else if !e.HedgeDenied {
			s.detector.recordSuccess(primary)
		}
	case &s.attempts[e.Winner] != s.probe.sent:
		s.detector.recordHedgeResult(primary, true)
		if s.attempts[e.Winner].endpoint > primary {
			s.detector.recordOvertaken(primary)
		}
	}
	if s.hasHedgedAtPrimary() {
		won := e.Winner > 0 && s.attempts[e.Winner].endpoint == primary
		s.detector.recordHedgeAtPrimary(s.eligible, primary, won, hedged)
		if isLate {
			s.detector.markSuspected(primary)
		}
	}
	s.recordProbeOutcome(e)
}

// recordProbeOutcome records the outcome of the probe at the end of the call. The outcome is good if the probe won. It is
// bad if the primary won and the probe was unanswered for the time lateAfter.
//
// In other cases recordProbeOutcome records nothing, and also if the call sent no probe or the probe's failure was recorded
// before.
func (s *Selection) recordProbeOutcome(e CallEnd) {
	switch {
	case s.probe.sent == nil || s.probe.failed.Load():
	case e.Winner == s.probe.sent.number:
		s.detector.recordSuccess(s.probe.target)
	case e.Winner == 0 && s.probe.lateAfter > 0 && e.Latency >= s.probe.lateAfter:
		s.detector.recordOvertaken(s.probe.target)
	}
}
