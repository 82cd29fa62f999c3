package endpoint

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// Thresholds for ejecting and restoring endpoints, in outcomes or as a share of outcomes.
const (
	outcomeWeight = 1.0 / 256 // weight of one outcome in the moving average of bad outcomes
	ejectShare    = 0.08      // share of bad outcomes that ejects an endpoint; with more, the default budget of 10 % pays for few hedges
	restoreShare  = 0.06      // upper limit of the share after a restore, so that a few failures do not eject the endpoint again
	ejectRun      = 6         // consecutive bad outcomes that eject an endpoint
	restoreRun    = 32        // consecutive good outcomes that restore an endpoint that gets primaries afterwards
	minLatencies  = 8         // answers after which a latency is known; the first answers include the time to connect
)

// Intervals of probes and trials, in calls or hedges.
const (
	probeInterval         = 100  // calls between two probes of an ejected endpoint: 1 % of the calls
	promisingInterval     = 20   // calls between two probes if the last one succeeded, or if few latencies of the endpoint are known
	measureInterval       = 1000 // calls between two probes that measure the latency of an endpoint again
	deniedProbeInterval   = 7    // calls between two probes if the first was denied; not a multiple of 10, because a budget may gain one token in 10 calls
	hedgesPerEjectedTrial = 10   // one of this many hedges is sent to an ejected endpoint
)

// Factors by which a latency is compared with another latency.
const (
	slowerFactor     = 1.25 // an endpoint that is slower by this factor than the usual latency gets no first hedge
	silenceFactor    = 4    // an endpoint that does not answer in this multiple of the usual latency counts as unresponsive
	lateAnswerFactor = 2    // an answer, or a missing answer to a probe, is late after this multiple of a latency; jitter rarely doubles a latency
)

// A Detector detects outliers among the endpoints of one latency key. It counts the outcomes of attempts at each
// endpoint, and ejects and restores endpoints. Its endpoints are HTTP endpoints or connections of gRPC calls. The zero
// Detector is ready to use and reports no events. A Detector is safe for concurrent use.
//
// An outcome is bad if the attempt fails, or if a later hedge at another endpoint is faster. An outcome is good if a
// hedge at the same endpoint is faster. So slow calls eject an endpoint only if hedges at that endpoint do not help.
//
// One in a hundred calls sends a probe to an ejected endpoint: a copy that starts together with the primary. Enough
// successful probes restore the endpoint.
type Detector struct {
	key   *policy.Key // receives events; nil: events are not reported
	names []string    // names of the endpoints; nil without a key

	mu            sync.Mutex // guards the fields below
	endpoints     [MaxEndpoints]endpointState
	calls         int  // number of calls for which a probe was considered
	skippedTrials int  // hedges that were not sent to an ejected endpoint, since the last hedge that was
	evicted       bool // whether the key was evicted; events are then no longer reported
}

// An endpointState is the state of one endpoint.
type endpointState struct {
	ejected       bool // calls use other endpoints
	ejectedAsSlow bool // the endpoint was ejected for being overtaken, and has had no failure since
	lastProbe     int  // value of Detector.calls at the last probe or ejection
	outcomes
	latency
	unanswered
	ejectionLog
	counters Counters
}

// An outcomes value summarizes the outcomes of attempts at one endpoint.
type outcomes struct {
	badShare     float64 // moving average of bad outcomes
	badRun       int     // consecutive bad outcomes
	goodRun      int     // consecutive good outcomes since the endpoint was ejected
	suspected    bool    // a hedge at this endpoint did not help a call, and no good outcome has followed
	hedgesFutile bool    // the last hedge of a call to this endpoint had time to answer and lost
}

// A latency estimates the time in which one endpoint answers.
type latency struct {
	expectedLatency  time.Duration // moving average of the latencies; before the first answer, the longest time that an attempt has waited
	samples          int           // number of answers, counted up to minLatencies
	lastPromptAnswer time.Time     // time of the last answer that arrived before the next endpoint was expected to answer
}

// An unanswered value counts primaries that one endpoint has not answered.
type unanswered struct {
	unansweredCalls int       // primaries since the last answer
	unansweredSince time.Time // start of the first of these primaries
}

// An ejectionLog holds the last logged state of one endpoint, to limit the rate of log records.
type ejectionLog struct {
	notice policy.ReportThrottle
	logged bool // whether the last log record reported an ejection
}

