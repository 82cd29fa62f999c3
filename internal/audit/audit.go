// Package audit measures whether hedging helps or harms the calls to a host. It is a switchback experiment: the time of day is
// divided into slots of 20 seconds, and two consecutive slots are a pair. A hash of host and pair chooses the control slot of the
// pair, in which no hedge is sent. In the other slot, the treatment slot, hedges are sent as usual.
//
// Every client computes the same slots from the clock. So all clients of a host stop hedging at the same time, and the calls of
// each client show the effect of the hedges of all clients.
//
// The analysis is by intention to treat: every call that begins in the measured part of a slot counts there, whether it was
// hedged, failed or has not ended. The verdict depends on one number for each pair, see [evidence].
package audit

import (
	"hash/fnv"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	fullTrialPeriod = time.Hour      // first part of a trial, in which every pair is compared; later, half of the pairs are
	verdictLifetime = 24 * time.Hour // time without a compared pair after which a verdict ends
	retestBits      = 6              // after a verdict, one pair in 2^retestBits is compared: one every 43 minutes on average
	retestPairs     = 16             // number of pairs without another verdict after which the test of a verdict starts again

	minPairCalls       = 28 // if a pair has fewer calls in its measured parts, the next pair has no control slot
	latencyChangeSlots = 10 // number of consecutive slots whose mean latency must differ by 30 % from that at the verdict to start a new trial

	never = math.MaxInt64 // a time that no call reaches
)

// An Audit is the experiment for one host. It is safe for concurrent use. Times are nanoseconds of the engine's clock, but slots are
// computed from the time of day.
type Audit struct {
	hash uint64 // hash of the host; never changes

	// Written with mu held, and read by calls without it.
	nextChange    atomic.Int64 // time at which changeSlot is due
	measuredFrom  atomic.Int64 // start of the measured part of the open slot
	inFlightFrom  atomic.Int64 // measuredFrom if the calls in flight of the open slot are counted; otherwise never
	hedgingOff    atomic.Bool  // no hedge may start now
	hasNewResults atomic.Bool  // there are results that TakeNewResults has not returned

	mu            sync.Mutex // guards the fields below
	slot          int64      // number of the current slot, counted since 1970
	compared      bool       // the current pair has a control slot
	previousCalls int        // measured calls of the slot before the open slot
	open          slot       // the slot whose calls are measured; it is closed 6 s after its end
	first         summary    // summary of the first slot of the pair

	verdict        observe.Verdict
	reported       observe.Verdict // verdict that TakeNewResults has returned last
	report         *observe.Audit  // all results except the verdict
	trial          *evidence       // evidence of the current trial, which looks for a verdict or tests it
	arms           *arms           // statistics for the report; nil: no pair had a control slot yet
	lastPairAt     int64           // time at which a pair was compared last
	verdictLatency float64         // mean latency at the verdict, as log2 of the nanoseconds minus lowestExponent; 0: not known
	changedSlots   int             // number of consecutive slots whose mean latency differs from verdictLatency
}

// New returns an Audit for the host, without any result.
func New(host string) *Audit {
	h := fnv.New64a()
	h.Write([]byte(host))
	a := &Audit{
		hash: h.Sum64(), verdict: observe.AuditTrying, reported: observe.AuditTrying, report: new(observe.Audit), trial: &evidence{number: 1},
	}
	a.measuredFrom.Store(never)
	a.inFlightFrom.Store(never)
	return a
}

// IsHedgingOff reports whether no hedge may start now. It is false if a is nil.
func (a *Audit) IsHedgingOff() bool { return a != nil && a.hedgingOff.Load() }

// BeginCall records a call that begins at the time now. The function wall converts a time of the engine's clock to the time of day.
func (a *Audit) BeginCall(now int64, wall func(now time.Time) time.Time) {
	if now >= a.nextChange.Load() {
		a.mu.Lock()
		a.changeSlot(now, wall(time.Unix(0, now)).UnixNano())
		a.mu.Unlock()
	}
	if uint64(now-a.inFlightFrom.Load()) < uint64(measuredLength) {
		a.mu.Lock()
		a.open.beginCall(now)
		a.mu.Unlock()
	}
}

