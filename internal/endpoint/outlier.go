package endpoint

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// Thresholds of outcomes. Each is a number of outcomes, or a share of them.
const (
	outcomeWeight = 1.0 / 256 // weight of one outcome in the moving average of bad outcomes
	ejectShare    = 0.08      // share of bad outcomes that ejects an endpoint: the default budget of 10 % pays for few hedges beyond
	restoreShare  = 0.06      // upper bound of the share after a restore, so that a few failures do not eject the endpoint again
	ejectRun      = 6         // consecutive bad outcomes that eject an endpoint
	restoreRun    = 32        // consecutive good outcomes that restore an endpoint to which calls then return
	minLatencies  = 8         // answers that make a latency known: the first ones include the time to connect
)

// Intervals of trials, each a number of calls or hedges.
const (
	probeInterval         = 100  // calls between two probes of an ejected endpoint: 1 % of the calls
	promisingInterval     = 20   // calls between two probes if the last one succeeded, or if few latencies of the endpoint are known
	measureInterval       = 1000 // calls between two probes that measure again an endpoint to which no primaries go
	unpaidProbeInterval   = 7    // calls between two probes if the first was denied: no multiple of the 10 calls in which a budget earns a token
	hedgesPerEjectedTrial = 10   // one hedge in so many is sent to an ejected endpoint
)

// Factors of a latency.
const (
	slowerFactor     = 1.25 // an endpoint that takes this much longer than usual gets no first hedge
	silenceFactor    = 4    // without an answer for this long, an endpoint is responsible for the delay
	lateAnswerFactor = 2    // an answer, or a probe without one, is late after this long: jitter rarely doubles a latency
)

// A Detector is the outlier detector of one key: it counts the outcomes of attempts at each endpoint, and ejects and restores endpoints. It
// serves HTTP endpoints and the connections of gRPC calls. It is safe for concurrent use. The zero Detector is ready to use: no endpoint is
// ejected, and events are not reported.
//
// An outcome of an endpoint is bad if the attempt fails, or if a later hedge at another endpoint is faster. If a hedge at the same endpoint
// is faster, the outcome is good. So slow calls eject an endpoint only while hedges at that endpoint do not help.
//
// One call in a hundred has a probe: a copy of the call that is sent to an ejected endpoint at the same time. Successful probes restore the
// endpoint.
type Detector struct {
	key   *policy.Key // to which events are reported; nil: they are not reported
	names []string    // of the endpoints; nil without a key

	mu            sync.Mutex // guards the fields below
	endpoints     [MaxEndpoints]endpointState
	calls         int  // calls that have begun
	skippedTrials int  // hedges to other endpoints since the last hedge to an ejected endpoint
	forgotten     bool // the key was evicted: events are no longer reported
}

// An endpointState is the state of one endpoint.
type endpointState struct {
	ejected       bool // calls go to other endpoints
	ejectedAsSlow bool // it is ejected because calls were overtaken, and none has failed since
	lastProbe     int  // value of calls at the last probe of the endpoint, or when it was ejected
	outcomes
	latency
	unanswered
	ejectionLog
	counters Counters
}

// outcomes are the results of attempts at an endpoint.
type outcomes struct {
	badShare     float64 // moving average of bad outcomes
	badRun       int     // consecutive bad outcomes
	goodRun      int     // consecutive good outcomes since the endpoint was ejected
	suspected    bool    // a hedge at the same endpoint did not help a call, and no outcome has been good since
	hedgesFutile bool    // the last hedge of a call to the endpoint lost though it had time to answer
}

// latency is the time that an endpoint takes to answer.
type latency struct {
	expectedLatency  time.Duration // moving average of answers or, before the first answer, the longest wait for one
	samples          int           // number of answers, at most minLatencies
	lastPromptAnswer time.Time     // time of the last answer that came before the next endpoint would have answered
}

// unanswered counts the calls that an endpoint has not answered.
type unanswered struct {
	unansweredCalls int       // calls that began at the endpoint since its last answer
	unansweredSince time.Time // start of the first of them
}

