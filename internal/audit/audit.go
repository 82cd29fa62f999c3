// Package audit finds out whether hedging helps a host or harms it. One caller sees neither
// what its hedges do to others nor what theirs do to it. But the time of day is divided
// into slots, in pairs, and of each pair a hash of host and pair makes one slot dark: in
// that, hedging rests. Every client computes the same slots from the clock, so all of a host's
// clients rest at once, and each sees the effect of all of them in its own latencies.
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
	slotLength = 20 * time.Second
	settling   = 6 * time.Second // of a slot, in which queues forget the slot before; calls begun then are not measured

	// After a verdict one pair in 2^probeBits, every 43 minutes on average, is a probe, with
	// a dark slot and one in which calls are hedged. Before it, more are.
	probeBits = 6

	maxProbes    = 16               // pairs that are remembered after a verdict
	longTrial    = 24 * time.Minute // after which no difference is found
	verdictLasts = 24 * time.Hour   // without a probe

	enoughCalls = 28 // measured in a pair; with fewer, one a second, no slot is dark
	minSlot     = 10 // measured calls in a slot that counts

	steadyCalls = 200 // in a dark slot are enough to tell its level; if that has changed, half of the evidence is forgotten
)

// Settings say how hosts are audited. The zero value makes every pair a probe, from
// the first call until the first verdict.
type Settings struct {
	After time.Duration // no slot is dark until a host has had calls for so long
	Bits  int           // until the first verdict one pair in 2^Bits is a probe
}

// An Audit is that of a host. It is safe for concurrent use.
type Audit struct {
	how  Settings // never changes
	host uint64   // its hash; never changes

	// Written with mu held; calls read them without it.
	next  atomic.Int64 // when Turn is due, by the engine's clock
	dark  atomic.Bool  // no hedge may start now
	found atomic.Int32 // verdict, for Verdict
	fresh atomic.Int64 // number of the slot that begins with an empty bucket; 0: this one does not

	// Of whoever comes; mu is not needed.
	hedges atomic.Int32 // that began in this slot; Turn takes them
	news   atomic.Bool  // there is something to tell; News takes it

	mu       sync.Mutex // guards the fields below
	slot     int64      // number of the present one
	start    int64      // the first call's, by the engine's clock
	cur      slotSum
	last     slotSum // the slot before
	first    slotSum // of the pair
	measured int32   // calls of the pair
	enough   bool    // of them in the pair before
	verdict  verdict
	told     verdict // by News
	since    int64   // when the verdict was found, by the engine's clock
	heard    int64   // when there was evidence last, by the engine's clock
	trial    evidence
	probes   evidence
	levels   levels

	base  int    // index at which the histograms begin
	tails *tails // nil: no slot was dark yet
}

// New returns the audit of a host.
func New(how Settings, host string) *Audit {
	h := fnv.New64a()
	h.Write([]byte(host))
	return &Audit{how: how, host: h.Sum64()}
}

// Due reports whether Turn is due, at a time by the engine's clock.
func (a *Audit) Due(now int64) bool { return now >= a.next.Load() }

// Dark reports whether no hedge may start now.
func (a *Audit) Dark() bool { return a.dark.Load() }

// Fresh returns the number of the present slot if it follows a dark one, and 0 if it does not. The bucket is then
// to be emptied: what it has saved up in the dark slot would allow more hedges than usual.
func (a *Audit) Fresh() int64 { return a.fresh.Load() }

// Hedged counts n hedges that begin.
func (a *Audit) Hedged(n int32) { a.hedges.Add(n) }

// Verdict returns the verdict so far; none for a nil Audit.
func (a *Audit) Verdict() observe.Verdict {
	if a == nil {
		return ""
	}
	return words[a.found.Load()]
}

// Judged reports whether there is a verdict.
func (a *Audit) Judged() bool { return verdict(a.found.Load()) != trying }

// slotSum is what the measured calls of a slot add up to.
type slotSum struct {
	from, to int64 // when they begin, by the engine's clock
	probe    bool  // one slot of the pair is dark
	dark     bool  // nothing is hedged in this one
	spoilt   bool  // not all of it was seen
	open     bool  // it is over, but calls begun in it may still end
	second   bool  // of the pair
	calls    int32
	hedges   int32
	level    int64 // in indices, see [sketch.Index]
}

func (s *slotSum) mean() float64 { return float64(s.level) / float64(s.calls) }

