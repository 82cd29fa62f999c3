package places

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/observe"
)

const (
	badWeight = 1.0 / 256 // of an outcome in a place's share of bad ones
	badLimit  = 0.08      // a place whose share is larger is out: the budget does not save that many calls
	badAgain  = 0.06      // the share with which it comes back
	badRow    = 6         // so many bad outcomes in a row are enough
	goodRow   = 32        // so many good ones in a row bring a place back

	probeEvery  = 100 // so many calls, one tries a place that is out, beside the one that they go to
	hopeEvery   = 20  // if the last try was good
	duelEvery   = 5   // to see whether the next place is quicker, as long as that is not known
	hedgeEvery  = 10  // so many hedges that could do so, one tries a place that is out
	deniedEvery = 7   // so many after a try that was not paid for, there may be another one; it meets a budget that is spent as it is earned
	duels       = 8   // so many decide whether another place is quicker
	beatenLimit = 0.7 // and so large a share of those it must win
	duelMemory  = 16  // of which the share is
	farther     = 2   // times as long as a call takes usually: the first hedge does not go as far
	patient     = 4   // times as long as that is so long that a place is to blame that has not answered
)

// A Health is what is known of how the calls of one key fare at each place. It is safe for concurrent
// use. The zero Health is ready: no place is out.
//
// An outcome of a place is bad if it fails, or if a hedge that started later at another place was
// quicker, or at the same place, if that is known to be worse than the next one for its slowest calls. One call in a hundred tries a place that is out, beside the place that it goes to, and so
// a place comes back. If what is known of the next place does not rule out that it is quicker than the
// one that calls go to, one call in five is sent to both until that is known, or one in twenty if it is not after eight.
type Health struct {
	key   *engine.Key // by which is told what happens; nil: nobody is told
	names []string    // of the places; a Health without a key has none

	mu     sync.Mutex // guards the fields below
	at     [Max]standing
	calls  int  // that began
	beside int  // of them, when one was sent to two places; some more if that was not paid for
	hedges int  // that were sent elsewhere, or nowhere, while a place was out, since one tried such a place
	gone   bool // the key was forgotten
}

// A standing is what is known of one place.
type standing struct {
	out    bool // calls go elsewhere
	slower bool // it is out, and nothing has failed there that is a reason for it
	beside int  // how many calls had begun when one was sent there beside the place that it goes to, or the place went out
	outcomes
	pace
	silence
	logged
	tally Tally
}

// outcomes are how attempts at a place ended.
type outcomes struct {
	bad   float64 // share of bad ones
	row   int     // bad ones, one after another
	good  int     // good ones, one after another, while the place is out
	doubt bool    // two attempts of a call have been there for long, and nothing good is known since
}

// pace is how long a place takes.
type pace struct {
	quick  time.Duration // about that long, or longer; 0: it may be quicker than any
	duels  int           // with a place behind it, duelMemory at most; while it is out, with that which calls go to
	beaten float64       // share of them that the other place has won
}

// silence is what a place has not answered.
type silence struct {
	asked int       // calls that began there since it has answered one
	since time.Time // when the first of them did
}

// logged is what a log was told of a place.
type logged struct {
	notice engine.Notice
	told   bool // that it is out, which is the last
}

// A Tally is what was counted of one place.
type Tally struct {
	Calls     int64 // primaries
	Hedges    int64
	Failures  int64 // bad outcomes of either: it failed
	Overtaken int64 // the others: an attempt elsewhere was quicker, or the caller's deadline passed
}

var _ engine.Noted = (*Health)(nil)

// HealthOf returns what is known of the places of a key, which is that of the first place. The places have the names
// that are given with the first call of the key; the caller must not change them.
func HealthOf(k *engine.Key, names []string) *Health {
	if h, ok := k.Note.Load().(*Health); ok {
		return h
	}
	k.Note.CompareAndSwap(nil, &Health{key: k, names: names})
	h := k.Note.Load().(*Health)
	if k.Forgotten() { // which nobody else tells h, if it was before h was there
		if tell := h.Forget(); tell != nil {
			tell()
		}
	}
	return h
}

