package engine

import (
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/sketch"
)

// The audit finds out whether hedging helps a host or harms it. One caller sees neither
// what its hedges do to others nor what theirs do to it. But the time of day is divided
// into slots, in pairs, and of each pair a hash of host and pair makes one slot dark, in
// which hedging rests. All clients of a host agree on that without a word, so each sees
// the effect of all of them in its own latencies.
const (
	auditSlot   = 20 * time.Second
	auditSettle = 6 * time.Second // of a slot, in which queues forget the slot before; calls begun then do not count

	// After a verdict one pair in 2^probeBits, every 43 minutes on average, is a probe, with
	// a dark slot and one in which calls are hedged. Before it, more are.
	probeBits = 6

	// A verdict needs so many pairs, so many calls, and a score that luck alone exceeds
	// in one of fifty cases; of more pairs, one of twenty. After a long trial the sign decides.
	minPairs   = 3
	minCalls   = 300
	minScore   = 2.33
	somePairs  = 8
	laterScore = 2
	maxProbes  = 16 // are remembered after a verdict
	longTrial  = 24 * time.Minute

	tailShare   = 0.1 // of the calls, the slowest: those that hedging is about
	enoughCalls = 28  // measured in a pair; with fewer, one a second, no slot is dark
	minSlot     = 10  // measured calls in a slot that counts

	levelsKept  = 10  // slots
	recallSlots = 3   // in a row at the level of the other verdict bring that back
	recallPairs = 2   // do so while there is none
	steadyCalls = 200 // in a dark slot tell its level well enough to forget half of the evidence where that has changed

	bins         = 32             // of latencies
	perOctave    = 3              // bins
	verdictLasts = 24 * time.Hour // without a probe
)

var (
	octave    = float64(sketch.Index(1<<50)-sketch.Index(1<<20)) / 30 // indices between a latency and twice that
	levelRise = math.Log2(1.3) * octave                               // asks for a new verdict
)

// A Verdict is what an audit has found.
type Verdict int8

// The verdicts.
const (
	Trying  Verdict = iota // none yet: calls are hedged, but for dark slots
	Helpful                // calls are hedged
	Harmful                // calls are not hedged

	verdicts // their number
)

var verdictWords = [verdicts]string{Trying: "trying", Helpful: "on", Harmful: "off"}

// String returns the word for what the verdict makes of hedging.
func (v Verdict) String() string { return verdictWords[v] }

// An Auditing says how hosts are audited. The zero value makes every pair a probe, from
// the first call until the first verdict.
type Auditing struct {
	After time.Duration // no slot is dark until a host has had calls for so long
	Bits  int           // until the first verdict one pair in 2^Bits is a probe
}

// evidence is what pairs say. The zero value is that of no pair.
type evidence struct {
	pairs   float64
	sum     float64 // of the pairs' differences: how many octaves slower the tail is with hedging
	squares float64 // of these
	calls   float64
}

func (e *evidence) add(d, calls float64) {
	e.pairs, e.sum, e.squares, e.calls = e.pairs+1, e.sum+d, e.squares+d*d, e.calls+calls
}

// scale forgets a part.
func (e *evidence) scale(f float64) {
	e.pairs, e.sum, e.squares, e.calls = e.pairs*f, e.sum*f, e.squares*f, e.calls*f
}

// score says how sure it is that hedging harms, as a standard normal deviate; it is
// negative if hedging helps. It is Student's t of the differences, by the approximation
// of Wallace ("Bounds on Normal Approximations to Student's and the Chi-Square
// Distributions", 1959).
func (e *evidence) score() float64 {
	n := e.pairs - 1
	if n < 1 || e.squares <= 0 {
		return 0
	}
	left := max(e.pairs-e.sum*e.sum/e.squares, 1e-9) // the sum's square is at most pairs times the squares
	return math.Copysign(min((8*n+1)/(8*n+3)*math.Sqrt(n*math.Log(e.pairs/left)), 8), e.sum)
}

// decided returns the verdict, if the pairs are enough for one, or if there must be one
// and there are some.
func (e *evidence) decided(must bool) (Verdict, bool) {
	score := e.score()
	least := minScore
	if e.pairs >= somePairs {
		least = laterScore
	}
	sure := e.pairs >= minPairs && e.calls >= minCalls && math.Abs(score) >= least
	switch {
	case !sure && !(must && e.pairs >= somePairs):
		return Trying, false
	case score > 0:
		return Harmful, true
	default:
		return Helpful, true
	}
}

// histogram counts latencies, by thirds of an octave from a base that is half the mean. Faster and slower
// ones are in the first and in the last bin. If a bin is full, all are halved: only their proportions matter.
type histogram [bins]uint16

