package endpoint

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

const (
	badWeight = 1.0 / 256 // of an outcome in an endpoint's share of bad ones
	badLimit  = 0.08      // an endpoint whose share is larger is ejected: the budget does not save that many calls
	badAgain  = 0.06      // the share with which it comes back
	badRow    = 6         // so many bad outcomes in a row are enough
	goodRow   = 32        // so many good ones in a row restore an endpoint

	probeEvery  = 100  // so many calls, one tries an endpoint that is ejected, beside the one that they go to
	hopeEvery   = 20   // if the last try was good, or an endpoint is hardly known
	minAnswers  = 8    // so many answers tell how long an endpoint takes: the first one had to connect
	hedgeEvery  = 10   // so many hedges that could do so, one tries an endpoint that is ejected
	deniedEvery = 7    // so many after a try that was not paid for, there may be another one; it meets a budget that is spent as it is earned
	farther     = 1.25 // times the usual latency: an endpoint that takes longer gets no first hedge
	patient     = 4    // times the expected latency: an endpoint without an answer for so long is to blame
	late        = 2    // times the expected latency: a probe without an answer for so long is a bad outcome
)

// A Health is what is known of how the calls of one key fare at each endpoint. It is safe for concurrent
// use. The zero Health is ready: no endpoint is ejected.
//
// An outcome of an endpoint is bad if the attempt fails, or if a hedge that started later at another endpoint was quicker. A hedge that is quicker
// at the same endpoint is a good outcome. So an endpoint is left for slow calls only while hedges at that endpoint do not help.
//
// One call in a hundred has a probe: it is also sent to an endpoint that is ejected, at the same time. Good probes restore the endpoint.
type Health struct {
	key   *policy.Key // by which is told what happens; nil: nobody is told
	names []string    // of the endpoints; a Health without a key has none

	mu     sync.Mutex // guards the fields below
	at     [Max]standing
	calls  int  // that began
	hedges int  // that were sent elsewhere, or nowhere, while an endpoint was ejected, since one tried such an endpoint
	gone   bool // the key was forgotten
}

// A standing is what is known of one endpoint.
type standing struct {
	out    bool // calls go elsewhere
	slower bool // it is ejected, and nothing has failed there that is a reason for it
	probed int  // how many calls had begun at the last probe of the endpoint, or when the endpoint was ejected
	outcomes
	pace
	silence
	logged
	tally Tally
}

// outcomes are how attempts at an endpoint ended.
type outcomes struct {
	bad   float64 // share of bad ones
	row   int     // bad ones, one after another
	good  int     // good ones, one after another, while the endpoint is ejected
	doubt bool    // a hedge that stayed at the endpoint did not help, and there was no good outcome since
	vain  bool    // see isVain
}

// pace is how long an endpoint takes.
type pace struct {
	quick   time.Duration // moving average of its answers or, before the first answer, the longest wait for one
	answers int           // how many there were, minAnswers at most
	prompt  time.Time     // of the last answer that came before an answer of the next endpoint was to be expected
}

// silence is what an endpoint has not answered.
type silence struct {
	asked int       // calls that began there since it has answered one
	since time.Time // when the first of them did
}

// logged is what a log was told of an endpoint.
type logged struct {
	notice policy.Notice
	told   bool // that it is ejected, which is the last
}

// A Tally is what was counted of one endpoint.
type Tally struct {
	Calls     int64 // primaries
	Hedges    int64
	Failures  int64 // bad outcomes of either: it failed
	Overtaken int64 // the others: an attempt elsewhere was quicker, or the caller's deadline passed
}

var _ policy.EvictionListener = (*Health)(nil)

// HealthOf returns what is known of the endpoints of a key, which is that of the first endpoint. The endpoints have the names
// that are given with the first call of the key; the caller must not change them.
func HealthOf(k *policy.Key, names []string) *Health {
	if h, ok := k.Extension.Load().(*Health); ok {
		return h
	}
	k.Extension.CompareAndSwap(nil, &Health{key: k, names: names})
	h := k.Extension.Load().(*Health)
	if k.Forgotten() { // which nobody else tells h, if it was before h was there
		if tell := h.Forget(); tell != nil {
			tell()
		}
	}
	return h
}

// A View is what is known of one endpoint.
type View struct {
	Tally
	Name    string  // "" if the Health has no names
	Ejected bool    // calls go elsewhere
	Slower  bool    // it is ejected, and nothing has failed there that is a reason for it
	Bad     float64 // share of bad outcomes
}

