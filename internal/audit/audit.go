// Package audit measures whether hedging helps or harms the calls to a host. It is a switchback experiment: the time of day is
// divided into slots of 20 seconds, and two consecutive slots are a pair.
//
// A hash of host and pair chooses the control slot of the pair, in which no hedges are sent. In the other slot, the treatment
// slot, hedges are sent as usual.
//
// All clients compute the same slots from the clock. Therefore all clients of a host stop hedging at the same time. The calls
// of each client show the effect of the hedges of all clients.
//
// The analysis is by intention to treat: each call that begins in the measured part of a slot counts there, whether it was
// hedged, failed or has not ended. The verdict depends on one number for each pair: the difference between the latencies of the
// slowest calls in its two slots.
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
	fullTrialPeriod = time.Hour      // duration of the first part of a trial, in which every pair has a control slot; after it, half of the pairs have one
	verdictLifetime = 24 * time.Hour // a verdict ends when no pair has been compared for this time
	retestBits      = 6              // when the verdict is decided, one pair in 2^retestBits has a control slot: one every 43 minutes on average
	retestPairs     = 16             // the test of a decided verdict starts again after this number of pairs

	minPairCalls       = 28 // after a pair with fewer measured calls, the next pair has no control slot
	latencyChangeSlots = 10 // number of consecutive slots whose mean latency must differ by 30 % from that at the verdict, to start a new trial

	never = math.MaxInt64 // a time that no call reaches
)

// An Audit measures by an experiment whether hedging helps or harms the calls to one host. All keys of the host share it,
// and it is safe for concurrent use. Times are nanoseconds of the engine's clock. Slots are computed from the time of day,
// so that all clients have the same slots.
type Audit struct {
	hash uint64 // hash of the host; never changes

	// These fields are written while mu is held. Calls read them without mu.
	nextChange    atomic.Int64 // time at which the next slot, or the measured part of the current slot, starts
	measuredFrom  atomic.Int64 // start of the measured part of the slot open; never: there is none
	inFlightFrom  atomic.Int64 // measuredFrom if calls of the slot open are counted when they begin; otherwise never
	hedgingOff    atomic.Bool  // no hedge may start now
	hasNewResults atomic.Bool  // there are results that TakeNewResults has not returned yet

	mu              sync.Mutex // guards the fields that follow
	slot            int64      // number of the current slot since 1970
	compared        bool       // the current pair has a control slot and will be compared
	previousCalls   int        // number of measured calls in the slot before open
	open            slot       // slot whose calls are being measured; it is closed 6 s after its end
	previousSummary summary    // summary of the slot that was closed last

	verdict    observe.Verdict // current verdict
	reported   observe.Verdict // verdict that the latest TakeNewResults returned
	report     *observe.Audit  // results of the audit; its Verdict is not used
	trial      *evidence       // evidence of the current trial, which looks for a verdict or retests it
	arms       *experimentArms // statistics for the report; nil: no pair had a control slot since the last reset
	lastPairAt int64           // time at which the latest pair was compared or the latest verdict was set
	// verdictLatency is the mean latency of the calls when the verdict was set: log2 of the nanoseconds minus lowestExponent.
	// It is 0 if unknown.
	verdictLatency float64
	changedSlots   int // number of consecutive slots whose mean latency differs from verdictLatency
}

// New returns an Audit for the given host, which has no results yet.
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

// IsHedgingOff reports whether no hedge may start now, because of a control slot or because the verdict is AuditOff. It is
// false if a is nil.
func (a *Audit) IsHedgingOff() bool { return a != nil && a.hedgingOff.Load() }

// BeginCall records a call that begins at the time now, in nanoseconds of the engine's clock. The function wall must convert a
// time of the engine's clock to the time of day.
func (a *Audit) BeginCall(now int64, wall func(now time.Time) time.Time) {
	if now >= a.nextChange.Load() {
		a.mu.Lock()
		a.advanceSlot(now, wall(time.Unix(0, now)).UnixNano())
		a.mu.Unlock()
	}
	if uint64(now-a.inFlightFrom.Load()) < uint64(measuredLength) {
		a.mu.Lock()
		a.open.beginCall(now)
		a.mu.Unlock()
	}
}

// EndCall adds the result r of an ended call to the slot in which the call began. The argument began is the time that was
// passed to BeginCall for this call.
func (a *Audit) EndCall(began int64, r Result) {
	if uint64(began-a.measuredFrom.Load()) < uint64(measuredLength) {
		a.mu.Lock()
		a.open.endCall(began, r, a.openLatencies())
		a.mu.Unlock()
	}
}

// openLatencies returns the histograms to which the calls of the slot that is being measured are added. It returns nil if no
// pair had a control slot since the last reset. The caller must hold mu.
func (a *Audit) openLatencies() *slotLatencies {
	if a.arms == nil {
		return nil
	}
	return &a.arms.openLatencies
}

