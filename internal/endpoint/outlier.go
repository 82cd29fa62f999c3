package endpoint

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// Thresholds for ejecting and restoring endpoints. An outcome is the verdict on one attempt, good or bad, see
// [Detector].
const (
	outcomeWeight = 1.0 / 256 // weight of one outcome in the moving average of the share of bad outcomes
	ejectShare    = 0.08      // share of bad outcomes above which an endpoint is ejected; above it, the default hedge budget of 10 % would pay for few other hedges
	restoreShare  = 0.06      // largest share of bad outcomes that is stored after an endpoint is restored, so that a few failures do not eject the endpoint again
	ejectRun      = 6         // number of consecutive bad outcomes that eject an endpoint
	restoreRun    = 32        // number of consecutive good outcomes that restore an endpoint, if the endpoint gets primaries after that
	minLatencies  = 8         // number of responses after which the average latency is reliable; the first latencies include the time to connect
)

// Intervals of probes, in calls, and of trials, in hedges. A probe is a hedge that starts together with the primary. A
// trial is a regular hedge to an ejected endpoint.
const (
	probeInterval         = 100  // calls between two probes of an ejected endpoint, so 1 % of the calls send a probe
	promisingInterval     = 20   // calls between two probes of an endpoint after a good outcome, or while its latency is not known and may be shorter than the median
	measureInterval       = 1000 // calls between two probes that measure again the latency of an endpoint that is not ejected
	deniedProbeInterval   = 7    // calls until the next probe after a probe was denied; not a multiple of 10, because a hedge budget may gain one token every 10 calls
	hedgesPerEjectedTrial = 10   // while an endpoint is ejected, one of this many hedges is a trial
	maxVainHedges         = 4    // consecutive hedges in vain at the endpoint of their primary, after which first hedges use another endpoint for probeInterval calls
)

// Factors for the comparison of two latencies.
const (
	slowerFactor       = 1.25 // a first hedge prefers the primary's endpoint if the next endpoint's latency is at least the median latency times this factor
	unresponsiveFactor = 4    // an endpoint counts as unresponsive if its calls are unanswered for the next endpoint's latency times this factor
	lateAnswerFactor   = 2    // a response is late after another endpoint's expected latency times this factor; random variation rarely doubles a latency
)

// A Detector detects outliers among the endpoints of one latency key. It counts the outcomes of attempts at each
// endpoint, and ejects and restores endpoints. Its endpoints are HTTP endpoints or gRPC connections. The zero Detector
// is ready to use and reports no events. A Detector is safe for concurrent use.
//
// An outcome is bad if the attempt fails, or if a later hedge at another endpoint is faster. An outcome is good if the
// attempt succeeds, or if a hedge at the same endpoint is faster. So slow calls eject an endpoint only if hedges at
// that endpoint do not help.
//
// One in a hundred calls sends a probe to an ejected endpoint: a hedge that starts together with the primary. Enough
// successful probes restore the endpoint.
type Detector struct {
	key   *policy.Key // the latency key, through which events are reported; nil: events are not reported
	names []string    // names of the endpoints by index; nil if key is nil

	mu               sync.Mutex // guards the fields below
	endpoints        [MaxEndpoints]endpointState
	calls            int  // number of calls that considered sending a probe
	hedgesSinceTrial int  // number of hedges, since the last trial, that were not sent to an ejected endpoint
	evicted          bool // the latency key was evicted; events are no longer reported
}

// An endpointState is the state of one endpoint in a [Detector]. The Detector's mutex guards it.
type endpointState struct {
	ejected       bool // calls use other endpoints
	ejectedAsSlow bool // a slow attempt ejected the endpoint, and no attempt at the endpoint has failed since
	lastProbe     int  // value of Detector.calls at the last probe of the endpoint, or at its ejection if that is later
	outcomeStats
	latencyEstimate
	unansweredPrimaries
	ejectionLog
	counters Counters
}