// mixed returns the hash of the host and a pair. It is the same in every version, or
// clients would not agree.
func (a *Audit) mixed(pair int64) uint64 {
	z := a.host + uint64(pair)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// probed reports whether the pair is a probe.
func (a *Audit) probed(pair int64) bool {
	n := a.how.Bits
	switch {
	case a.verdict != trying:
		n = probeBits
	case a.levels.hadVerdict():
		n = 0 // it has had a verdict
	}
	return a.mixed(pair)&(1<<n-1) == 0
}

// Turn does what is due at the beginning of a slot, and at that of its measured part: now is
// by the engine's clock, and wall is the time of day.
func (a *Audit) Turn(now int64, wall time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now < a.next.Load() {
		return
	}
	t := wall.UnixNano()
	at := t % int64(slotLength)
	if slot := t / int64(slotLength); slot != a.slot {
		a.advance(slot, at, now)
	}
	if at < int64(settling) {
		a.next.Store(now - at + int64(settling))
		return
	}
	a.finish()
	a.next.Store(now - at + int64(slotLength))
}

// advance begins a slot, of which the time at has passed. The caller holds mu.
func (a *Audit) advance(slot, at, now int64) {
	seen := at < int64(settling)
	next := slot == a.slot+1 && seen
	a.cur.hedges = a.hedges.Swap(0)
	a.cur.spoilt = a.cur.spoilt || !next
	a.finish()
	before := a.dark.Load()
	if a.start == 0 {
		a.start, a.since = now, now
	} else {
		a.last = a.cur
		a.last.open = true
	}
	a.slot = slot
	s := slotSum{from: now - at + int64(settling), to: now - at + int64(slotLength), spoilt: !seen, second: slot&1 == 1}
	pair := slot >> 1
	switch {
	case !s.second:
		a.enough = a.measured >= enoughCalls
		a.measured = 0
		s.probe = seen && a.enough && a.cur.calls > 0 && now-a.start >= int64(a.how.After) && a.probed(pair)
	case next:
		s.probe = a.cur.probe
	}
	if a.verdict != trying && now-a.heard > int64(verdictLasts) {
		a.levels.judged = [verdicts][2]float64{}
		a.decide(trying, now)
		s.probe = false // it was begun under another verdict
	}
	if s.probe && a.tails == nil {
		a.tails, a.base = new(tails), int(a.cur.mean()-octave)
	}
	a.cur = s
	a.shade(before)
}

// shade says whether what is left of the slot is dark; before says whether it was dark until now. The caller holds mu.
func (a *Audit) shade(before bool) {
	a.cur.dark = a.verdict == harmful
	if a.cur.probe {
		a.cur.dark = a.cur.second == (a.mixed(a.slot>>1)>>32&1 == 1)
	}
	a.dark.Store(a.cur.dark)
	a.fresh.Store(0)
	if before && !a.cur.dark {
		a.fresh.Store(a.slot)
	}
}

// finish takes what the last slot says, once its calls have ended. The caller holds mu.
func (a *Audit) finish() {
	if !a.last.open {
		return
	}
	a.last.open = false
	s := a.last
	whole := s.second && !s.spoilt && !a.first.spoilt && a.first.probe && s.probe
	if !s.second {
		a.first = s
	}
	verdict := a.verdict
	if !s.spoilt && s.calls >= minSlot && verdict != trying && s.dark == (verdict == harmful) {
		if v := a.levels.slot(verdict, s.mean()); v != verdict {
			a.decide(v, s.to)
		}
	}
	if whole && verdict == a.verdict {
		dark, lit := &a.first, &s
		if s.dark {
			dark, lit = lit, dark
		}
		if dark.calls >= minSlot && lit.calls >= minSlot && lit.hedges > 0 {
			a.compared(dark, lit, s.to)
		}
	}
	if a.tails != nil && (s.second || s.spoilt) {
		a.tails.pair = [2]histogram{}
	}
}

// compared takes what a pair says. The caller holds mu.
func (a *Audit) compared(dark, lit *slotSum, now int64) {
	a.heard = now
	a.news.Store(true)
	a.levels.pair(lit.mean(), dark.mean())
	slower, calls := a.tails.pair[0].tail()-a.tails.pair[1].tail(), float64(dark.calls+lit.calls)
	a.tails.keep()
	if a.verdict.decides() {
		a.tested(slower, calls, now)
		return
	}
	if a.verdict == trying {
		if v := a.levels.recalled(lit.mean(), dark.mean()); v != trying {
			a.decide(v, now)
			return
		}
	}
	a.tried(dark, slower, calls, now)
}

// tried takes a pair while hedging was found neither to help nor to harm: by how many octaves its tail was slower with
// hedging, and of how many calls. The caller holds mu.
func (a *Audit) tried(dark *slotSum, slower, calls float64, now int64) {
	if dark.calls >= steadyCalls && a.levels.rose(dark.mean()) {
		a.trial.scale(0.5)
		a.levels.halve()
	}
	a.trial.add(slower, calls)
	switch v, ok := a.trial.decided(); {
	case ok:
		a.levels.learn(v)
		a.decide(v, now)
	case a.verdict == trying && now-a.since > int64(longTrial) && a.trial.pairs >= somePairs:
		a.levels.stay()
		a.decide(same, now)
	}
}

// tested takes a pair that tests the verdict, as tried takes one before it. The caller holds mu.
func (a *Audit) tested(slower, calls float64, now int64) {
	a.probes.add(slower, calls)
	if v, ok := a.probes.decided(); ok && v != a.verdict {
		probes := a.probes
		a.levels.learn(v)
		a.decide(v, now)
		a.trial = probes
		return
	}
	if f := maxProbes / a.probes.pairs; f < 1 {
		a.probes.scale(f)
		a.tails.scale(float32(f))
	}
}

// decide sets the verdict. The caller holds mu.
func (a *Audit) decide(v verdict, now int64) {
	before := a.trial.before
	if v == trying {
		before++
	}
	if v == trying || a.verdict.decides() {
		a.trial = evidence{before: before}
		a.tails = nil
	}
	a.probes = evidence{before: before}
	a.levels.begin()
	a.news.Store(true)
	a.verdict, a.since, a.heard = v, now, now
	a.found.Store(int32(v))
	dark := a.dark.Load()
	a.cur.probe, a.cur.spoilt, a.first.probe, a.last.open = false, true, false, false // they were begun under another verdict
	a.shade(dark)
}

// Done takes a call that began at the given time by the engine's clock, and whose latency
// has the given index, see [sketch.Index].
func (a *Audit) Done(began int64, at int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &a.cur
	if began < s.from {
		if s = &a.last; !a.last.open || began < s.from || began >= s.to {
			return
		}
	}
	s.calls++
	s.level += int64(at)
	a.measured++
	if s.probe {
		arm := 0
		if s.dark {
			arm = 1
		}
		a.tails.pair[arm].add(int(float64(perOctave*(at-a.base)) / octave))
	}
}

// News returns what there is to tell, if there is anything, and whether the verdict has changed since.
func (a *Audit) News() (v observe.Audit, changed, ok bool) {
	if !a.news.Load() || !a.news.Swap(false) {
		return v, false, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = a.told != a.verdict
	a.told = a.verdict
	return a.view(), changed, true
}

// Reset forgets what was found.
func (a *Audit) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.levels.judged, a.trial.before = [verdicts][2]float64{}, -1
	a.decide(trying, a.next.Load())
}

// View returns what is known.
func (a *Audit) View() observe.Audit {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view()
}

// view is View. The caller holds mu.
func (a *Audit) view() observe.Audit {
	e := a.evidence()
	v := observe.Audit{Verdict: words[a.verdict], Pairs: int(math.Round(e.pairs))}
	if e.pairs < 2 || a.tails == nil {
		return v
	}
	v.Confidence = 1 - e.luck()/2 // half of luck goes the other way
	lit, dark := a.tails.p99(0, a.base), a.tails.p99(1, a.base)
	if lit == 0 || dark == 0 {
		return v
	}
	// What the tail's mean is uncertain by, in octaves, its 99th percentile is as well.
	spread := math.Sqrt(max(e.squares-e.sum*e.sum/e.pairs, 0) / (e.pairs - 1) / e.pairs)
	v.P99, v.Saved = time.Duration(dark), time.Duration(dark-lit)
	v.PlusMinus = time.Duration(1.96 * spread * math.Ln2 * max(dark, lit))
	return v
}

// evidence returns all that there is. The caller holds mu.
func (a *Audit) evidence() evidence {
	t, p := &a.trial, &a.probes
	return evidence{t.pairs + p.pairs, t.sum + p.sum, t.squares + p.squares, t.calls + p.calls, t.looks + p.looks, t.before}
}