// ejectionLog is the state of an endpoint that was logged last.
type ejectionLog struct {
	notice policy.ReportThrottle
	logged bool // the last log record was that of an ejection
}

// Counters count the attempts at one endpoint.
type Counters struct {
	Calls     int64 // primaries
	Hedges    int64
	Failures  int64 // bad outcomes: the attempt has failed
	Overtaken int64 // bad outcomes: another endpoint was faster, or the caller's deadline passed
}

var _ policy.EvictionListener = (*Detector)(nil)

// LoadDetector returns the detector of a key, and makes it if the key has none. The key is that of the first endpoint. The first call for a
// key sets the names of the endpoints, which the caller must not change.
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
	Ejected  bool    // calls go to other endpoints
	Slow     bool    // it is ejected because calls were overtaken, and none has failed since
	BadShare float64 // moving average of bad outcomes
}

// Snapshot returns the state of endpoint i.
func (d *Detector) Snapshot(i int) Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	return Snapshot{s.counters, d.endpointName(i), s.ejected, s.ejectedAsSlow, s.badShare}
}

// Snapshots returns the states of all endpoints that have names.
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

// Forget restores all endpoints when the key is evicted. If report is not nil, the caller must call it without holding locks: it calls
// observers.
func (d *Detector) Forget() (report func()) {
	return d.changeAll(func(*endpointState) { d.forgotten = true })
}

// Reset clears the state of all endpoints, except their counters. If report is not nil, the caller must call it without holding locks: it
// calls observers.
func (d *Detector) Reset() (report func()) {
	return d.changeAll(func(s *endpointState) { *s = endpointState{ejectionLog: s.ejectionLog, counters: s.counters} })
}