// An outcomeStats value summarizes the outcomes of attempts at one endpoint: their share of bad outcomes, and how many
// consecutive outcomes were bad or good. An outcome is bad if the attempt failed or was slower than an attempt at
// another endpoint.
type outcomeStats struct {
	badShare      float64 // moving average of the share of bad outcomes, from 0 to 1
	badRun        int     // number of consecutive bad outcomes up to now
	goodRun       int     // number of consecutive good outcomes since the endpoint was ejected
	suspected     bool    // a hedge at this endpoint did not help a call whose primary was there too, and no good outcome has followed
	hedgesFutile  bool    // the last hedge of a call whose primary was at this endpoint lost, although it had time to answer
	vainHedges    int     // number of consecutive first hedges to this endpoint, where their primary was too, that lost although they had time to answer
	lastVainHedge int     // value of Detector.calls at the last hedge in vainHedges
}

// A latencyEstimate estimates how long one endpoint takes to answer an attempt.
type latencyEstimate struct {
	expectedLatency  time.Duration // moving average of the latencies; before the first answer, the longest time that an attempt has waited for a response
	samples          int           // number of responses, but at most minLatencies; 0 while they are measured again
	answered         bool          // the endpoint has answered an attempt, so expectedLatency is known
	lastPromptAnswer time.Time     // time of the last response that took less than the expected latency of the next endpoint
}

// An unansweredPrimaries value counts primaries that one endpoint has not answered yet, to find an endpoint that hangs.
type unansweredPrimaries struct {
	unansweredCalls int       // number of primaries since the last response
	unansweredSince time.Time // start of the earliest of the counted primaries
}

// An ejectionLog records whether the last log record about an endpoint said that the endpoint is ejected. It limits the
// rate of these log records.
type ejectionLog struct {
	notice policy.ReportThrottle // decides when the next log record is due
	logged bool                  // the last log record said that the endpoint is ejected
}

// Counters count the attempts at one endpoint since its [Detector] was created.
type Counters struct {
	Calls     int64 // calls whose primary was sent to the endpoint
	Hedges    int64 // hedges that were sent to the endpoint
	Failures  int64 // attempts that failed
	Overtaken int64 // attempts that were slower than an attempt at another endpoint or than the caller's deadline
}

var _ policy.EvictionListener = (*Detector)(nil)

// LoadDetector returns the Detector of latency key k. If k has no Detector, it creates one for endpoints with the given
// names, in the order of their indexes. The caller must not change names afterwards.
//
// All calls of a client share one Detector, so the caller must always pass the latency key of the first endpoint.
func LoadDetector(k *policy.Key, names []string) *Detector {
	if d, ok := k.Extension.Load().(*Detector); ok {
		return d
	}
	k.Extension.CompareAndSwap(nil, &Detector{key: k, names: names})
	d := k.Extension.Load().(*Detector)
	if k.IsEvicted() { // the key was evicted before d was stored, so Forget was not called
		if report := d.Forget(); report != nil {
			report()
		}
	}
	return d
}

// A Snapshot is a copy of the state of one endpoint, for statistics and debug pages.
type Snapshot struct {
	Counters
	Name     string  // name of the endpoint; "" if the Detector has no names
	Ejected  bool    // calls use other endpoints
	Slow     bool    // a slow attempt ejected the endpoint, and no attempt at the endpoint has failed since
	BadShare float64 // moving average of the share of bad outcomes, from 0 to 1
}

// Snapshot returns a copy of the state of endpoint i.
func (d *Detector) Snapshot(i int) Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	return Snapshot{s.counters, d.endpointName(i), s.ejected, s.ejectedAsSlow, s.badShare}
}

// Snapshots returns copies of the states of all endpoints, by index. It returns nil if the Detector has no names.
func (d *Detector) Snapshots() (all []Snapshot) {
	for i := range d.names {
		all = append(all, d.Snapshot(i))
	}
	return all
}

// endpointName returns the name of endpoint i, or "" if the Detector has no names.
func (d *Detector) endpointName(i int) string {
	if i < len(d.names) {
		return d.names[i]
	}
	return ""
}

