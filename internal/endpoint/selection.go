package endpoint

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A Selection selects the endpoint of each attempt of one HTTP call, and records results for the health of the
// endpoints. One goroutine, which runs the call, selects endpoints and records the end of the call. Attempts record
// their results concurrently.
type Selection struct {
	set      *Set
	detector *Detector
	eligible Mask // endpoints to which the request may be sent
	// endpoints of the attempts so far
	used   Mask
	ctx    context.Context // the caller's context
	began  time.Time
	median time.Duration // median latency of calls to the primary's endpoint; 0: not known

	attempts   [1 + race.MaxHedges]Attempt
	hedges     int      // number of admitted hedges, including a probe
	firstHedge *Attempt // the first admitted hedge that is not a probe; nil: none yet
	probe

	primaryFailed atomic.Bool
}

// A probe is a hedge that starts together with the primary. It is sent to an ejected endpoint, or to an endpoint whose
// latency must be measured.
type probe struct {
	target    int           // index of the endpoint; -1: the call has no probe
	lateAfter time.Duration // a probe that is unanswered for this long counts as a bad outcome; 0: never
	sent      *Attempt      // nil: the probe was not sent
	failed    atomic.Bool
}

// An Attempt holds the endpoint of one attempt of a call. The endpoint does not change after the attempt starts. A nil
// Attempt belongs to a call without endpoints.
type Attempt struct {
	selection *Selection
	number    int          // 0 is the primary
	endpoint  int          // index in the Set
	started   atomic.Int64 // start of the attempt, in nanoseconds after the start of the call
}

// Select selects the endpoint of a call's primary, and returns the Selection of the call. The context is the caller's.
// The Mask eligible holds the endpoints to which the request may be sent; it must not be empty.
func (s *Set) Select(ctx context.Context, d *Detector, eligible Mask) *Selection {
	sel := &Selection{set: s, detector: d, eligible: eligible, ctx: ctx, began: time.Now(), probe: probe{target: -1}}
	primary := sel.Primary()
	primary.selection, primary.endpoint = sel, d.SelectPrimary(eligible)
	sel.used = Mask(0).With(primary.endpoint)
	return sel
}

// Primary returns the Attempt of the primary.
func (s *Selection) Primary() *Attempt { return &s.attempts[0] }

// SelectProbe decides whether the call sends a probe, and selects its endpoint. The median is the median latency of
// calls to the primary's endpoint; 0: not known. Ejected endpoints are probed more often than endpoints that are known
// to be slower than median.
func (s *Selection) SelectProbe(median time.Duration) {
	s.median = median
	s.probe.target, s.probe.lateAfter = s.detector.selectProbe(s.eligible, s.attempts[0].endpoint, median)
}

// HasProbe reports whether the call is to send a probe. It is false for a nil Selection.
func (s *Selection) HasProbe() bool { return s != nil && s.probe.target >= 0 }

// SelectHedge selects the endpoint of the next hedge, or of the probe if isProbe is true. If the hedge is admitted, the
// caller must call AddHedge. Otherwise the next SelectHedge overwrites the result.
//
// The first hedge goes to the primary's endpoint if that endpoint is healthy and the next endpoint is slower.
func (s *Selection) SelectHedge(isProbe bool) *Attempt {
	primary := s.attempts[0].endpoint
	hedge := &s.attempts[s.hedges+1]
	hedge.selection, hedge.number = s, s.hedges+1
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

// hasHedgedAtPrimary reports whether the first hedge of the call was sent to the primary's endpoint.
func (s *Selection) hasHedgedAtPrimary() bool {
	return s.firstHedge != nil && s.firstHedge.endpoint == s.attempts[0].endpoint
}

// shouldHedgeAtPrimary reports whether the next hedge may go to the primary's endpoint. The first hedge may if the
// endpoint is healthy. A later hedge may if the first one did too, and the endpoint has answered another call promptly
// since the call began.
func (s *Selection) shouldHedgeAtPrimary() bool {
	if s.hasHedgedAtPrimary() {
		return s.detector.hasPromptAnswerSince(s.attempts[0].endpoint, s.began)
	}
	return s.firstHedge == nil && s.detector.isHealthy(s.attempts[0].endpoint)
}

// AddHedge records that the hedge was admitted. The hedge must be the result of the latest SelectHedge.
func (s *Selection) AddHedge(hedge *Attempt, isProbe bool) {
	s.hedges, s.used = hedge.number, s.used.With(hedge.endpoint)
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

// TypicalCost returns the price in tokens of the first hedge of a call while no endpoint is ejected.
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

// Selection returns the Selection that a belongs to. It is nil for a nil Attempt.
func (a *Attempt) Selection() *Selection {
	if a == nil {
		return nil
	}
	return a.selection
}

// IsOtherEndpoint reports whether the endpoint of a differs from the primary's endpoint. It is false for a nil Attempt.
func (a *Attempt) IsOtherEndpoint() bool {
	return a != nil && a.endpoint != a.selection.attempts[0].endpoint
}

// IsFirstEndpoint reports whether a uses the first endpoint, whose URL the caller requested. It is true for a nil
// Attempt.
func (a *Attempt) IsFirstEndpoint() bool { return a == nil || a.endpoint == 0 }

// Host returns the host of the attempt's endpoint, in the form of [httpattempt.HostName]. A must not be nil.
func (a *Attempt) Host() string { return a.selection.set.endpoints[a.endpoint].host }

// Cost returns the price in tokens of a hedge at the attempt's endpoint. A must not be nil.
func (a *Attempt) Cost() int { return a.selection.set.endpoints[a.endpoint].cost }

// RecordResult records the result of the attempt for the health of its endpoint. If excused is true, a failure does not
// count: the attempt was cancelled, or its server has pushed back.
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

// A CallEnd describes the end of a call.
type CallEnd struct {
	Winner         int           // number of the attempt that answered; -1: no attempt did
	HedgeDenied    bool          // a hedge was due and was not admitted
	DeadlinePassed bool          // the deadline of the caller's context has passed
	Latency        time.Duration // time from the start to the end of the call
	P99            time.Duration // 99th percentile of the latency of calls to the primary's endpoint; 0: not known
}

// isOverdue reports whether the call missed the caller's deadline and took unusually long. The limit is the 99th
// percentile, or silenceFactor times the median if that is shorter: while most calls time out, the 99th percentile
// equals the deadline.
func (s *Selection) isOverdue(e CallEnd) bool {
	return e.DeadlinePassed && (e.Latency >= e.P99 || s.median > 0 && e.Latency >= silenceFactor*s.median)
}

// RecordCallEnd records the outcomes of the primary and of the probe for the health of their endpoints. These outcomes
// depend on the end of the call. A nil Selection records nothing.
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
	if s.hasHedgedAtPrimary() && isLate {
		s.detector.markSuspected(primary)
	}
	s.recordProbeEnd(e)
}

// recordProbeEnd records the outcome of the probe at the end of the call, unless a failure of the probe was recorded
// before.
func (s *Selection) recordProbeEnd(e CallEnd) {
	switch {
	case s.probe.sent == nil || s.probe.failed.Load():
	case e.Winner == s.probe.sent.number:
		s.detector.recordSuccess(s.probe.target)
	case e.Winner == 0 && s.probe.lateAfter > 0 && e.Latency >= s.probe.lateAfter:
		s.detector.recordOvertaken(s.probe.target)
	}
}