// A View is what is known of one place.
type View struct {
	Tally
	Name   string  // "" if the Health has no names
	Out    bool    // calls go elsewhere
	Slower bool    // it is out, and nothing has failed there that is a reason for it
	Bad    float64 // share of bad outcomes
}

// View returns what is known of place i.
func (h *Health) View(i int) View {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.at[i]
	return View{s.tally, h.name(i), s.out, s.slower, s.bad}
}

// Views returns what is known of each place that has a name.
func (h *Health) Views() (all []View) {
	for i := range h.names {
		all = append(all, h.View(i))
	}
	return all
}

func (h *Health) name(i int) string {
	if i < len(h.names) {
		return h.names[i]
	}
	return ""
}

// Forget is called when the key is forgotten: none of its places is out any more. Observers hear of it by tell, if it is not nil.
func (h *Health) Forget() (tell func()) { return h.back(func(*standing) { h.gone = true }) }

// Reset forgets what was learned of the places. What was counted stays. Observers hear of it by tell, if it is not nil.
func (h *Health) Reset() (tell func()) {
	return h.back(func(s *standing) { *s = standing{logged: s.logged, tally: s.tally} })
}

// back calls f for each place, with mu held, and returns what tells that those which were out are back; nil: none was.
func (h *Health) back(f func(*standing)) (tell func()) {
	var back Mask
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.at {
		if s := &h.at[i]; s.out && !h.gone {
			back = back.with(i)
		}
	}
	for i := range h.at {
		f(&h.at[i])
	}
	if back == 0 {
		return nil
	}
	return func() {
		for i := range h.at {
			if back.Has(i) {
				h.tell(i, observe.PlaceBack)
			}
		}
	}
}

// tell tells observers what happened at place i. The caller does not hold mu.
func (h *Health) tell(i int, kind observe.PlaceKind) {
	if h.key != nil {
		h.key.Placed(observe.PlaceEvent{Place: h.name(i), Kind: kind})
	}
}

// change changes what is known of place i by f, and tells whether it is out, if that is new.
func (h *Health) change(i int, f func(*standing)) {
	h.mu.Lock()
	s := &h.at[i]
	was := s.out
	f(s)
	if s.out && !was {
		s.beside = h.calls
	}
	out, turned, reports := s.out, s.out != was && !h.gone, false
	c := engine.Change{Topic: engine.Placing, Bad: out, Place: h.name(i)}
	if (out != was || out != s.told) && !h.gone { // or the Notice has nothing to learn and nothing to report
		if c.Dropped, reports = s.notice.Update(time.Now(), engine.ChangeEvery, out); reports {
			s.told = out
			if s.slower {
				c.Reason = observe.DeniedSlow
			}
		}
	}
	h.mu.Unlock()
	switch {
	case turned && out:
		h.tell(i, observe.PlaceOut)
	case turned:
		h.tell(i, observe.PlaceBack)
	}
	if reports && h.key != nil {
		h.key.Changed(c)
	}
}

// primary returns where a call goes.
func (h *Health) primary(fit Mask) int {
	h.mu.Lock()
	to := h.best(fit)
	hushed := h.hushed(fit, to)
	h.mu.Unlock()
	if hushed {
		h.change(to, func(s *standing) { s.out, s.good = true, 0 })
	}
	h.mu.Lock()
	to = h.best(fit)
	s := &h.at[to]
	s.tally.Calls++
	if s.asked++; s.asked == 1 {
		s.since = time.Now()
	}
	h.mu.Unlock()
	h.tell(to, observe.PlaceCalled)
	return to
}

// hushed reports whether a place has answered nothing for so long that the next one would have, several times, and to so many calls
// that six in a row have no answer. No hedge is needed to know that. The caller holds mu.
func (h *Health) hushed(fit Mask, to int) bool {
	s, next := &h.at[to], h.next(fit, to)
	return next >= 0 && !s.out && s.asked > badRow && h.at[next].quick > 0 && time.Since(s.since) >= patient*h.at[next].quick
}