// Forget implements [policy.EvictionListener]. It is called when the latency key of d is evicted. From then on, d
// reports no events.
//
// The function report tells observers that all ejected endpoints are restored, so that no endpoint stays ejected in
// their statistics. It is nil if no endpoint is ejected. The caller must call report without holding locks.
func (d *Detector) Forget() (report func()) {
	return d.updateAllEndpoints(func(*endpointState) { d.evicted = true })
}

// Reset implements [policy.EvictionListener]. It restores all endpoints and clears the outcomes and latencies that were
// recorded for them. The counters keep their values.
//
// The function report tells observers which endpoints were restored. It is nil if no endpoint was ejected. The caller
// must call report without holding locks.
func (d *Detector) Reset() (report func()) {
	return d.updateAllEndpoints(func(s *endpointState) { *s = endpointState{ejectionLog: s.ejectionLog, counters: s.counters} })
}

// updateAllEndpoints calls change for the state of each endpoint while it holds the mutex. It implements Forget and
// Reset, whose changes restore ejected endpoints.
//
// The function report tells observers that all endpoints that were ejected before the change are restored. It is nil if
// no endpoint was ejected, or if the latency key was evicted before.
func (d *Detector) updateAllEndpoints(change func(*endpointState)) (report func()) {
	var restored Mask
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.endpoints {
		if d.endpoints[i].ejected && !d.evicted {
			restored = restored.With(i)
		}
	}
	for i := range d.endpoints {
		change(&d.endpoints[i])
	}
	if restored == 0 {
		return nil
	}
	return func() {
		for i := range d.endpoints {
			if restored.Has(i) {
				d.reportEvent(i, observe.EndpointRestored)
			}
		}
	}
}

// reportEvent reports an event of endpoint i to observers, such as its ejection. The caller must not hold the mutex of
// d, because observers may call methods of d.
func (d *Detector) reportEvent(i int, kind observe.EndpointKind) {
	if d.key != nil {
		d.key.ReportEndpointEvent(observe.EndpointEvent{Endpoint: d.endpointName(i), Kind: kind})
	}
}

// updateEndpoint calls change for the state of endpoint i while it holds the mutex. If change ejects or restores the
// endpoint, updateEndpoint reports an event to observers. It also logs the change, unless the last log record for the
// endpoint is too recent.
func (d *Detector) updateEndpoint(i int, change func(*endpointState)) {
	d.mu.Lock()
	s := &d.endpoints[i]
	before := s.ejected
	change(s)
	if s.ejected && !before {
		s.lastProbe = d.calls
	}
	ejected, changed, isLogged := s.ejected, s.ejected != before && !d.evicted, false
	entry := policy.Change{Kind: policy.KindEndpoint, Bad: ejected, Endpoint: d.endpointName(i)}
	if (ejected != before || ejected != s.logged) && !d.evicted { // otherwise the ReportThrottle has no change to record or to report
		if entry.Dropped, isLogged = s.notice.Update(time.Now(), policy.MinChangeInterval, ejected); isLogged {
			s.logged = ejected
			if s.ejectedAsSlow {
				entry.Reason = observe.DeniedSlow
			}
		}
	}
	d.mu.Unlock()
	switch {
	case changed && ejected:
		d.reportEvent(i, observe.EndpointEjected)
	case changed:
		d.reportEvent(i, observe.EndpointRestored)
	}
	if isLogged && d.key != nil {
		d.key.ReportChange(entry)
	}
}

// SelectPrimary returns the endpoint for the primary of a call, and counts the call. It selects the first candidate
// that is not ejected. If all candidates are ejected, it selects the candidate with the fewest consecutive bad
// outcomes.
//
// If the first choice answers no primaries any more, SelectPrimary ejects it and selects again, see isUnresponsive.
func (d *Detector) SelectPrimary(candidates Mask) int {
	d.mu.Lock()
	i := d.selectBest(candidates)
	isSilent := d.isUnresponsive(candidates, i)
	d.mu.Unlock()
	if isSilent {
		d.updateEndpoint(i, func(s *endpointState) { s.ejected, s.goodRun = true, 0 })
	}
	d.mu.Lock()
	i = d.selectBest(candidates)
	s := &d.endpoints[i]
	s.counters.Calls++
	if s.unansweredCalls++; s.unansweredCalls == 1 {
		s.unansweredSince = time.Now()
	}
	d.mu.Unlock()
	d.reportEvent(i, observe.EndpointCalled)
	return i
}