// Counters count the attempts at one endpoint since the Detector was created.
type Counters struct {
	Calls     int64 // primaries
	Hedges    int64
	Failures  int64 // attempts that failed
	Overtaken int64 // attempts that were slower than another endpoint or than the caller's deadline
}

var _ policy.EvictionListener = (*Detector)(nil)

// LoadDetector returns the detector of a latency key. If the key has none, it creates one with the given names of the
// endpoints, which the caller must not change. The key is that of the first endpoint.
func LoadDetector(k *policy.Key, names []string) *Detector {
	if d, ok := k.Extension.Load().(*Detector); ok {
		return d
	}
	k.Extension.CompareAndSwap(nil, &Detector{key: k, names: names})
	d := k.Extension.Load().(*Detector)
	if k.IsEvicted() { // before d was stored, so the table has not called Forget
		if report := d.Forget(); report != nil {
			report()
		}
	}
	return d
}

// A Snapshot is a copy of the state of one endpoint.
type Snapshot struct {
	Counters
	Name     string  // "" if the Detector has no names
	Ejected  bool    // calls use other endpoints
	Slow     bool    // the endpoint was ejected for being overtaken, and has had no failure since
	BadShare float64 // moving average of bad outcomes
}

// Snapshot returns the state of endpoint i.
func (d *Detector) Snapshot(i int) Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	return Snapshot{s.counters, d.endpointName(i), s.ejected, s.ejectedAsSlow, s.badShare}
}

// Snapshots returns the states of all endpoints, in order. It returns nil if the Detector has no names.
func (d *Detector) Snapshots() (all []Snapshot) {
	for i := range d.names {
		all = append(all, d.Snapshot(i))
	}
	return all
}

func (d *Detector) endpointName(i int) string {
	if i < len(d.names) {
		return d.names[i]
	}
	return ""
}

// Forget stops the reporting of events, because the key was evicted. The function report tells observers that the
// ejected endpoints are restored. It is nil if no endpoint is ejected. The caller must call it without holding locks.
func (d *Detector) Forget() (report func()) {
	return d.changeAll(func(*endpointState) { d.evicted = true })
}

// Reset clears the state of all endpoints and keeps their counters. The function report tells observers that the
// ejected endpoints are restored. It is nil if no endpoint was ejected. The caller must call it without holding locks.
func (d *Detector) Reset() (report func()) {
	return d.changeAll(func(s *endpointState) { *s = endpointState{ejectionLog: s.ejectionLog, counters: s.counters} })
}

// changeAll calls change for each endpoint with mu held. The function report tells observers that the endpoints that
// were ejected before are restored. It is nil if there were none.
func (d *Detector) changeAll(change func(*endpointState)) (report func()) {
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

// reportEvent reports an event of endpoint i to observers. The caller must not hold mu, because observers may call the
// Detector.
func (d *Detector) reportEvent(i int, kind observe.EndpointKind) {
	if d.key != nil {
		d.key.ReportEndpointEvent(observe.EndpointEvent{Endpoint: d.endpointName(i), Kind: kind})
	}
}

// updateEndpoint calls change for endpoint i with mu held. If that ejects or restores the endpoint, updateEndpoint
// reports and logs the event.
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

// SelectPrimary returns the endpoint of a call's primary, and counts the call. It selects the first candidate that is
// not ejected. If all are ejected, it selects the one with the fewest consecutive bad outcomes.
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

// isUnresponsive reports whether endpoint i has left more than ejectRun calls unanswered, for silenceFactor times the
// latency of the next endpoint. So an endpoint can be ejected although no hedge is sent. The caller holds mu.
func (d *Detector) isUnresponsive(candidates Mask, i int) bool {
	s, next := &d.endpoints[i], d.findNext(candidates, i)
	return next >= 0 && !s.ejected && s.unansweredCalls > ejectRun && d.endpoints[next].expectedLatency > 0 && time.Since(s.unansweredSince) >= silenceFactor*d.endpoints[next].expectedLatency
}

// selectProbe returns the endpoint to which a call sends a probe, or -1 if it sends none. It counts the call. The
// argument primary is the endpoint of the call's primary, and median is the median latency of calls to that endpoint.
//
// The probe goes to an ejected endpoint before primary, or to an endpoint after primary that may be faster. A probe
// that is unanswered after limit is a bad outcome; a limit of 0 means no limit.
func (d *Detector) selectProbe(candidates Mask, primary int, median time.Duration) (i int, limit time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	for j := range MaxEndpoints {
		s, interval := &d.endpoints[j], probeInterval
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
			s.lastProbe = d.calls - interval + deniedProbeInterval // recordProbe corrects it if the probe is paid for
			return j, limit
		}
	}
	return -1, 0
}