func (h *histogram) add(i int) {
	i = min(max(i, 0), bins-1)
	if h[i] == math.MaxUint16 {
		for j := range h {
			h[j] /= 2
		}
	}
	h[i]++
}

// tail returns the mean place of the slowest calls, in octaves.
func (h *histogram) tail() float64 {
	total := 0
	for _, n := range h {
		total += int(n)
	}
	most := tailShare * float64(total)
	left, sum := most, 0.0
	for i := bins - 1; i >= 0 && left > 0; i-- {
		n := min(float64(h[i]), left)
		sum += n * float64(i)
		left -= n
	}
	return sum / most / perOctave
}

// probeTails are the latencies of probes: with hedging, and without.
type probeTails struct {
	pair [2]histogram     // this pair's
	all  [2][bins]float32 // those of all pairs of the evidence
}

// slotSum is what the measured calls of a slot add up to.
type slotSum struct {
	from, to int64 // when they begin, by the engine's clock
	probe    bool  // one slot of the pair is dark
	dark     bool  // this one; or hedging rests anyway
	spoilt   bool  // not all of it was seen
	second   bool  // of the pair
	calls    int32
	hedges   int32
	level    int64 // in indices, see [sketch.Index]
}

func (s *slotSum) mean() float64 { return float64(s.level) / float64(s.calls) }

// An audit is that of a host. It is safe for concurrent use.
type audit struct {
	how   Auditing
	host  uint64       // hash
	next  atomic.Int64 // when turn is due, by the engine's clock
	rests atomic.Bool  // hedging
	now   atomic.Int32 // the verdict
	fresh atomic.Int64 // number of the slot that begins with an empty bucket; 0: this one does not
	began atomic.Int32 // hedges in this slot
	news  atomic.Bool  // for observers and the log
	keys  int          // that share it; guarded by Engine.mu

	mu       sync.Mutex
	slot     int64 // its number
	start    int64 // the first call's, by the engine's clock
	cur      slotSum
	last     slotSum // the slot before
	open     bool    // last is not finished: calls begun in it may still end
	first    slotSum // of the pair
	measured int32   // calls of the pair
	enough   bool    // of them in the pair before
	verdict  Verdict
	told     Verdict // by the log
	since    int64   // by the engine's clock
	heard    int64   // when there was evidence last, by the engine's clock
	trial    evidence
	probes   evidence

	levels [levelsKept]float32         // of the last slots with hedging if that is Helpful, without if it is Harmful
	filled int                         // of levels; while there is no verdict, pairs in a row with levels like those of one
	like   Verdict                     // that one
	pairs  [2]struct{ sum, n float64 } // of levels since the verdict: with hedging, without
	judged [verdicts][2]float64        // levels at which hedging was found helpful, and harmful: with hedging, without; 0: none

	base  int         // index at which the histograms begin
	tails *probeTails // nil: no slot was dark yet
}

func newAudit(how Auditing, host string) *audit {
	h := fnv.New64a()
	h.Write([]byte(host))
	return &audit{how: how, host: h.Sum64()}
}

