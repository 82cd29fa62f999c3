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
	firstStage = time.Hour      // in which every pair is compared; without a verdict, half of the pairs are compared then
	staleAfter = 24 * time.Hour // without a compared pair, after which a verdict ends
	testBits   = 6              // one pair in 2^testBits tests a verdict: one every 43 minutes on average
	testPairs  = 16             // after which the test begins anew

	enoughCalls  = 28 // in the measured parts of a pair; with fewer, the next pair has no dark slot
	changedSlots = 10 // in a row whose mean latency differs by 30 % from that at the verdict begin a new trial

	never = math.MaxInt64 // a time at which no call begins
)

// An Audit is the experiment of one host. It is safe for concurrent use. Times are by the engine's clock, in
// nanoseconds; slots are by the time of day.
type Audit struct {
	hash uint64 // of the host; never changes

	// Written with mu held; calls read them without it.
	nextTurn  atomic.Int64 // when changeSlot is due
	openFrom  atomic.Int64 // when the measured part of the open slot begins
	countFrom atomic.Int64 // the same if its calls in flight are counted
	dark      atomic.Bool  // no hedge may start now
	news      atomic.Bool  // there is a result that TakeNews has not returned

	mu       sync.Mutex // guards the fields below
	slot     int64      // number of the present one
	compared bool       // the present pair has a dark slot
	begun    int        // measured calls of the slot before the open one
	open     slot       // whose calls are measured, until 6 s after its end
	first    summary    // of the first slot of the pair

	verdict     observe.Verdict
	reported    observe.Verdict // by TakeNews
	report      *observe.Audit  // all results except the verdict
	trial       *evidence
	arms        *arms   // nil: no slot was dark yet
	pairCame    int64   // when a pair was compared last
	level       float64 // mean latency when the verdict was found, in octaves; 0: not known
	otherLevels int     // slots in a row with another one
}

// New returns the audit of a host.
func New(host string) *Audit {
	h := fnv.New64a()
	h.Write([]byte(host))
	a := &Audit{
		hash: h.Sum64(), verdict: observe.AuditTrying, reported: observe.AuditTrying, report: new(observe.Audit), trial: &evidence{number: 1},
	}
	a.openFrom.Store(never)
	a.countFrom.Store(never)
	return a
}

// IsDark reports whether no hedge may start now. It is false for a nil Audit.
func (a *Audit) IsDark() bool { return a != nil && a.dark.Load() }

// BeginCall records a call that begins now. Wall returns the time of day at now.
func (a *Audit) BeginCall(now int64, wall func(now time.Time) time.Time) {
	if now >= a.nextTurn.Load() {
		a.mu.Lock()
		a.changeSlot(now, wall(time.Unix(0, now)).UnixNano())
		a.mu.Unlock()
	}
	if uint64(now-a.countFrom.Load()) < uint64(measured) {
		a.mu.Lock()
		a.open.beginCall(now)
		a.mu.Unlock()
	}
}