// rival returns which place a call is sent to beside the one that it goes to; -1: none. Usual is what calls
// to that one take. Each place has its turn, so that one which is compared all the time keeps no call from one that is out. It does not end by a
// try that is not paid for, see [Health.besides].
func (h *Health) rival(fit Mask, to int, usual time.Duration) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	for j := range Max {
		s, every := &h.at[j], 0
		switch {
		case !fit.Has(j) || j == to:
			continue
		case s.out && (j < to || h.at[to].out):
			if every = probeEvery; s.good > 0 {
				every = hopeEvery
			}
		case !s.out && j > to && s.quick < usual*5/6:
			if every = duelEvery; h.at[to].duels >= duels {
				every = hopeEvery
			}
		}
		if least := min(every, hopeEvery); every > 0 && h.calls-s.beside >= every && h.calls-h.beside >= least {
			h.beside = h.calls - least + deniedEvery
			return j
		}
	}
	return -1
}

// besides counts a call that is sent to place i beside the one that it goes to.
func (h *Health) besides(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beside, h.at[i].beside = h.calls, h.calls
}

// first returns the first place that is not out and, of those before it, the one that was bad the fewest times in a row; -1: there is none. The
// caller holds mu.
func (h *Health) first(fit Mask) (in, out int) {
	in, out = -1, -1
	for i := range Max {
		switch {
		case !fit.Has(i):
		case !h.at[i].out:
			return i, out
		case out < 0 || h.at[i].row < h.at[out].row:
			out = i
		}
	}
	return in, out
}

// best returns the first place that is not out or, if all are, the first of those that were bad the
// fewest times in a row. The caller holds mu.
func (h *Health) best(fit Mask) int {
	in, out := h.first(fit)
	if in < 0 {
		in = out
	}
	return max(in, 0)
}

// hedge returns where a hedge goes of a call that had those places: to the first of the others that is not out or, if there is none, to
// the primary's. One in ten tries one that is out and was passed over; those before the primary's are tried by calls.
func (h *Health) hedge(fit, had Mask, primary int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	to, left := h.first(fit &^ had)
	if to >= 0 {
		if _, left = h.first(fit &^ had &^ upTo(primary)); left > to {
			left = -1
		}
	}
	otherwise := to
	if to < 0 {
		otherwise = primary
	}
	if left < 0 {
		return otherwise
	}
	if h.hedges+1 < hedgeEvery && (to >= 0 || !h.at[primary].out) {
		return otherwise
	}
	return left
}

// tried counts a hedge to place i, for [Health.hedge]. One that the budget does not pay for is none: as many could be paid for as
// there are tries, and never a try.
func (h *Health) tried(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at[i].out {
		h.hedges = 0
		return
	}
	for j := range h.at {
		if h.at[j].out {
			h.hedges++
			return
		}
	}
}

// passed counts a hedge that goes nowhere, because all places are out.
func (h *Health) passed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hedges++
}

// again returns where a hedge goes for which [Health.hedge] has found no place: to the first that is not out, whatever its call had. If there is
// none, it is 0.
func (h *Health) again(fit Mask) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if to := h.best(fit); !h.at[to].out {
		return to
	}
	return 0
}

// next returns the first place that is not out, but for the one that calls go to; -1: there is none. The caller holds mu.
func (h *Health) next(fit Mask, to int) int {
	in, _ := h.first(fit &^ Mask(0).with(to))
	return in
}

// far reports whether the next place is known to take much longer than usual, which is what calls take that go to the place to.
func (h *Health) far(fit Mask, to int, usual time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := h.next(fit, to)
	return next >= 0 && usual > 0 && h.at[next].quick >= farther*usual
}

// well reports whether the last that is known of place i is good.
func (h *Health) well(i int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.at[i].out && h.at[i].row == 0 && !h.at[i].doubt
}

// doubted learns that a call has had two attempts at place i for long.
func (h *Health) doubted(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[i].doubt = true
}

