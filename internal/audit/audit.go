// Package audit measures whether hedging helps a host or harms it. It is a switchback experiment: the time of day is
// divided into slots of 20 seconds, in pairs, and a hash of host and pair chooses the dark slot of each pair, in which no
// hedge is sent. Every client computes the same slots from the clock. So all clients of a host stop hedging
// at the same time, and each client sees in its own calls the effect of the hedges of all clients.
//
// The analysis is by intention to treat: every call that begins in the measured part of a slot counts there, hedged or
// not, failed or not, ended or not. The verdict rests on one number for each pair, see [evidence].
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
	fullTrialPeriod = time.Hour      // in which every pair is compared; without a verdict, half of the pairs are compared then
	verdictLifetime = 24 * time.Hour // without a compared pair, after which a verdict ends
	retestBits      = 6              // one pair in 2^testBits tests a verdict: one every 43 minutes on average
	retestPairs     = 16             // after which the test begins anew

	minPairCalls       = 28 // in the measured parts of a pair; with fewer, the next pair has no dark slot
	latencyChangeSlots = 10 // in a row whose mean latency differs by 30 % from that at the verdict begin a new trial

	never = math.MaxInt64 // a time at which no call begins
)

// An Audit is the experiment of one host. It is safe for concurrent use. Times are by the engine's clock, in
// nanoseconds; slots are by the time of day.
type Audit struct {
	hash uint64 // of the host; never changes

	// Written with mu held; calls read them without it.
	nextChange    atomic.Int64 // when changeSlot is due
	measuredFrom  atomic.Int64 // when the measured part of the open slot begins
	inFlightFrom  atomic.Int64 // the same if its calls in flight are counted
	hedgingOff    atomic.Bool  // no hedge may start now
	hasNewResults atomic.Bool  // there is a result that TakeNews has not returned

	mu            sync.Mutex // guards the fields below
	slot          int64      // number of the present one
	compared      bool       // the present pair has a dark slot
	previousCalls int        // measured calls of the slot before the open one
	open          slot       // whose calls are measured, until 6 s after its end
	first         summary    // of the first slot of the pair

	verdict        observe.Verdict
	reported       observe.Verdict // by TakeNews
	report         *observe.Audit  // all results except the verdict
	trial          *evidence
	arms           *arms   // nil: no slot was dark yet
	lastPairAt     int64   // when a pair was compared last
	verdictLatency float64 // mean latency when the verdict was found, in octaves; 0: not known
	changedSlots   int     // slots in a row with another one
}

// New returns the audit of a host.
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

// IsHedgingOff reports whether no hedge may start now. It is false for a nil Audit.
func (a *Audit) IsHedgingOff() bool { return a != nil && a.hedgingOff.Load() }

// BeginCall records a call that begins now. Wall returns the time of day at now.
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

// EndCall records the result of a call that began at the given time, as BeginCall was told.
func (a *Audit) EndCall(began int64, r Result) {
	if uint64(began-a.measuredFrom.Load()) < uint64(measuredLength) {
		a.mu.Lock()
		a.open.endCall(began, r, a.openLatencies())
		a.mu.Unlock()
	}
}

// openLatencies returns the latencies of the open slot; nil if no slot was compared. The caller holds mu.
func (a *Audit) openLatencies() *slotLatencies {
	if a.arms == nil {
		return nil
	}
	return &a.arms.openLatencies
}

// changeSlot begins a new slot, or the measured part of the present one, if that is due. Wall is the time of day. The caller
// holds mu.
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

// beginSlot begins a slot, and decides whether it is dark. InTime says that its measured part is still to come. The caller
// holds mu.
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

// updateHedgingOff sets whether the present slot is dark. The caller holds mu.
func (a *Audit) updateHedgingOff() {
	dark := a.verdict == observe.AuditOff
	if a.compared {
		dark = a.pairHash(a.slot>>1)>>32&1 == uint64(a.slot&1)
	}
	a.hedgingOff.Store(dark)
}

// shouldComparePair reports whether a pair has a dark slot. It depends on nothing that differs within the pair.
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

// pairHash returns the hash of the host and a pair. It is the same in every version, or clients would not agree.
func (a *Audit) pairHash(pair int64) uint64 {
	z := a.hash + uint64(pair)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// closeSlot takes the result of the open slot, which is over. The caller holds mu.
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

// hasLatencyChanged reports whether the mean latency has changed since the verdict: risen if calls are hedged, or fallen if
// they are not. The caller holds mu.
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

// comparePair adds the difference of a pair to the evidence. The caller holds mu.
func (a *Audit) comparePair(dark, lit *summary, now int64) {
	a.lastPairAt = now
	a.hasNewResults.Store(true)
	if min(dark.unendedShare, lit.unendedShare) > maxUnendedShare {
		a.trial.slowPairs++ // calls of one slot end in later slots
	} else {
		a.trial.addPair(dark.tailLatency - lit.tailLatency)
		a.arms.addPair(dark, lit)
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

// beginTrial sets a verdict that a new trial tests. The caller holds mu.
func (a *Audit) beginTrial(v observe.Verdict, now int64) {
	a.trial = &evidence{number: a.trial.number + 1, startedAt: now}
	if v == observe.AuditTrying {
		*a.report, a.arms = observe.Audit{}, nil
	}
	a.setVerdict(v, now)
}

// setVerdict sets the verdict. The slots of the present pair are not compared any more: they began under another one.
// The caller holds mu.
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

// Reset forgets everything.
func (a *Audit) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trial.number = 0
	a.beginTrial(observe.AuditTrying, a.nextChange.Load())
}

// TakeNewResults returns the results if they are new since the last call, and whether the verdict has changed.
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

// Verdict returns the verdict; "" for a nil Audit.
func (a *Audit) Verdict() observe.Verdict {
	if a == nil {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.verdict
}

// Report returns the results.
func (a *Audit) Report() observe.Audit {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.currentReport()
}

// currentReport is View. The caller holds mu.
func (a *Audit) currentReport() observe.Audit {
	v := *a.report
	v.Verdict = a.verdict
	return v
}