// isUnresponsive reports whether endpoint i should be ejected because it does not answer primaries. The result is true
// if more than ejectRun primaries are unanswered, and the oldest has waited for unresponsiveFactor times the latency of
// the next endpoint. The next endpoint is the first candidate other than i that is not ejected.
//
// The result does not depend on hedges, so an endpoint is ejected even if no hedge is sent. The caller must hold the
// mutex.
func (d *Detector) isUnresponsive(candidates Mask, i int) bool {
	s, next := &d.endpoints[i], d.findOtherAvailable(candidates, i)
	return next >= 0 && !s.ejected && s.unansweredCalls > ejectRun && d.endpoints[next].samples > 0 && time.Since(s.unansweredSince) >= unresponsiveFactor*d.endpoints[next].expectedLatency
}

// selectProbe decides whether a call sends a probe, and to which endpoint. It counts the call, because probes are sent
// at intervals of a number of calls. The result i is -1 if the call sends no probe. Otherwise i is an ejected endpoint
// before primary, or an endpoint after primary that may be faster.
//
// The argument primary is the endpoint of the call's primary, and median is the median latency of calls to it. If
// primary is ejected too, the probe may go to any ejected endpoint.
//
// A probe that is unanswered for the time limit counts as a bad outcome; 0 means no limit.
func (d *Detector) selectProbe(candidates Mask, primary int, median time.Duration) (i int, limit time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	for j := range MaxEndpoints {
		s, interval := &d.endpoints[j], probeInterval
		limit = 0
		switch {
		case !candidates.Has(j) || j == primary:
			continue
		case s.ejected && (j < primary || d.endpoints[primary].ejected):
			if limit = lateAnswerFactor * s.expectedLatency; s.goodRun > 0 {
				interval = promisingInterval
			}
		case s.ejected || j < primary:
			continue
		case s.needsLatencies(median):
			interval = promisingInterval
		default:
			interval = measureInterval
		}
		if d.calls-s.lastProbe >= interval {
			s.lastProbe = d.calls - interval + deniedProbeInterval // recordProbe changes lastProbe if the probe is admitted
			return j, limit
		}
	}
	return -1, 0
}

// needsLatencies reports whether probes must measure the latency of the endpoint further. The result is true if the
// endpoint has answered fewer than minLatencies attempts and its expected latency is shorter than median. median is the
// median latency of calls to the endpoint of the primary.
func (s *endpointState) needsLatencies(median time.Duration) bool {
	return s.samples < minLatencies && s.expectedLatency < median
}

// recordProbe records that a call sent a probe to endpoint i and its primary to endpoint primary. The argument median
// is the median latency of calls to primary.
//
// If i is not ejected and its latency was known, the next responses measure the latency again. In that case recordProbe
// also clears the hedgesFutile flag of primary. Both the old latency and the flag may come from exceptional calls.
func (d *Detector) recordProbe(i, primary int, median time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	s.lastProbe = d.calls
	if !s.ejected && !s.needsLatencies(median) {
		s.samples, d.endpoints[primary].hedgesFutile = 0, false
	}
}

// findAvailable searches the candidates, in order of preference, for an endpoint to use. The result available is the
// first candidate that is not ejected.
//
// The result ejected is the most promising ejected candidate before available: the ejected candidate with the fewest
// consecutive bad outcomes. If no candidate is available, it is the most promising of all candidates.
//
// Each result is -1 if there is no endpoint of that kind. The caller must hold the mutex.
func (d *Detector) findAvailable(candidates Mask) (available, ejected int) {
	available, ejected = -1, -1
	for i := range MaxEndpoints {
		switch {
		case !candidates.Has(i):
		case !d.endpoints[i].ejected:
			return i, ejected
		case ejected < 0 || d.endpoints[i].badRun < d.endpoints[ejected].badRun:
			ejected = i
		}
	}
	return available, ejected
}