// View returns what is known of endpoint i.
func (h *Health) View(i int) View {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.at[i]
	return View{s.tally, h.name(i), s.out, s.slower, s.bad}
}

// Views returns what is known of each endpoint that has a name.
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

// Forget is called when the key is forgotten: none of its endpoints is ejected any more. Observers hear of it by tell, if it is not nil.
func (h *Health) Forget() (tell func()) { return h.back(func(*standing) { h.gone = true }) }

// Reset forgets what was learned of the endpoints. What was counted stays. Observers hear of it by tell, if it is not nil.
func (h *Health) Reset() (tell func()) {
	return h.back(func(s *standing) { *s = standing{logged: s.logged, tally: s.tally} })
}

// back calls f for each endpoint, with mu held, and returns what tells that the endpoints which were ejected are restored; nil: none was.
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
				h.tell(i, observe.EndpointRestored)
			}
		}
	}
}

// tell tells observers what happened at endpoint i. The caller does not hold mu.
func (h *Health) tell(i int, kind observe.EndpointKind) {
	if h.key != nil {
		h.key.EndpointEvent(observe.EndpointEvent{Endpoint: h.name(i), Kind: kind})
	}
}

// change changes what is known of endpoint i by f, and tells whether it is ejected, if that is new.
func (h *Health) change(i int, f func(*standing)) {
	h.mu.Lock()
	s := &h.at[i]
	was := s.out
	f(s)
	if s.out && !was {
		s.probed = h.calls
	}
	out, turned, reports := s.out, s.out != was && !h.gone, false
	c := policy.Change{Topic: policy.Ejecting, Bad: out, Endpoint: h.name(i)}
	if (out != was || out != s.told) && !h.gone { // or the Notice has nothing to learn and nothing to report
		if c.Dropped, reports = s.notice.Update(time.Now(), policy.ChangeEvery, out); reports {
			s.told = out
			if s.slower {
				c.Reason = observe.DeniedSlow
			}
		}
	}
	h.mu.Unlock()
	switch {
	case turned && out:
		h.tell(i, observe.EndpointEjected)
	case turned:
		h.tell(i, observe.EndpointRestored)
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
	h.tell(to, observe.EndpointCalled)
	return to
}

// hushed reports whether an endpoint has answered nothing for so long that the next one would have, several times, and to so many calls
// that six in a row have no answer. No hedge is needed to know that. The caller holds mu.
func (h *Health) hushed(fit Mask, to int) bool {
	s, next := &h.at[to], h.next(fit, to)
	return next >= 0 && !s.out && s.asked > badRow && h.at[next].quick > 0 && time.Since(s.since) >= patient*h.at[next].quick
}

// probe returns the endpoint that a call to endpoint to is also sent to, at once, and how long an answer may take; -1: there is none. It is an endpoint that is
// out and comes before that one, any if all are ejected, or an endpoint after it that may be quicker: few of its answers are known, and no wait of usual. A probe
// that the budget does not pay for comes again after deniedEvery calls, see [Health.probed].
func (h *Health) probe(fit Mask, to int, usual time.Duration) (endpoint int, given time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	for j := range Max {
		s, every := &h.at[j], probeEvery
		switch {
		case !fit.Has(j) || j == to:
			continue
		case s.out && (j < to || h.at[to].out):
			if given = late * s.quick; s.good > 0 {
				every = hopeEvery
			}
		case s.out || j < to || s.answers >= minAnswers || s.quick >= usual:
			continue
		default:
			every = hopeEvery
		}
		if h.calls-s.probed >= every {
			s.probed = h.calls - every + deniedEvery
			return j, given
		}
	}
	return -1, 0
}

// probed records that a probe was sent to endpoint i.
func (h *Health) probed(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[i].probed = h.calls
}

// first returns the first endpoint that is not ejected and, of those before it, the one that was bad the fewest times in a row; -1: there is none. The
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

// best returns the first endpoint that is not ejected or, if all are, the first of those that were bad the
// fewest times in a row. The caller holds mu.
func (h *Health) best(fit Mask) int {
	in, out := h.first(fit)
	if in < 0 {
		in = out
	}
	return max(in, 0)
}

// hedge returns where a hedge goes of a call that had those endpoints: to the first of the others that is not ejected or, if there is none, to
// the primary's. One in ten tries one that is ejected and was passed over; those before the primary's are tried by calls.
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

// tried counts a hedge to endpoint i, for [Health.hedge]. One that the budget does not pay for is none: as many could be paid for as
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

// passed counts a hedge that goes nowhere, because all endpoints are ejected.
func (h *Health) passed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hedges++
}