// changeAll calls change for each endpoint with mu held. It returns a function that reports the endpoints that were ejected as restored;
// nil if none was ejected.
func (d *Detector) changeAll(change func(*endpointState)) (report func()) {
	var restored Mask
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.endpoints {
		if d.endpoints[i].ejected && !d.forgotten {
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

// reportEvent reports an event of endpoint i to observers. The caller does not hold mu.
func (d *Detector) reportEvent(i int, kind observe.EndpointKind) {
	if d.key != nil {
		d.key.ReportEndpointEvent(observe.EndpointEvent{Endpoint: d.endpointName(i), Kind: kind})
	}
}

// updateEndpoint calls change for endpoint i with mu held. If that ejects or restores the endpoint, it reports the event.
func (d *Detector) updateEndpoint(i int, change func(*endpointState)) {
	d.mu.Lock()
	s := &d.endpoints[i]
	before := s.ejected
	change(s)
	if s.ejected && !before {
		s.lastProbe = d.calls
	}
	ejected, changed, isLogged := s.ejected, s.ejected != before && !d.forgotten, false
	entry := policy.Change{Kind: policy.KindEndpoint, Bad: ejected, Endpoint: d.endpointName(i)}
	if (ejected != before || ejected != s.logged) && !d.forgotten { // otherwise the ReportThrottle has no change to record or to report
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

// SelectPrimary returns the endpoint of a call's primary: the first endpoint in among that is not ejected. If all are ejected, it returns the
// endpoint with the fewest consecutive bad outcomes. It counts the call.
func (d *Detector) SelectPrimary(among Mask) int {
	d.mu.Lock()
	i := d.selectBest(among)
	isSilent := d.isUnresponsive(among, i)
	d.mu.Unlock()
	if isSilent {
		d.updateEndpoint(i, func(s *endpointState) { s.ejected, s.goodRun = true, 0 })
	}
	d.mu.Lock()
	i = d.selectBest(among)
	s := &d.endpoints[i]
	s.counters.Calls++
	if s.unansweredCalls++; s.unansweredCalls == 1 {
		s.unansweredSince = time.Now()
	}
	d.mu.Unlock()
	d.reportEvent(i, observe.EndpointCalled)
	return i
}

// isUnresponsive reports whether endpoint i has left more than ejectRun calls unanswered for much longer than the next endpoint takes to
// answer. So an endpoint can be ejected although no hedge was sent. The caller holds mu.
func (d *Detector) isUnresponsive(among Mask, i int) bool {
	s, next := &d.endpoints[i], d.findNext(among, i)
	return next >= 0 && !s.ejected && s.unansweredCalls > ejectRun && d.endpoints[next].expectedLatency > 0 && time.Since(s.unansweredSince) >= silenceFactor*d.endpoints[next].expectedLatency
}

// selectProbe returns the endpoint of the probe of a call whose primary uses endpoint primary; -1 if the call has no probe. The probe goes to
// an ejected endpoint before primary, or to a later endpoint that may be faster than median, the usual latency at primary. A probe that has
// no answer after limit is a bad outcome; limit 0 is no limit. It counts the call.
func (d *Detector) selectProbe(among Mask, primary int, median time.Duration) (i int, limit time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	for j := range MaxEndpoints {
		s, interval := &d.endpoints[j], probeInterval
		switch {
		case !among.Has(j) || j == primary:
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
			s.lastProbe = d.calls - interval + unpaidProbeInterval // recordProbe corrects it if the probe is paid for
			return j, limit
		}
	}
	return -1, 0
}

// needsLatencies reports whether more probes of the endpoint are necessary: few of its latencies are known, and it may be faster than median.
func (s *endpointState) needsLatencies(median time.Duration) bool {
	return s.samples < minLatencies && s.expectedLatency < median
}

// recordProbe records that the probe of a call was sent to endpoint i. If the probe measures the latency of i again, the endpoint has no
// latencies until it answers, and hedges of calls to endpoint primary are no longer known to lose: both may have been exceptions.
func (d *Detector) recordProbe(i, primary int, median time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	s.lastProbe = d.calls
	if !s.ejected && !s.needsLatencies(median) {
		s.samples, d.endpoints[primary].hedgesFutile = 0, false
	}
}

// findFirst returns the index of the first endpoint among the given ones that is not ejected, and the index of the ejected endpoint before it with the
// fewest consecutive bad outcomes; -1 if there is none. The caller holds mu.
func (d *Detector) findFirst(among Mask) (available, ejected int) {
	available, ejected = -1, -1
	for i := range MaxEndpoints {
		switch {
		case !among.Has(i):
		case !d.endpoints[i].ejected:
			return i, ejected
		case ejected < 0 || d.endpoints[i].badRun < d.endpoints[ejected].badRun:
			ejected = i
		}
	}
	return available, ejected
}

// selectBest returns the first endpoint in among that is not ejected; if all are, the endpoint with the fewest consecutive bad outcomes.
// The caller holds mu.
func (d *Detector) selectBest(among Mask) int {
	available, ejected := d.findFirst(among)
	if available < 0 {
		available = ejected
	}
	return max(available, 0)
}

// selectHedge returns the endpoint of the next hedge: the first endpoint in among that is neither used nor ejected; otherwise primary. One
// hedge in ten goes to an ejected endpoint after primary instead. Ejected endpoints before primary only get probes.
func (d *Detector) selectHedge(among, used Mask, primary int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	available, ejected := d.findFirst(among &^ used)
	if available >= 0 {
		if _, ejected = d.findFirst(among &^ used &^ maskUpTo(primary)); ejected > available {
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

// recordTrial counts an admitted hedge to endpoint i, so that one hedge in ten is a trial of an ejected endpoint. A denied hedge does not
// count: otherwise the budget could deny each trial.
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

// recordUnsentHedge counts a hedge that is not sent because all endpoints are ejected.
func (d *Detector) recordUnsentHedge() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.skippedTrials++
}

// firstAvailable returns the first endpoint that is not ejected, or 0 if all are.
func (d *Detector) firstAvailable(among Mask) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := d.selectBest(among); !d.endpoints[i].ejected {
		return i
	}
	return 0
}

// findNext returns the first endpoint other than i that is not ejected, or -1. The caller holds mu.
func (d *Detector) findNext(among Mask, i int) int {
	available, _ := d.findFirst(among &^ Mask(0).With(i))
	return available
}

// isNextSlower reports whether the next endpoint is known to take much longer than median, the usual latency of calls to endpoint i. It is
// false if median is 0.
func (d *Detector) isNextSlower(among Mask, i int, median time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.findNext(among, i)
	return next >= 0 && median > 0 && float64(d.endpoints[next].expectedLatency) >= slowerFactor*float64(median)
}

// isHealthy reports whether endpoint i is neither ejected nor suspected, and its last outcome was good.
func (d *Detector) isHealthy(i int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.endpoints[i].ejected && d.endpoints[i].badRun == 0 && !d.endpoints[i].suspected
}

// markSuspected records that a hedge at endpoint i did not win, where the primary was sent to endpoint i as well: i may be unhealthy.
func (d *Detector) markSuspected(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[i].suspected = true
}

// isLate reports whether an endpoint after endpoint i is known to answer in half of the time that has passed.
func (d *Detector) isLate(among Mask, i int, elapsed time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	next, _ := d.findFirst(among &^ maskUpTo(i))
	return next >= 0 && d.endpoints[next].samples >= minLatencies && elapsed >= lateAnswerFactor*d.endpoints[next].expectedLatency
}

// recordHedgeResult records whether a hedge of a call to endpoint i has won, or has lost though it had time to answer.
func (d *Detector) recordHedgeResult(i int, won bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[i].hedgesFutile = !won
}

// areHedgesFutile reports whether the last hedge of a call to endpoint i lost although it had time to answer. Late calls are then slow at any
// endpoint.
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

// withdrawHedge undoes recordHedge for a hedge that was not sent.
func (d *Detector) withdrawHedge(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[i].counters.Hedges--
}

// hasPromptAnswerSince reports whether endpoint i has answered a call promptly since the time then, see [latency].
func (d *Detector) hasPromptAnswerSince(i int, then time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.endpoints[i].lastPromptAnswer.After(then)
}

// recordAnswer records that endpoint i answered an attempt, and its latency took. It does not count an outcome.
func (d *Detector) recordAnswer(among Mask, i int, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	if next := d.findNext(among, i); next >= 0 && took < d.endpoints[next].expectedLatency {
		s.lastPromptAnswer = time.Now()
	}
	if s.samples == 0 {
		s.expectedLatency = took
	}
	s.samples = min(s.samples+1, minLatencies)
	s.expectedLatency += (took - s.expectedLatency) / 4
	s.unansweredCalls = 0
}

// recordNoAnswer records that an attempt at endpoint i ended after waited without an answer.
func (d *Detector) recordNoAnswer(i int, waited time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.endpoints[i]
	if waited < s.expectedLatency { // its caller could not expect an answer yet
		s.unansweredCalls = max(0, s.unansweredCalls-1)
	}
	s.expectedLatency = max(s.expectedLatency, waited)
}

// recordFailure records that an attempt at endpoint i has failed.
func (d *Detector) recordFailure(i int) {
	d.updateEndpoint(i, func(s *endpointState) {
		s.counters.Failures++
		s.ejectedAsSlow = false
		s.addBadOutcome()
	})
	d.reportEvent(i, observe.EndpointFailed)
}

// recordSuccess records that endpoint i answered in time.
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

// recordOvertaken records a bad outcome: endpoint i was slower than another endpoint or than the caller's deadline.
func (d *Detector) recordOvertaken(i int) {
	d.updateEndpoint(i, func(s *endpointState) {
		before := s.ejected
		s.counters.Overtaken++
		s.addBadOutcome()
		s.ejectedAsSlow = s.ejectedAsSlow || s.ejected && !before
	})
	d.reportEvent(i, observe.EndpointOvertaken)
}

// addBadOutcome counts a bad outcome. It ejects the endpoint if that exceeds ejectRun or ejectShare.
func (s *endpointState) addBadOutcome() {
	s.badShare += (1 - s.badShare) * outcomeWeight
	s.badRun++
	s.goodRun = 0
	if s.badRun >= ejectRun || s.badShare > ejectShare {
		s.ejected = true
	}
}

// requiredGoodRun returns the number of consecutive good outcomes that restore endpoint i. It is 1 if no primaries return to the endpoint:
// only hedges use it, an earlier endpoint gets the primaries, or all endpoints are ejected. The caller holds mu.
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