// selectBest returns the first endpoint in candidates that is not ejected. If all are ejected, it returns the candidate
// with the fewest consecutive bad outcomes. It returns 0 if candidates is empty. The caller must hold the mutex.
func (d *Detector) selectBest(candidates Mask) int {
	available, ejected := d.findAvailable(candidates)
	if available < 0 {
		available = ejected
	}
	return max(available, 0)
}

// selectHedge returns the endpoint of a call's next hedge: the first candidate that is neither ejected nor used by an
// attempt of the call. If there is none, it returns primary, the endpoint of the call's primary.
//
// While an endpoint after primary is ejected, one in hedgesPerEjectedTrial hedges goes to that endpoint as a trial. An
// ejected endpoint before primary gets no trials if another endpoint is available, because calls send it probes.
func (d *Detector) selectHedge(candidates, used Mask, primary int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	available, ejected := d.findAvailable(candidates &^ used)
	if available >= 0 {
		if _, ejected = d.findAvailable(candidates &^ used &^ maskUpTo(primary)); ejected > available {
			ejected = -1
		}
	}
	otherwise := available
	if available < 0 {
		otherwise = primary
	}
	if ejected < 0 {
		return otherwise
	}
	if d.hedgesSinceTrial+1 < hedgesPerEjectedTrial && (available >= 0 || !d.endpoints[primary].ejected) {
		return otherwise
	}
	return ejected
}

// recordTrial counts an admitted hedge to endpoint i. While an endpoint is ejected, one in hedgesPerEjectedTrial hedges
// is a trial: it is sent to the ejected endpoint, see selectHedge. If i is ejected, the hedge is a trial and the count
// starts again.
//
// Denied hedges must not be counted: otherwise the hedge budget could deny every trial.
func (d *Detector) recordTrial(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.endpoints[i].ejected {
		d.hedgesSinceTrial = 0
		return
	}
	for j := range d.endpoints {
		if d.endpoints[j].ejected {
			d.hedgesSinceTrial++
			return
		}
	}
}

// recordUnsentHedge counts a hedge that was due but was not sent, because all endpoints are ejected. Each counted hedge
// brings the next trial, a hedge to an ejected endpoint, closer.
func (d *Detector) recordUnsentHedge() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hedgesSinceTrial++
}

// failoverTimeout returns how long a hedge to endpoint i that a failure has started may run after the primary has failed: the
// expected latency of the endpoint times unresponsiveFactor. If the endpoint has not answered yet, it is usual at least.
func (d *Detector) failoverTimeout(i int, usual time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	if timeout := unresponsiveFactor * s.expectedLatency; s.answered || timeout > usual {
		return timeout
	}
	return usual
}

// knownLatency returns the expected latency of endpoint i, or 0 if the endpoint has not answered yet.
func (d *Detector) knownLatency(i int) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := &d.endpoints[i]; s.answered {
		return s.expectedLatency
	}
	return 0
}

// firstAvailable returns the first endpoint in candidates that is not ejected. It returns 0 if all of them are ejected.
func (d *Detector) firstAvailable(candidates Mask) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := d.selectBest(candidates); !d.endpoints[i].ejected {
		return i
	}
	return 0
}

// findOtherAvailable returns the first endpoint in candidates that is neither i nor ejected. It returns -1 if there is
// none. The caller must hold the mutex.
func (d *Detector) findOtherAvailable(candidates Mask, i int) int {
	available, _ := d.findAvailable(candidates &^ Mask(0).With(i))
	return available
}

// isNextSlower reports whether hedges at endpoint i are expected to be faster than hedges at the next endpoint. The
// next endpoint is the first candidate other than i that is not ejected. The argument median is the median latency of
// calls to endpoint i.
//
// The result is true if the next endpoint's latency is at least median times slowerFactor. It is false if median is 0
// or there is no next endpoint.
func (d *Detector) isNextSlower(candidates Mask, i int, median time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.findOtherAvailable(candidates, i)
	return next >= 0 && median > 0 && float64(d.endpoints[next].expectedLatency) >= slowerFactor*float64(median)
}

