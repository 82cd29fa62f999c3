package endpoint

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A Selection selects the endpoint of each attempt of one HTTP call, and attributes results to endpoints. The goroutine of the call selects
// endpoints and records the end of the call. Attempts may record their results at the same time.
type Selection struct {
	set      *Set
	detector *Detector
	eligible Mask // endpoints to which the request may be sent
	used     Mask
	ctx      context.Context // the caller's
	began    time.Time
	median   time.Duration // usual latency of calls to the primary's endpoint; 0: not known

	attempts   [1 + race.MaxHedges]Attempt
	hedges     int      // number of hedges that were added
	firstHedge *Attempt // the first hedge that is no probe; nil: none was added
	probe

	primaryFailed atomic.Bool
}

// A probe is a hedge that starts together with the primary, at an ejected endpoint or at an endpoint whose latency is not known.
type probe struct {
	target    int           // the endpoint; -1: the call has no probe
	lateAfter time.Duration // a probe without an answer for this long is a bad outcome; 0: it never is
	sent      *Attempt      // nil: the probe was not sent
	failed    atomic.Bool
}

// An Attempt holds the endpoint of one attempt of a call. It is selected before the attempt starts, and does not change. A nil Attempt is that
// of a call without endpoints.
type Attempt struct {
	selection *Selection
	number    int          // of the attempt in its call; 0 is the primary
	endpoint  int          // index in the Set
	started   atomic.Int64 // in nanoseconds since the call began
}

// Select returns the Selection of a call, and selects the endpoint of the primary. The request may be sent to the eligible endpoints, of which
// there must be at least one.
func (s *Set) Select(ctx context.Context, d *Detector, eligible Mask) *Selection {
	sel := &Selection{set: s, detector: d, eligible: eligible, ctx: ctx, began: time.Now(), probe: probe{target: -1}}
	primary := sel.Primary()
	primary.selection, primary.endpoint = sel, d.SelectPrimary(eligible)
	sel.used = Mask(0).With(primary.endpoint)
	return sel
}

// Primary returns the endpoint of the primary.
func (s *Selection) Primary() *Attempt { return &s.attempts[0] }

// SelectProbe decides whether the call has a probe: a copy of the call that tests whether an ejected endpoint has recovered, or measures the
// latency of an endpoint. The median is the median latency of calls to the endpoint of the primary. An endpoint that is known to be slower
// is only measured again after many calls.
func (s *Selection) SelectProbe(median time.Duration) {
	s.median = median
	s.probe.target, s.probe.lateAfter = s.detector.selectProbe(s.eligible, s.attempts[0].endpoint, median)
}

// HasProbe reports whether the call has a probe.
func (s *Selection) HasProbe() bool { return s != nil && s.probe.target >= 0 }

// SelectHedge selects the endpoint of the next hedge, or of the probe. If the hedge is admitted, the caller must call AddHedge. Otherwise the
// next SelectHedge overwrites the result.
//
// The first hedge uses the endpoint of the primary if that is healthy and the next endpoint is slower.
func (s *Selection) SelectHedge(isProbe bool) *Attempt {
	primary := s.attempts[0].endpoint
	hedge := &s.attempts[s.hedges+1]
	hedge.selection, hedge.number = s, s.hedges+1
	switch {
	case isProbe:
		hedge.endpoint = s.probe.target
	case s.detector.isNextSlower(s.eligible, primary, s.median) && s.shouldStay():
		hedge.endpoint = primary
	default:
		if s.hasStayed() {
			s.detector.markSuspected(primary)
		}
		hedge.endpoint = s.detector.selectHedge(s.eligible, s.used, primary)
	}
	return hedge
}

// hasStayed reports whether the first hedge went to the endpoint of the primary.
func (s *Selection) hasStayed() bool {
	return s.firstHedge != nil && s.firstHedge.endpoint == s.attempts[0].endpoint
}

// shouldStay reports whether a hedge at the endpoint of the primary may help. For the first hedge, the endpoint must be healthy. For a later
// hedge, the endpoint must have answered another call promptly since this call began.
func (s *Selection) shouldStay() bool {
	if s.hasStayed() {
		return s.detector.hasPromptAnswerSince(s.attempts[0].endpoint, s.began)
	}
	return s.firstHedge == nil && s.detector.isHealthy(s.attempts[0].endpoint)
}

// AddHedge records that a hedge was admitted. The hedge must be the last result of SelectHedge.
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

// TypicalCost returns the cost of the first hedge if no endpoint is ejected.
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

// Selection returns the Selection of the call; nil for a nil Attempt.
func (a *Attempt) Selection() *Selection {
	if a == nil {
		return nil
	}
	return a.selection
}

// IsOtherEndpoint reports whether a uses another endpoint than the primary of its call.
func (a *Attempt) IsOtherEndpoint() bool {
	return a != nil && a.endpoint != a.selection.attempts[0].endpoint
}

// IsFirstEndpoint reports whether a uses the first endpoint, which is the one that the call was made for.
func (a *Attempt) IsFirstEndpoint() bool { return a == nil || a.endpoint == 0 }

// Host returns the host of a's endpoint, in the form of [httpattempt.HostName]. It must not be called on a nil Attempt.
func (a *Attempt) Host() string { return a.selection.set.endpoints[a.endpoint].host }

// Cost returns the tokens that a hedge at a's endpoint costs. It must not be called on a nil Attempt.
func (a *Attempt) Cost() int { return a.selection.set.endpoints[a.endpoint].cost }

// RecordResult records the result of the attempt. Excused is true for a failure that does not count against the endpoint: the attempt was
// cancelled, or its server pushed back.
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

// A CallEnd describes how a call ended.
type CallEnd struct {
	Winner         int           // number of the attempt that answered; -1: none
	HedgeDenied    bool          // a hedge was due and was not sent
	DeadlinePassed bool          // the caller's
	Latency        time.Duration // since the call began
	P99            time.Duration // 99th percentile of calls to the primary's endpoint; 0: not known
}

// isOverdue reports whether the caller's deadline has passed in a call that took unusually long: as long as the 99th percentile, or several
// times the median. The median serves where so many calls get no answer that the percentile is the deadline.
func (s *Selection) isOverdue(e CallEnd) bool {
	return e.DeadlinePassed && (e.Latency >= e.P99 || s.median > 0 && e.Latency >= silenceFactor*s.median)
}

// RecordCallEnd records the outcomes for the endpoints of the primary and of the probe, which depend on the end of the call. A nil Selection
// records nothing.
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
	if s.hasStayed() && isLate {
		s.detector.markSuspected(primary)
	}
	s.recordProbeEnd(e)
}

// recordProbeEnd records the outcome of the probe's endpoint. A failure of the probe is recorded already.
func (s *Selection) recordProbeEnd(e CallEnd) {
	switch {
	case s.probe.sent == nil || s.probe.failed.Load():
	case e.Winner == s.probe.sent.number:
		s.detector.recordSuccess(s.probe.target)
	case e.Winner == 0 && s.probe.lateAfter > 0 && e.Latency >= s.probe.lateAfter:
		s.detector.recordOvertaken(s.probe.target)
	}
}