// advanceSlot starts the next slot, or the measured part of the current slot, if its start time has come. The argument now is
// the time of the engine's clock, and wall the Unix time, both in nanoseconds. The caller must hold mu.
func (a *Audit) advanceSlot(now, wall int64) {
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
			a.arms = new(experimentArms)
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

// beginSlot starts the slot with the given number, and decides whether its pair is compared and whether hedging is off in
// it. inTime is true if the measured part of the slot has not started yet; otherwise the slot cannot be compared. The caller
// must hold mu.
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

// updateHedgingOff decides whether hedging is off in the current slot. In a compared pair, hedging is off in the control slot.
// In other pairs, it is off if the verdict is AuditOff. The caller must hold mu.
func (a *Audit) updateHedgingOff() {
	isOff := a.verdict == observe.AuditOff
	if a.compared {
		isOff = a.pairHash(a.slot>>1)>>32&1 == uint64(a.slot&1)
	}
	a.hedgingOff.Store(isOff)
}

// shouldComparePair reports whether a control slot is planned for the pair of slots with the given number. Every pair has
// one in the first hour of a trial, and half of the pairs after that. When the verdict is decided, only a few pairs have
// one. The caller must hold mu.
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

// pairHash returns a hash of the host and the pair number, made with SplitMix64. It must never change between versions of this
// package, because all clients must choose the same control slots.
func (a *Audit) pairHash(pair int64) uint64 {
	z := a.hash + uint64(pair)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// closeSlot evaluates the slot whose calls were measured so far, the field open. If it was the second slot of a compared
// pair, closeSlot also compares the pair. The caller must hold mu.
func (a *Audit) closeSlot(now int64) {
	first, s := a.previousSummary, a.open.makeSummary(a.openLatencies())
	a.previousSummary, a.previousCalls = s, a.open.calls
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

// hasLatencyChanged reports whether the verdict is outdated because the latency has changed. This is so if the mean latency
// of latencyChangeSlots consecutive slots differs by at least 30 % from the mean latency at the verdict.
//
// If the verdict is AuditOff, only a decrease counts, and otherwise only an increase. The argument s is the summary of the
// slot that was just closed. The caller must hold mu.
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

// comparePair adds the difference between control and treatment, the two slots of a pair, to the evidence, and updates the
// verdict. The caller must hold mu.
func (a *Audit) comparePair(control, treatment *summary, now int64) {
	a.lastPairAt = now
	a.hasNewResults.Store(true)
	if min(control.unendedShare, treatment.unendedShare) > maxUnendedShare {
		a.trial.slowPairs++ // calls of one slot end in later slots
	} else {
		a.trial.addPair(control.tailLatency - treatment.tailLatency)
		a.arms.addPair(control, treatment)
	}
	a.arms.fillReport(a.report)
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

// beginTrial sets the verdict v and starts a new trial, which collects evidence for or against it. If v is AuditTrying,
// which means that there is no verdict, beginTrial also deletes all results. The caller must hold mu.
func (a *Audit) beginTrial(v observe.Verdict, now int64) {
	a.trial = &evidence{number: a.trial.number + 1, startedAt: now}
	if v == observe.AuditTrying {
		*a.report, a.arms = observe.Audit{}, nil
	}
	a.setVerdict(v, now)
}

// setVerdict sets the verdict v, and stores the mean latency so far for hasLatencyChanged. The current pair of slots is not
// compared, because it started under another verdict. The caller must hold mu.
func (a *Audit) setVerdict(v observe.Verdict, now int64) {
	a.verdict, a.lastPairAt, a.verdictLatency, a.changedSlots = v, now, 0, 0
	if a.arms != nil {
		arm := a.arms.armOf(v == observe.AuditOff)
		a.verdictLatency = arm.latencySum / arm.slots
	}
	a.hasNewResults.Store(true)
	a.compared, a.previousSummary.compared, a.open.compared, a.open.invalid = false, false, false, true
	a.updateHedgingOff()
}

// Reset deletes all results and the verdict, so that the audit starts with its first trial again.
func (a *Audit) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trial.number = 0
	a.beginTrial(observe.AuditTrying, a.nextChange.Load())
}

// TakeNewResults returns the results of the audit if there are new ones since its last call. Otherwise ok is false. changed is
// true if the verdict differs from the one that the last call returned.
func (a *Audit) TakeNewResults() (v observe.Audit, changed, ok bool) {
	if !a.hasNewResults.Load() || !a.hasNewResults.Swap(false) {
		return v, false, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = a.reported != a.verdict
	a.reported = a.verdict
	return a.reportLocked(), changed, true
}

// Verdict returns the current verdict. It returns "" if a is nil.
func (a *Audit) Verdict() observe.Verdict {
	if a == nil {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.verdict
}

// Report returns the current results, including the verdict.
func (a *Audit) Report() observe.Audit {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reportLocked()
}

// reportLocked is Report for a caller that holds mu.
func (a *Audit) reportLocked() observe.Audit {
	v := *a.report
	v.Verdict = a.verdict
	return v
}