// EndCall records the result of a call. The argument began is the time that was passed to BeginCall.
func (a *Audit) EndCall(began int64, r Result) {
	if uint64(began-a.measuredFrom.Load()) < uint64(measuredLength) {
		a.mu.Lock()
		a.open.endCall(began, r, a.openLatencies())
		a.mu.Unlock()
	}
}

// openLatencies returns the latencies of the open slot; nil if no slot is compared. The caller holds mu.
func (a *Audit) openLatencies() *slotLatencies {
	if a.arms == nil {
		return nil
	}
	return &a.arms.openLatencies
}

// changeSlot starts the next slot, or the measured part of the current slot, if its time has come. The argument wall is the time of day in
// nanoseconds. The caller holds mu.
func (a *Audit) changeSlot(now, wall int64) {
	if now < a.nextChange.Load() {
		return
	}
	number, at := wall/int64(slotLength), wall%int64(slotLength)
	if number != a.slot {
		a.beginSlot(number, at < int64(washout), now)
	}
	if at < int64(washout) {
		a.nextChange.Store(now - at + int64(washout))
		return
	}
	if a.open.number != number {
		a.closeSlot(now)
		if a.compared && a.arms == nil {
			a.arms = new(arms)
		}
		if a.compared {
			a.arms.openLatencies = slotLatencies{}
		}
		a.open = slot{number: number, measuredFrom: now - at + int64(washout), hedgingOff: a.hedgingOff.Load(), compared: a.compared}
		a.measuredFrom.Store(a.open.measuredFrom)
		a.inFlightFrom.Store(never)
		if a.open.countsInFlight = a.compared || !isDecided(a.verdict); a.open.countsInFlight {
			a.inFlightFrom.Store(a.open.measuredFrom)
		}
	}
	a.nextChange.Store(now - at + int64(slotLength))
}

// beginSlot starts a slot, and decides whether hedging is off in it. The argument inTime is true if the measured part has not started yet.
// The caller holds mu.
func (a *Audit) beginSlot(number int64, inTime bool, now int64) {
	follows := inTime && number == a.slot+1 && a.open.number == a.slot
	a.open.invalid = a.open.invalid || !follows
	a.slot = number
	if a.trial.startedAt == 0 {
		a.trial.startedAt = now
	}
	if a.verdict != observe.AuditTrying && now-a.lastPairAt > int64(verdictLifetime) {
		a.beginTrial(observe.AuditTrying, now)
	}
	isSecond := number&1 == 1
	a.compared = follows && (isSecond && a.compared || !isSecond && a.previousCalls+a.open.calls >= minPairCalls && a.shouldComparePair(number>>1))
	a.updateHedgingOff()
}

// updateHedgingOff stores whether hedging is off. In a compared pair, it is off in the control slot. In other pairs, it is off if the
// verdict is AuditOff. The caller holds mu.
func (a *Audit) updateHedgingOff() {
	isOff := a.verdict == observe.AuditOff
	if a.compared {
		isOff = a.pairHash(a.slot>>1)>>32&1 == uint64(a.slot&1)
	}
	a.hedgingOff.Store(isOff)
}

// shouldComparePair reports whether the pair has a control slot. At first every pair has one, after fullTrialPeriod half of the pairs, and
// after a verdict a few.
func (a *Audit) shouldComparePair(pair int64) bool {
	bits := 1
	switch {
	case a.verdict == observe.AuditTrying:
		bits = 0
	case isDecided(a.verdict):
		bits = retestBits
	}
	return a.pairHash(pair)&(1<<bits-1) == 0
}