// mixed returns the hash of the host and a pair. It is the same in every version, or
// clients would not agree.
func (a *audit) mixed(pair int64) uint64 {
	z := a.host + uint64(pair)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// probed reports whether the pair is a probe.
func (a *audit) probed(pair int64) bool {
	n := a.how.Bits
	switch {
	case a.verdict != Trying:
		n = probeBits
	case a.judged != [verdicts][2]float64{}:
		n = 0 // it has had a verdict
	}
	return a.mixed(pair)&(1<<n-1) == 0
}

// turn does what is due at the beginning of a slot, and at that of its measured part.
func (a *audit) turn(now int64, wall time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now < a.next.Load() {
		return
	}
	t := wall.UnixNano()
	at := t % int64(auditSlot)
	if slot := t / int64(auditSlot); slot != a.slot {
		a.advance(slot, at, now)
	}
	if at < int64(auditSettle) {
		a.next.Store(now - at + int64(auditSettle))
		return
	}
	a.finish()
	a.next.Store(now - at + int64(auditSlot))
}

// advance begins a slot, of which the time at has passed. The caller holds mu.
func (a *audit) advance(slot, at, now int64) {
	seen := at < int64(auditSettle)
	next := slot == a.slot+1 && seen
	a.cur.hedges = a.began.Swap(0)
	a.cur.spoilt = a.cur.spoilt || !next
	a.finish()
	rested := a.rests.Load()
	if a.start == 0 {
		a.start, a.since = now, now
	} else {
		a.last, a.open = a.cur, true
	}
	a.slot = slot
	s := slotSum{from: now - at + int64(auditSettle), to: now - at + int64(auditSlot), spoilt: !seen, second: slot&1 == 1}
	pair := slot >> 1
	switch {
	case !s.second:
		a.enough = a.measured >= enoughCalls
		a.measured = 0
		s.probe = seen && a.enough && a.cur.calls > 0 && now-a.start >= int64(a.how.After) && a.probed(pair)
	case next:
		s.probe = a.cur.probe
	}
	if a.verdict != Trying && now-a.heard > int64(verdictLasts) {
		a.judged = [verdicts][2]float64{}
		a.decide(Trying, now)
		s.probe = false // it was begun under another verdict
	}
	if s.probe && a.tails == nil {
		a.tails, a.base = new(probeTails), int(a.cur.mean()-octave)
	}
	a.cur = s
	a.rest(now, rested)
}

// rest says whether hedging rests in what is left of the slot. The caller holds mu.
func (a *audit) rest(now int64, rested bool) {
	a.cur.dark = a.verdict == Harmful
	if a.cur.probe {
		a.cur.dark = a.cur.second == (a.mixed(a.slot>>1)>>32&1 == 1)
	}
	a.rests.Store(a.cur.dark)
	a.fresh.Store(0)
	if rested && !a.cur.dark {
		a.fresh.Store(a.slot)
	}
}

// finish takes what the last slot says, once its calls have ended. The caller holds mu.
func (a *audit) finish() {
	if !a.open {
		return
	}
	a.open = false
	s := a.last
	whole := s.second && !s.spoilt && !a.first.spoilt && a.first.probe && s.probe
	if !s.second {
		a.first = s
	}
	verdict := a.verdict
	if !s.spoilt && s.calls >= minSlot {
		a.leveled(&s)
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
func (a *audit) compared(dark, lit *slotSum, now int64) {
	a.heard = now
	a.news.Store(true)
	for i, s := range [2]*slotSum{lit, dark} {
		a.pairs[i].sum += s.mean()
		a.pairs[i].n++
	}
	d, calls := a.tails.pair[0].tail()-a.tails.pair[1].tail(), float64(dark.calls+lit.calls)
	for arm := range a.tails.pair {
		for i, n := range a.tails.pair[arm] {
			a.tails.all[arm][i] += float32(n)
		}
	}
	if a.verdict == Trying {
		if v := a.recalled(lit.mean(), dark.mean()); v != Trying {
			a.decide(v, now)
			return
		}
		if before := (a.pairs[1].sum - dark.mean()) / (a.pairs[1].n - 1); dark.calls >= steadyCalls && math.Abs(dark.mean()-before) > levelRise {
			a.trial.scale(0.5)
			for i := range a.pairs {
				a.pairs[i].sum, a.pairs[i].n = a.pairs[i].sum/2, a.pairs[i].n/2
			}
		}
		a.trial.add(d, calls)
		if v, ok := a.trial.decided(now-a.since > int64(longTrial)); ok {
			a.learn(v)
			a.decide(v, now)
		}
		return
	}
	a.probes.add(d, calls)
	if v, ok := a.probes.decided(false); ok && v != a.verdict {
		probes := a.probes
		a.learn(v)
		a.decide(v, now)
		a.trial = probes
		return
	}
	if f := maxProbes / a.probes.pairs; f < 1 {
		a.probes.scale(f)
		for arm := range a.tails.all {
			for i := range a.tails.all[arm] {
				a.tails.all[arm][i] *= float32(f)
			}
		}
	}
}

// recalled returns the verdict that was found before where levels were as in the last
// pairs, of which the given one is the latest, or Trying. The caller holds mu.
func (a *audit) recalled(lit, dark float64) Verdict {
	v := Trying
	if known := a.judged[Harmful]; known[0] != 0 && lit > known[0]-levelRise/4 && dark > known[1]-levelRise/4 {
		v = Harmful
	}
	if known := a.judged[Helpful]; known[0] != 0 && lit < known[0]+levelRise/4 && dark < known[1]+levelRise/4 {
		v = Helpful
	}
	if v != a.like {
		a.like, a.filled = v, 0
	}
	if a.filled++; a.filled < recallPairs {
		return Trying
	}
	return v
}

// learn remembers at which levels the verdict was found. The caller holds mu.
func (a *audit) learn(v Verdict) {
	lit, dark := a.pairs[0].sum/a.pairs[0].n, a.pairs[1].sum/a.pairs[1].n
	other := Helpful + Harmful - v
	way := 1.0 // hedging helps below some level
	if v == Harmful {
		way = -1
	}
	if known := a.judged[v]; known[0] == 0 || way*(lit-known[0]) > 0 {
		a.judged[v] = [2]float64{lit, dark}
	}
	// The other verdict's levels must be apart from these in both arms, or they tell nothing.
	known, found := a.judged[other], a.judged[v]
	if known[0] != 0 && min(way*(known[0]-found[0]), way*(known[1]-found[1])) < levelRise {
		a.judged[other] = [2]float64{}
		a.judged[v] = [2]float64{lit, dark}
	}
}

// leveled takes the level of a slot. The caller holds mu.
func (a *audit) leveled(s *slotSum) {
	if a.verdict == Trying || s.dark != (a.verdict == Harmful) {
		return
	}
	copy(a.levels[1:], a.levels[:])
	a.levels[0] = float32(s.mean())
	a.filled = min(a.filled+1, levelsKept)

	// Where hedging helps, higher levels count, and where it harms, lower ones.
	other := Helpful + Harmful - a.verdict
	way, arm := 1.0, 0
	if a.verdict == Harmful {
		way, arm = -1, 1
	}
	least := func(n int) float64 {
		if a.filled < n {
			return math.Inf(-1)
		}
		l := a.levels[:n]
		if way < 0 {
			return -float64(slices.Max(l))
		}
		return float64(slices.Min(l))
	}
	if there := a.judged[other][arm]; there != 0 && least(recallSlots) >= way*(there+a.judged[a.verdict][arm])/2 {
		a.decide(other, s.to)
	} else if least(levelsKept) > way*a.judged[a.verdict][arm]+levelRise {
		a.decide(Trying, s.to)
	}
}

// decide sets the verdict. The caller holds mu.
func (a *audit) decide(v Verdict, now int64) {
	if v == Trying || a.verdict != Trying {
		a.trial = evidence{}
		a.tails = nil
	}
	a.probes, a.filled = evidence{}, 0
	a.pairs = [2]struct{ sum, n float64 }{}
	a.news.Store(true)
	a.verdict, a.since, a.heard = v, now, now
	a.now.Store(int32(v))
	rested := a.rests.Load()
	a.cur.probe, a.cur.spoilt, a.first.probe, a.open = false, true, false, false // they were begun under another verdict
	a.rest(now, rested)
}

// done takes a call that began at the given time by the engine's clock, and whose latency
// has the given index.
func (a *audit) done(began int64, at int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &a.cur
	if began < s.from {
		if s = &a.last; !a.open || began < s.from || began >= s.to {
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

// report returns what there is to tell, if there is anything, and whether the verdict has changed since.
func (a *audit) report() (v AuditView, changed, news bool) {
	if !a.news.Load() || !a.news.Swap(false) {
		return v, false, false
	}
	v = a.view()
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = a.told != v.Verdict
	a.told = v.Verdict
	return v, changed, true
}

// reset forgets what was found.
func (a *audit) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.judged = [verdicts][2]float64{}
	a.decide(Trying, a.next.Load())
}

// word returns the verdict in a word; none for a nil audit.
func (a *audit) word() string {
	if a == nil {
		return ""
	}
	return Verdict(a.now.Load()).String()
}

// An AuditView is what an audit has found, at one moment. Its zero value says nothing.
type AuditView struct {
	On         bool          // the host is audited
	Verdict    Verdict       // so far
	Confidence float64       // probability that hedging changes the tail the way that it seems, in [0.5, 1]; 0: nothing is known
	Pairs      int           // that say so
	P99        time.Duration // without hedging
	Saved      time.Duration // of that by hedging; negative: hedging costs so much
	PlusMinus  time.Duration // half of Saved's 95 % interval
}

// view returns what is known.
func (a *audit) view() AuditView {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.evidence()
	v := AuditView{On: true, Verdict: a.verdict, Pairs: int(math.Round(e.pairs))}
	if e.pairs < 2 || a.tails == nil {
		return v
	}
	v.Confidence = math.Erfc(-math.Abs(e.score())/math.Sqrt2) / 2
	lit, dark := a.p99(0), a.p99(1)
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
func (a *audit) evidence() evidence {
	t, p := &a.trial, &a.probes
	return evidence{t.pairs + p.pairs, t.sum + p.sum, t.squares + p.squares, t.calls + p.calls}
}

// p99 returns the 99th percentile in nanoseconds, or 0 if too few calls tell it. The caller holds mu.
func (a *audit) p99(arm int) float64 {
	var total float64
	for _, n := range a.tails.all[arm] {
		total += float64(n)
	}
	above := 0.01 * total
	if total < minCalls {
		return 0
	}
	for i := bins - 1; i > 0; i-- {
		n := float64(a.tails.all[arm][i])
		if n < above {
			above -= n
			continue
		}
		if i == bins-1 {
			return 0
		}
		at := float64(a.base) + (float64(i+1)-above/n)*octave/perOctave
		return math.Exp2(20 + (at-float64(sketch.Index(1<<20)))/octave)
	}
	return 0
}