// isHealthy reports whether a call whose primary is at endpoint i may also send its first hedge there. The endpoint
// must not be ejected or suspected, its last outcome must be good, and recent hedges there must not have been in vain.
func (d *Detector) isHealthy(i int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	hedgesInVain := s.vainHedges >= maxVainHedges && d.calls-s.lastVainHedge < probeInterval
	return !s.ejected && s.badRun == 0 && !s.suspected && !hedgesInVain
}

// recordHedgeAtPrimary records whether the first hedge of a call has helped, although it was sent to endpoint i like
// the primary. After maxVainHedges consecutive hedges in vain, first hedges use another endpoint for a while, see
// isHealthy.
//
// won is true if the hedge has won. Otherwise, hedged is the time from the start of the hedge to the end of the call.
// The hedge was in vain if the next endpoint would probably have answered in half of that time.
func (d *Detector) recordHedgeAtPrimary(candidates Mask, i int, won bool, hedged time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, next := &d.endpoints[i], d.findOtherAvailable(candidates, i)
	switch {
	case won:
		s.vainHedges = 0
	case next >= 0 && hedged >= lateAnswerFactor*d.endpoints[next].expectedLatency:
		s.vainHedges, s.lastVainHedge = s.vainHedges+1, d.calls
	}
}

// markSuspected records that endpoint i may be unhealthy, because a hedge there did not help a call whose primary was
// there too. Until its next good outcome, calls with their primary at i send their first hedges to other endpoints.
func (d *Detector) markSuspected(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[i].suspected = true
}

// isLate reports whether an attempt at endpoint i has taken much longer than the next endpoint would take. The argument
// elapsed is the time since the start of the attempt. The next endpoint is the first candidate after i that is not
// ejected.
//
// The result is true if elapsed is at least lateAnswerFactor times the latency of the next endpoint. It is false if
// that latency is not known.
func (d *Detector) isLate(candidates Mask, i int, elapsed time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	next, _ := d.findAvailable(candidates &^ maskUpTo(i))
	return next >= 0 && d.endpoints[next].samples >= minLatencies && elapsed >= lateAnswerFactor*d.endpoints[next].expectedLatency
}

// recordHedgeResult records whether the hedge of a call whose primary is at endpoint i has helped, for areHedgesFutile.
// won is true if the hedge has won. The caller may pass false only if the hedge lost although it had time to answer.
func (d *Detector) recordHedgeResult(i int, won bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[i].hedgesFutile = !won
}

// areHedgesFutile reports whether hedges probably do not help calls whose primary is at endpoint i. The result is true
// if the last hedge of such a call lost, although it had time to answer. In that case slow calls are probably slow at
// all endpoints.
func (d *Detector) areHedgesFutile(i int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.endpoints[i].hedgesFutile
}

// recordHedge counts an admitted hedge to endpoint i and reports it to observers.
func (d *Detector) recordHedge(i int) {
	d.mu.Lock()
	d.endpoints[i].counters.Hedges++
	d.mu.Unlock()
	d.reportEvent(i, observe.EndpointHedged)
}

// withdrawHedge undoes the count of recordHedge for a hedge to endpoint i that was not sent after all.
func (d *Detector) withdrawHedge(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[i].counters.Hedges--
}

// hasPromptAnswerSince reports whether endpoint i has promptly answered any call since the time start. A response is
// prompt if it took less than the expected latency of the next endpoint.
func (d *Detector) hasPromptAnswerSince(i int, start time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.endpoints[i].lastPromptAnswer.After(start)
}

// recordAnswer records that endpoint i answered an attempt, which took the given time. It updates the latency estimate
// of the endpoint, not its outcomes. The candidates are the endpoints to which the call may be sent.
func (d *Detector) recordAnswer(candidates Mask, i int, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	if next := d.findOtherAvailable(candidates, i); next >= 0 && took < d.endpoints[next].expectedLatency {
		s.lastPromptAnswer = time.Now()
	}
	if s.samples == 0 {
		s.expectedLatency = took
	}
	s.samples, s.answered = min(s.samples+1, minLatencies), true
	s.expectedLatency += (took - s.expectedLatency) / 4
	s.unansweredCalls = 0
}