// pairHash returns a hash of the host and the pair (SplitMix64). It must be the same in every version of this package, because all clients
// must choose the same control slots.
func (a *Audit) pairHash(pair int64) uint64 {
	z := a.hash + uint64(pair)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// closeSlot evaluates the open slot, which has ended. If it was the second slot of a compared pair, it evaluates the pair. The caller holds
// mu.
func (a *Audit) closeSlot(now int64) {
	first, s := a.first, a.open.makeSummary(a.openLatencies())
	a.first, a.previousCalls = s, a.open.calls
	if s.compared {
		a.arms.addSlot(&a.open, &s)
	}
	switch {
	case !a.open.invalid && a.open.calls >= minSlotCalls && a.hasLatencyChanged(&s):
		a.beginTrial(observe.AuditTrying, now)
	case s.compared && s.number&1 == 1 && first.compared && first.number == s.number-1:
		if first.hedgingOff {
			a.comparePair(&first, &s, now)
		} else {
			a.comparePair(&s, &first, now)
		}
	}
}

// hasLatencyChanged reports whether the mean latency differs by 30 % from that at the verdict, in latencyChangeSlots consecutive slots.
// With hedging on, only an increase counts; with hedging off, only a decrease. The caller holds mu.
func (a *Audit) hasLatencyChanged(s *summary) bool {
	isOff, changed := a.verdict == observe.AuditOff, s.meanLatency-a.verdictLatency
	if isOff {
		changed = -changed
	}
	if a.verdictLatency == 0 || s.hedgingOff != isOff {
		return false
	}
	a.changedSlots++
	if changed < math.Log2(1.3) {
		a.changedSlots = 0
	}
	return a.changedSlots >= latencyChangeSlots
}

// comparePair adds the difference between the two slots of a pair to the evidence, and updates the verdict. The caller holds mu.
func (a *Audit) comparePair(control, treatment *summary, now int64) {
	a.lastPairAt = now
	a.hasNewResults.Store(true)
	if min(control.unendedShare, treatment.unendedShare) > maxUnendedShare {
		a.trial.slowPairs++ // calls of one slot end in later slots
	} else {
		a.trial.addPair(control.tailLatency - treatment.tailLatency)
		a.arms.addPair(control, treatment)
	}
	a.arms.writeReport(a.report)
	v := a.trial.verdict()
	if !isDecided(a.verdict) || isDecided(v) && v != a.verdict {
		a.report.Confidence = a.trial.confidence()
	}
	switch {
	case isDecided(v) && v != a.verdict:
		a.beginTrial(v, now)
	case isDecided(a.verdict) && (v == a.verdict || a.trial.pairs >= retestPairs):
		a.trial = &evidence{number: a.trial.number + 1, startedAt: now}
	case a.verdict == observe.AuditTrying && now-a.trial.startedAt > int64(fullTrialPeriod):
		if v = observe.AuditSame; a.trial.slowPairs > a.trial.pairs {
			v = observe.AuditUnclear
		}
		a.setVerdict(v, now)
	}
	if a.arms.pairs >= maxArmPairs {
		a.arms = nil
	}
}

// beginTrial sets the verdict v, and starts a trial that tests it. The verdict AuditTrying also deletes all results. The caller holds mu.
func (a *Audit) beginTrial(v observe.Verdict, now int64) {
	a.trial = &evidence{number: a.trial.number + 1, startedAt: now}
	if v == observe.AuditTrying {
		*a.report, a.arms = observe.Audit{}, nil
	}
	a.setVerdict(v, now)
}

// setVerdict sets the verdict. The current pair does not count, because it started under another verdict. The caller holds mu.
func (a *Audit) setVerdict(v observe.Verdict, now int64) {
	a.verdict, a.lastPairAt, a.verdictLatency, a.changedSlots = v, now, 0, 0
	if a.arms != nil {
		arm := a.arms.armOf(v == observe.AuditOff)
		a.verdictLatency = arm.latencySum / arm.slots
	}
	a.hasNewResults.Store(true)
	a.compared, a.first.compared, a.open.compared, a.open.invalid = false, false, false, true
	a.updateHedgingOff()
}

// Reset deletes all results and starts the first trial again.
func (a *Audit) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trial.number = 0
	a.beginTrial(observe.AuditTrying, a.nextChange.Load())
}

// TakeNewResults returns the results, and whether the verdict has changed since the last call. ok is false if there are no new results.
func (a *Audit) TakeNewResults() (v observe.Audit, changed, ok bool) {
	if !a.hasNewResults.Load() || !a.hasNewResults.Swap(false) {
		return v, false, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = a.reported != a.verdict
	a.reported = a.verdict
	return a.currentReport(), changed, true
}

// Verdict returns the current verdict; "" if a is nil.
func (a *Audit) Verdict() observe.Verdict {
	if a == nil {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.verdict
}

// Report returns the current results with the verdict.
func (a *Audit) Report() observe.Audit {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.currentReport()
}

// currentReport is Report for a caller that holds mu.
func (a *Audit) currentReport() observe.Audit {
	v := *a.report
	v.Verdict = a.verdict
	return v
}