// needsLatencies reports whether the latency of the endpoint must be measured by further probes. It must if few
// latencies are known and the endpoint may be faster than median.
func (s *endpointState) needsLatencies(median time.Duration) bool {
	return s.samples < minLatencies && s.expectedLatency < median
}

// recordProbe records that a call with its primary at endpoint primary sent a probe to endpoint i. If the latency of i
// was known, it must be measured again. Then the flag hedgesFutile of primary is cleared as well, because both records
// may have been exceptions.
func (d *Detector) recordProbe(i, primary int, median time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	s.lastProbe = d.calls
	if !s.ejected && !s.needsLatencies(median) {
		s.samples, d.endpoints[primary].hedgesFutile = 0, false
	}
}

// findAvailable returns the first candidate that is not ejected. Among the ejected candidates before it, it also returns
// the one with the fewest consecutive bad outcomes. Each result is -1 if there is no such endpoint. The caller holds
// mu.
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

// selectBest returns the first candidate that is not ejected. If all are ejected, it returns the one with the fewest
// consecutive bad outcomes. It returns 0 if there are no candidates. The caller holds mu.
func (d *Detector) selectBest(candidates Mask) int {
	available, ejected := d.findAvailable(candidates)
	if available < 0 {
		available = ejected
	}
	return max(available, 0)
}

// selectHedge returns the endpoint of the next hedge: the first candidate that is neither used nor ejected, or else
// primary. One in hedgesPerEjectedTrial hedges goes to an ejected endpoint after primary instead, as a trial. Ejected
// endpoints before primary get only probes.
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
	if d.skippedTrials+1 < hedgesPerEjectedTrial && (available >= 0 || !d.endpoints[primary].ejected) {
		return otherwise
	}
	return ejected
}

// recordTrial counts an admitted hedge to endpoint i for the interval between trials of ejected endpoints. A denied
// hedge does not count: otherwise the budget could deny every trial.
func (d *Detector) recordTrial(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.endpoints[i].ejected {
		d.skippedTrials = 0
		return
	}
	for j := range d.endpoints {
		if d.endpoints[j].ejected {
			d.skippedTrials++
			return
		}
	}
}

// recordUnsentHedge counts a hedge that is not sent because all endpoints are ejected. It counts for the interval
// between trials.
func (d *Detector) recordUnsentHedge() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.skippedTrials++
}

// firstAvailable returns the first candidate that is not ejected, or 0 if all are ejected.
func (d *Detector) firstAvailable(candidates Mask) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := d.selectBest(candidates); !d.endpoints[i].ejected {
		return i
	}
	return 0
}

// findNext returns the first candidate except i that is not ejected, or -1 if there is none. The caller holds mu.
func (d *Detector) findNext(candidates Mask, i int) int {
	available, _ := d.findAvailable(candidates &^ Mask(0).With(i))
	return available
}

// isNextSlower reports whether the first available candidate except i is slower than median by slowerFactor. The median
// is the median latency of calls to endpoint i. The result is false if median is 0.
func (d *Detector) isNextSlower(candidates Mask, i int, median time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.findNext(candidates, i)
	return next >= 0 && median > 0 && float64(d.endpoints[next].expectedLatency) >= slowerFactor*float64(median)
}

// isHealthy reports whether endpoint i is neither ejected nor suspected and its last outcome was good.
func (d *Detector) isHealthy(i int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.endpoints[i].ejected && d.endpoints[i].badRun == 0 && !d.endpoints[i].suspected
}

// markSuspected records that endpoint i may be unhealthy: the primary and a hedge of a call were both sent there, and
// the hedge did not win.
func (d *Detector) markSuspected(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[i].suspected = true
}

// isLate reports whether an endpoint after endpoint i is expected to answer in less than the elapsed time divided by
// lateAnswerFactor.
func (d *Detector) isLate(candidates Mask, i int, elapsed time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	next, _ := d.findAvailable(candidates &^ maskUpTo(i))
	return next >= 0 && d.endpoints[next].samples >= minLatencies && elapsed >= lateAnswerFactor*d.endpoints[next].expectedLatency
}