// outrun learns that a second attempt at place to was quicker than the first. That is bad if the slowest calls there, after tail, would have been
// answered by the next place, and no outcome if that is not known.
func (h *Health) outrun(fit Mask, to int, tail time.Duration) {
	h.mu.Lock()
	next := h.next(fit, to)
	var quick time.Duration
	if next >= 0 {
		quick = h.at[next].quick
	}
	h.mu.Unlock()
	switch {
	case quick == 0:
	case tail < quick:
		h.outcome(to, true)
	default:
		h.overtaken(to)
	}
}

// hedged counts a hedge to place i.
func (h *Health) hedged(i int) {
	h.mu.Lock()
	h.at[i].tally.Hedges++
	h.mu.Unlock()
	h.tell(i, observe.PlaceHedged)
}

// answered learns that an attempt at place i took so long. It is not an outcome.
func (h *Health) answered(i int, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.at[i]
	s.quick += (took - s.quick) / 4
	s.asked = 0
}

// silent learns that an attempt at place i had no answer after so long.
func (h *Health) silent(i int, after time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.at[i]
	if after < s.quick { // its caller could not have expected one
		s.asked = max(0, s.asked-1)
	}
	s.quick = max(s.quick, after)
}

// refused says that a hedge to place i was not sent.
func (h *Health) refused(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[i].tally.Hedges--
}

// outcome learns from an outcome of place i: an answer, or a failure.
func (h *Health) outcome(i int, good bool) {
	if !good {
		h.change(i, func(s *standing) {
			s.tally.Failures++
			s.slower = false
			s.learnBad()
		})
		h.tell(i, observe.PlaceFailed)
		return
	}
	h.change(i, func(s *standing) {
		s.bad -= s.bad * badWeight
		s.row, s.doubt = 0, false
		if !s.out {
			return
		}
		if s.good++; s.good >= h.enough(i) {
			s.out, s.slower, s.good, s.bad, s.duels, s.beaten = false, false, 0, min(s.bad, badAgain), 0, 0
		}
	})
}

// overtaken learns that place i was too slow for a call.
func (h *Health) overtaken(i int) {
	h.change(i, func(s *standing) {
		was := s.out
		s.tally.Overtaken++
		s.learnBad()
		s.slower = s.slower || s.out && !was
	})
	h.tell(i, observe.PlaceOvertaken)
}

// learnBad learns from a bad outcome.
func (s *standing) learnBad() {
	s.bad += (1 - s.bad) * badWeight
	s.row++
	s.good = 0
	if s.row >= badRow || s.bad > badLimit {
		s.out = true
	}
}

// enough returns how many good outcomes in a row bring place i back: one if no call goes there for it, as where it is one that only hedges
// go to, or if all places are out. The caller holds mu.
func (h *Health) enough(i int) int {
	for j := range Max {
		if j != i && !h.at[j].out && h.at[j].tally.Calls+h.at[j].tally.Hedges > 0 {
			if j < i || i > 0 && h.at[i].tally.Calls+h.at[j].tally.Calls == 0 {
				return 1
			}
			return goodRow
		}
	}
	return 1
}

// duel learns which of two places was quicker that had a call at the same time; neither has failed. That a rival lost
// which is out is bad if it had long enough to answer, or loses as a rule: two places that are alike win one in two each.
func (h *Health) duel(to, rival int, rivalWon, long bool) {
	if !h.out(rival) {
		h.change(to, func(s *standing) {
			if s.compare(rivalWon) {
				s.slower = s.slower || !s.out
				s.out, s.good = true, 0
			}
		})
		return
	}
	slower := false
	h.change(rival, func(s *standing) { slower = s.compare(!rivalWon) })
	switch {
	case rivalWon:
		h.outcome(rival, true)
	case slower, long:
		h.overtaken(rival)
	}
}

// compare learns whether another place was quicker, and reports whether that is the rule.
func (s *standing) compare(lost bool) (slower bool) {
	s.duels = min(s.duels+1, duelMemory)
	share := 0.0
	if lost {
		share = 1
	}
	s.beaten += (share - s.beaten) / float64(s.duels)
	return s.duels >= duels && s.beaten > beatenLimit
}

// expected returns how long an attempt at place i may take.
func (h *Health) expected(i int) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return farther * h.at[i].quick
}

func (h *Health) out(i int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[i].out
}