// recordNoAnswer records that an attempt at endpoint i ended without a response, because it was cancelled or got
// pushback. The argument waited is the time from its start to its end. It updates the latency estimate of the endpoint,
// not its outcomes.
func (d *Detector) recordNoAnswer(i int, waited time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	if waited < s.expectedLatency { // a response was not expected yet
		s.unansweredCalls = max(0, s.unansweredCalls-1)
	}
	s.expectedLatency = max(s.expectedLatency, waited)
}

// recordUnansweredFailover does the same as recordNoAnswer for a hedge that a failure has started. Its time limit follows from the
// expected latency, which therefore changes only if the endpoint has not answered yet: otherwise each such hedge would lengthen the
// limit of the next one.
func (d *Detector) recordUnansweredFailover(i int, waited time.Duration) {
	if known := d.knownLatency(i); known > 0 {
		waited = min(waited, known)
	}
	d.recordNoAnswer(i, waited)
}

// recordFailure records that an attempt at endpoint i has failed. A failure is a bad outcome and may eject the
// endpoint.
func (d *Detector) recordFailure(i int) {
	d.updateEndpoint(i, func(s *endpointState) {
		s.counters.Failures++
		s.ejectedAsSlow = false
		s.addBadOutcome()
	})
	d.reportEvent(i, observe.EndpointFailed)
}

// recordSuccess records a good outcome of an attempt at endpoint i. Enough consecutive good outcomes restore an ejected
// endpoint.
func (d *Detector) recordSuccess(i int) {
	d.updateEndpoint(i, func(s *endpointState) {
		s.badShare -= s.badShare * outcomeWeight
		s.badRun, s.suspected = 0, false
		if !s.ejected {
			return
		}
		if s.goodRun++; s.goodRun >= d.requiredGoodOutcomes(i) {
			s.ejected, s.ejectedAsSlow, s.goodRun, s.badShare = false, false, 0, min(s.badShare, restoreShare)
		}
	})
}

// recordOvertaken records that an attempt at endpoint i was slower than an attempt at another endpoint, or than the
// caller's deadline. A slow attempt is a bad outcome and may eject the endpoint.
func (d *Detector) recordOvertaken(i int) {
	d.updateEndpoint(i, func(s *endpointState) {
		before := s.ejected
		s.counters.Overtaken++
		s.addBadOutcome()
		s.ejectedAsSlow = s.ejectedAsSlow || s.ejected && !before
	})
	d.reportEvent(i, observe.EndpointOvertaken)
}

// addBadOutcome counts a bad outcome of the endpoint: an attempt that failed or was too slow. It ejects the endpoint
// after ejectRun consecutive bad outcomes, or when the share of bad outcomes exceeds ejectShare. The caller must hold
// the mutex of the [Detector].
func (s *endpointState) addBadOutcome() {
	s.badShare += (1 - s.badShare) * outcomeWeight
	s.badRun++
	s.goodRun = 0
	if s.badRun >= ejectRun || s.badShare > ejectShare {
		s.ejected = true
	}
}

// requiredGoodOutcomes returns the number of consecutive good outcomes that restore the ejected endpoint i. It is restoreRun
// if primaries will use the endpoint after that.
//
// It is 1 if primaries will not use the endpoint: it is used only for hedges, or an earlier endpoint is available. It
// is also 1 while all endpoints are ejected. The caller must hold the mutex.
func (d *Detector) requiredGoodOutcomes(i int) int {
	for j := range MaxEndpoints {
		if j != i && !d.endpoints[j].ejected && d.endpoints[j].counters.Calls+d.endpoints[j].counters.Hedges > 0 {
			if j < i || i > 0 && d.endpoints[i].counters.Calls+d.endpoints[j].counters.Calls == 0 {
				return 1
			}
			return restoreRun
		}
	}
	return 1
}