// EndCall records the result of a call that began at the given time, as BeginCall was told.
func (a *Audit) EndCall(began int64, r Result) {
	if uint64(began-a.openFrom.Load()) < uint64(measured) {
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
	return &a.arms.open
}

// changeSlot begins a new slot, or the measured part of the present one, if that is due. Wall is the time of day. The caller
// holds mu.
func (a *Audit) changeSlot(now, wall int64) {
	if now < a.nextTurn.Load() {
		return
	}
	number, at := wall/int64(slotLength), wall%int64(slotLength)
	if number != a.slot {
		a.beginSlot(number, at < int64(settling), now)
	}
	if at < int64(settling) {
		a.nextTurn.Store(now - at + int64(settling))
		return
	}
	if a.open.number != number {
		a.closeSlot(now)
		if a.compared && a.arms == nil {
			a.arms = new(arms)
		}
		if a.compared {
			a.arms.open = slotLatencies{}
		}
		a.open = slot{number: number, from: now - at + int64(settling), dark: a.dark.Load(), compared: a.compared}
		a.openFrom.Store(a.open.from)
		a.countFrom.Store(never)
		if a.open.counted = a.compared || !isDecided(a.verdict); a.open.counted {
			a.countFrom.Store(a.open.from)
		}
	}
	a.nextTurn.Store(now - at + int64(slotLength))
}

// beginSlot begins a slot, and decides whether it is dark. InTime says that its measured part is still to come. The caller
// holds mu.
func (a *Audit) beginSlot(number int64, inTime bool, now int64) {
	follows := inTime && number == a.slot+1 && a.open.number == a.slot
	a.open.spoilt = a.open.spoilt || !follows
	a.slot = number
	if a.trial.began == 0 {
		a.trial.began = now
	}
	if a.verdict != observe.AuditTrying && now-a.pairCame > int64(staleAfter) {
		a.beginTrial(observe.AuditTrying, now)
	}
	isSecond := number&1 == 1
	a.compared = follows && (isSecond && a.compared || !isSecond && a.begun+a.open.begun >= enoughCalls && a.isCompared(number>>1))
	a.setDark()
}

// setDark sets whether the present slot is dark. The caller holds mu.
func (a *Audit) setDark() {
	dark := a.verdict == observe.AuditOff
	if a.compared {
		dark = a.pairHash(a.slot>>1)>>32&1 == uint64(a.slot&1)
	}
	a.dark.Store(dark)
}

// isCompared reports whether a pair has a dark slot. It depends on nothing that differs within the pair.
func (a *Audit) isCompared(pair int64) bool {
	bits := 1
	switch {
	case a.verdict == observe.AuditTrying:
		bits = 0
	case isDecided(a.verdict):
		bits = testBits
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
	a.first, a.begun = s, a.open.begun
	if s.compared {
		a.arms.addSlot(&a.open, &s)
	}
	switch {
	case !a.open.spoilt && a.open.begun >= minCalls && a.hasLevelChanged(&s):
		a.beginTrial(observe.AuditTrying, now)
	case s.compared && s.number&1 == 1 && first.compared && first.number == s.number-1:
		if first.dark {
			a.comparePair(&first, &s, now)
		} else {
			a.comparePair(&s, &first, now)
		}
	}
}

// hasLevelChanged reports whether the mean latency has changed since the verdict: risen if calls are hedged, or fallen if
// they are not. The caller holds mu.
func (a *Audit) hasLevelChanged(s *summary) bool {
	isOff, changed := a.verdict == observe.AuditOff, s.level-a.level
	if isOff {
		changed = -changed
	}
	if a.level == 0 || s.dark != isOff {
		return false
	}
	a.otherLevels++
	if changed < math.Log2(1.3) {
		a.otherLevels = 0
	}
	return a.otherLevels >= changedSlots
}

// comparePair adds the difference of a pair to the evidence. The caller holds mu.
func (a *Audit) comparePair(dark, lit *summary, now int64) {
	a.pairCame = now
	a.news.Store(true)
	if min(dark.unended, lit.unended) > maxUnended {
		a.trial.slow++ // calls of one slot end in later slots
	} else {
		a.trial.addPair(dark.tail - lit.tail)
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
	case isDecided(a.verdict) && (v == a.verdict || a.trial.pairs >= testPairs):
		a.trial = &evidence{number: a.trial.number + 1, began: now}
	case a.verdict == observe.AuditTrying && now-a.trial.began > int64(firstStage):
		if v = observe.AuditSame; a.trial.slow > a.trial.pairs {
			v = observe.AuditUnclear
		}
		a.setVerdict(v, now)
	}
	if a.arms.pairs >= maxPairs {
		a.arms = nil
	}
}

// beginTrial sets a verdict that a new trial tests. The caller holds mu.
func (a *Audit) beginTrial(v observe.Verdict, now int64) {
	a.trial = &evidence{number: a.trial.number + 1, began: now}
	if v == observe.AuditTrying {
		*a.report, a.arms = observe.Audit{}, nil
	}
	a.setVerdict(v, now)
}

// setVerdict sets the verdict. The slots of the present pair are not compared any more: they began under another one.
// The caller holds mu.
func (a *Audit) setVerdict(v observe.Verdict, now int64) {
	a.verdict, a.pairCame, a.level, a.otherLevels = v, now, 0, 0
	if a.arms != nil {
		arm := a.arms.armOf(v == observe.AuditOff)
		a.level = arm.level / arm.slots
	}
	a.news.Store(true)
	a.compared, a.first.compared, a.open.compared, a.open.spoilt = false, false, false, true
	a.setDark()
}

// Reset forgets everything.
func (a *Audit) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trial.number = 0
	a.beginTrial(observe.AuditTrying, a.nextTurn.Load())
}

// TakeNews returns the results if they are new since the last call, and whether the verdict has changed.
func (a *Audit) TakeNews() (v observe.Audit, changed, ok bool) {
	if !a.news.Load() || !a.news.Swap(false) {
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

// View returns the results.
func (a *Audit) View() observe.Audit {
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