// recordHedgeResult records whether a hedge of a call to endpoint i has won. If won is false, the hedge had time to
// answer and lost.
func (d *Detector) recordHedgeResult(i int, won bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[i].hedgesFutile = !won
}

// areHedgesFutile reports whether the last hedge of a call to endpoint i had time to answer and lost. Slow calls are
// then slow at all endpoints.
func (d *Detector) areHedgesFutile(i int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.endpoints[i].hedgesFutile
}

// recordHedge counts a hedge to endpoint i.
func (d *Detector) recordHedge(i int) {
	d.mu.Lock()
	d.endpoints[i].counters.Hedges++
	d.mu.Unlock()
	d.reportEvent(i, observe.EndpointHedged)
}

// withdrawHedge reverts the count of recordHedge for a hedge that was not sent.
func (d *Detector) withdrawHedge(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[i].counters.Hedges--
}

// hasPromptAnswerSince reports whether endpoint i has answered a call since start, and before the next endpoint was
// expected to answer.
func (d *Detector) hasPromptAnswerSince(i int, start time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.endpoints[i].lastPromptAnswer.After(start)
}

// recordAnswer records that endpoint i answered an attempt after the time took. It updates the latency of the endpoint,
// not its outcomes.
func (d *Detector) recordAnswer(candidates Mask, i int, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	if next := d.findNext(candidates, i); next >= 0 && took < d.endpoints[next].expectedLatency {
		s.lastPromptAnswer = time.Now()
	}
	if s.samples == 0 {
		s.expectedLatency = took
	}
	s.samples = min(s.samples+1, minLatencies)
	s.expectedLatency += (took - s.expectedLatency) / 4
	s.unansweredCalls = 0
}

// recordNoAnswer records that an attempt at endpoint i was cancelled, or got pushback, after the time waited. It
// updates the latency of the endpoint, not its outcomes.
func (d *Detector) recordNoAnswer(i int, waited time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	if waited < s.expectedLatency { // its caller could not expect an answer yet
		s.unansweredCalls = max(0, s.unansweredCalls-1)
	}
	s.expectedLatency = max(s.expectedLatency, waited)
}

// recordFailure records a bad outcome of endpoint i: an attempt has failed.
func (d *Detector) recordFailure(i int) {
	d.updateEndpoint(i, func(s *endpointState) {
		s.counters.Failures++
		s.ejectedAsSlow = false
		s.addBadOutcome()
	})
	d.reportEvent(i, observe.EndpointFailed)
}

// recordSuccess records a good outcome of endpoint i. Enough consecutive good outcomes restore the endpoint.
func (d *Detector) recordSuccess(i int) {
	d.updateEndpoint(i, func(s *endpointState) {
		s.badShare -= s.badShare * outcomeWeight
		s.badRun, s.suspected = 0, false
		if !s.ejected {
			return
		}
		if s.goodRun++; s.goodRun >= d.requiredGoodRun(i) {
			s.ejected, s.ejectedAsSlow, s.goodRun, s.badShare = false, false, 0, min(s.badShare, restoreShare)
		}
	})
}

// recordOvertaken records a bad outcome of endpoint i: it was slower than another endpoint or than the caller's
// deadline.
func (d *Detector) recordOvertaken(i int) {
	d.updateEndpoint(i, func(s *endpointState) {
		before := s.ejected
		s.counters.Overtaken++
		s.addBadOutcome()
		s.ejectedAsSlow = s.ejectedAsSlow || s.ejected && !before
	})
	d.reportEvent(i, observe.EndpointOvertaken)
}

// addBadOutcome counts a bad outcome. It ejects the endpoint after ejectRun consecutive bad outcomes, or when their
// share exceeds ejectShare.
func (s *endpointState) addBadOutcome() {
	s.badShare += (1 - s.badShare) * outcomeWeight
	s.badRun++
	s.goodRun = 0
	if s.badRun >= ejectRun || s.badShare > ejectShare {
		s.ejected = true
	}
}

// requiredGoodRun returns the number of consecutive good outcomes that restore endpoint i. It is 1 if the endpoint gets
// no primaries afterwards: only hedges use it, an earlier endpoint is available, or all endpoints are ejected. The
// caller holds mu.
func (d *Detector) requiredGoodRun(i int) int {
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