// again returns where a hedge goes for which [Health.hedge] has found no endpoint: to the first that is not ejected, whatever its call had. If there is
// none, it is 0.
func (h *Health) again(fit Mask) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if to := h.best(fit); !h.at[to].out {
		return to
	}
	return 0
}

// next returns the first endpoint that is not ejected, but for the one that calls go to; -1: there is none. The caller holds mu.
func (h *Health) next(fit Mask, to int) int {
	in, _ := h.first(fit &^ Mask(0).with(to))
	return in
}

// far reports whether the next endpoint is known to take much longer than usual, which is what calls take that go to the endpoint to.
func (h *Health) far(fit Mask, to int, usual time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := h.next(fit, to)
	return next >= 0 && usual > 0 && float64(h.at[next].quick) >= farther*float64(usual)
}

// well reports whether the last that is known of endpoint i is good.
func (h *Health) well(i int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.at[i].out && h.at[i].row == 0 && !h.at[i].doubt
}

// doubted records that a hedge which stayed at endpoint i did not help its call.
func (h *Health) doubted(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[i].doubt = true
}

// isLate reports whether an endpoint that comes after endpoint to is known to answer in half of the time.
func (h *Health) isLate(fit Mask, to int, took time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	next, _ := h.first(fit &^ upTo(to))
	return next >= 0 && h.at[next].answers >= minAnswers && took >= late*h.at[next].quick
}

// hedgeEnded records whether a hedge of a call to endpoint i has won, or has lost though it had long enough to answer.
func (h *Health) hedgeEnded(i int, won bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[i].vain = !won
}

// isVain reports whether the last hedge of a call to endpoint i lost though it had long enough to answer: late calls are slow at any endpoint.
func (h *Health) isVain(i int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[i].vain
}

// hedged counts a hedge to endpoint i.
func (h *Health) hedged(i int) {
	h.mu.Lock()
	h.at[i].tally.Hedges++
	h.mu.Unlock()
	h.tell(i, observe.EndpointHedged)
}

// isPromptSince reports whether endpoint i has given a prompt answer to any call since then.
func (h *Health) isPromptSince(i int, then time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[i].prompt.After(then)
}

// answered records that an attempt at endpoint i was answered after took. It is not an outcome.
func (h *Health) answered(fit Mask, i int, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.at[i]
	if next := h.next(fit, i); next >= 0 && took < h.at[next].quick {
		s.prompt = time.Now()
	}
	if s.answers == 0 {
		s.quick = took
	}
	s.answers = min(s.answers+1, minAnswers)
	s.quick += (took - s.quick) / 4
	s.asked = 0
}

// silent learns that an attempt at endpoint i had no answer after so long.
func (h *Health) silent(i int, after time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.at[i]
	if after < s.quick { // its caller could not have expected one
		s.asked = max(0, s.asked-1)
	}
	s.quick = max(s.quick, after)
}

// refused says that a hedge to endpoint i was not sent.
func (h *Health) refused(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[i].tally.Hedges--
}

// outcome learns from an outcome of endpoint i: an answer, or a failure.
func (h *Health) outcome(i int, good bool) {
	if !good {
		h.change(i, func(s *standing) {
			s.tally.Failures++
			s.slower = false
			s.learnBad()
		})
		h.tell(i, observe.EndpointFailed)
		return
	}
	h.change(i, func(s *standing) {
		s.bad -= s.bad * badWeight
		s.row, s.doubt = 0, false
		if !s.out {
			return
		}
		if s.good++; s.good >= h.enough(i) {
			s.out, s.slower, s.good, s.bad = false, false, 0, min(s.bad, badAgain)
		}
	})
}

// overtaken learns that endpoint i was too slow for a call.
func (h *Health) overtaken(i int) {
	h.change(i, func(s *standing) {
		was := s.out
		s.tally.Overtaken++
		s.learnBad()
		s.slower = s.slower || s.out && !was
	})
	h.tell(i, observe.EndpointOvertaken)
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

// enough returns how many good outcomes in a row bring endpoint i back: one if no call goes there for it, as where it is one that only hedges
// go to, or if all endpoints are ejected. The caller holds mu.
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
