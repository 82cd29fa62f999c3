package policy

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/sketch"

	"github.com/gohedge/hedge/observe"
)

// nextShare limits each further hedge to this share of the calls that were still without response at the previous hedge.
const nextShare = 0.1

// A Schedule holds the hedge delays of a call, each measured from the start of the primary. It is immutable after it was
// stored in a key, except for a cache.
//
// A Schedule also has a slow marker: the delay from which a call counts as slow. If most calls of a key are slow, there is
// an outage. A hedge delay cannot always be the slow marker, because a user can set a delay that most calls reach.
//
// If no hedge delay is the slow marker, the slow marker is appended to the delays as the last one.
type Schedule struct {
	race.FixedSchedule               // UsualLatency is the 99th percentile of the learned latencies; 0: unknown
	Median             time.Duration // median of the learned latencies; 0: unknown

	// usualDelay is the learned first delay, not limited by MaxDelay and not replaced by a delay that the user has set. It is 0
	// if unknown.
	usualDelay      time.Duration
	slowMarkerIndex int  // index of the slow marker in Delays; -1: there is no slow marker
	hasOwnMarker    bool // the last delay is only the slow marker: no hedge is due at it

	override *PolicyOverride          // override for which the schedule was made; nil: none
	adjusted atomic.Pointer[Schedule] // cached schedule for the override that was applied last; nil: no override was applied yet
}

// hedgeDelays returns the delays at which hedges are due. It returns nil if p is nil.
func (p *Schedule) hedgeDelays() []time.Duration {
	switch {
	case p == nil:
		return nil
	case p.hasOwnMarker:
		return p.Delays[:len(p.Delays)-1]
	}
	return p.Delays
}

// setSlowMarker sets the slow marker, the delay from which a call counts as slow. It is the first hedge delay that is at
// least usual, the learned first delay. If there is no such hedge delay, usual itself is appended to the delays, as a delay
// at which no hedge is due.
func (p *Schedule) setSlowMarker(usual time.Duration) {
	p.usualDelay = usual
	if p.slowMarkerIndex = slices.IndexFunc(p.Delays, func(d time.Duration) bool { return d >= usual }); p.slowMarkerIndex < 0 {
		p.slowMarkerIndex, p.hasOwnMarker = len(p.Delays), true
		p.Delays = append(p.Delays, usual)
	}
}

// copySlowThresholds completes the schedule p, whose fixed delays were not learned, with two learned latencies: the slow
// marker and the 99th percentile. It copies them from the learned schedule of the key, and returns p.
//
// It changes nothing if learned is nil or has no learned delay, or if p has no delays.
func (p *Schedule) copySlowThresholds(learned *Schedule) *Schedule {
	if learned != nil && learned.usualDelay > 0 && len(p.Delays) > 0 {
		p.UsualLatency = learned.UsualLatency
		p.setSlowMarker(learned.usualDelay)
	}
	return p
}

// unscheduledReason returns the reason why a call is not hedged if its key has no schedule. It is DeniedDisabled if the
// configuration disables hedging, and otherwise DeniedWarming: too few latencies are known.
func (c *Config) unscheduledReason() observe.Reason {
	if c.MaxHedges == 0 || c.Share <= 0 {
		return observe.DeniedDisabled
	}
	return observe.DeniedWarming
}

// NewFixedSchedule returns a schedule with the given number of hedges, which are due at the delays d, 2d, 3d and so on. It has
// no slow marker.
func NewFixedSchedule(d time.Duration, hedges int) *Schedule {
	p := &Schedule{FixedSchedule: race.FixedSchedule{Delays: make([]time.Duration, hedges, hedges+1)}, slowMarkerIndex: -1}
	for k := range p.Delays {
		p.Delays[k] = time.Duration(k+1) * d
	}
	return p
}

// initialSchedule returns the schedule of a key until enough latencies are known. It returns nil if calls are not hedged in
// that time.
func (c *Config) initialSchedule() *Schedule {
	if c.InitialDelay <= 0 || c.MaxHedges == 0 {
		return nil
	}
	p := NewFixedSchedule(c.InitialDelay, c.MaxHedges)
	p.Delays, p.slowMarkerIndex = c.clampDelays(p.Delays), 0
	return p
}

// A PolicyOverride changes the hedging policy for some calls of a key, such as the calls of a gRPC method with a
// hedgingPolicy. It replaces the configured number of hedges, and can replace the learned delays. It is immutable and may be
// shared by calls.
type PolicyOverride struct {
	Hedges int           // maximum number of hedges per call
	Fixed  bool          // hedges are due at multiples of Delay; otherwise at the learned delays
	Delay  time.Duration // time between attempts, if Fixed is true
}

// MaxHedges returns the maximum number of hedges per call under the override t. The argument allowed is the configured
// maximum. If t is nil or allowed is 0, MaxHedges returns allowed, and otherwise the number of t.
func (t *PolicyOverride) MaxHedges(allowed int) int {
	if t == nil || allowed == 0 {
		return allowed
	}
	return t.Hedges
}

// adjustSchedule returns the schedule of a call to which the override t applies. It is made from keySchedule, the schedule
// of the call's key, and cached there. adjustSchedule returns nil if keySchedule is nil or c allows no hedges.
func (t *PolicyOverride) adjustSchedule(keySchedule *Schedule, c *Config) *Schedule {
	if c.MaxHedges == 0 || keySchedule == nil {
		return nil
	}
	if p := keySchedule.adjusted.Load(); p != nil && p.override == t {
		return p
	}
	var p *Schedule
	if t.Fixed {
		p = NewFixedSchedule(t.Delay, t.Hedges).copySlowThresholds(keySchedule)
	} else {
		p = keySchedule.withHedgeCount(t.Hedges)
	}
	p.Median, p.override = keySchedule.Median, t
	keySchedule.adjusted.Store(p)
	return p
}

// withHedgeCount returns a copy of p with n hedge delays, see ResizeDelays. The latency above which an attempt counts
// as slow is kept. It returns p itself if p has no hedge delays.
func (p *Schedule) withHedgeCount(n int) *Schedule {
	if len(p.hedgeDelays()) == 0 {
		return p
	}
	out := &Schedule{FixedSchedule: race.FixedSchedule{Delays: ResizeDelays(p.hedgeDelays(), n), UsualLatency: p.UsualLatency}, Median: p.Median, slowMarkerIndex: p.slowMarkerIndex}
	if p.usualDelay > 0 {
		out.setSlowMarker(p.usualDelay)
	}
	return out
}

// ResizeDelays returns n hedge delays that continue the given delays. It drops delays at the end, or appends delays at the
// distance between the last two. It returns nil if delays is empty or n is 0.
func ResizeDelays(delays []time.Duration, n int) []time.Duration {
	d := slices.Clone(delays[:min(n, len(delays))])
	if len(d) == 0 {
		return nil
	}
	gap := d[len(d)-1]
	if len(d) > 1 {
		gap -= d[len(d)-2]
	}
	for len(d) < n {
		d = append(d, d[len(d)-1]+gap)
	}
	return d
}

// A tailDistribution is the slow part of a latency distribution: the bounds of histogram buckets, slowest first, and the share
// of the calls that are slower than each bound.
type tailDistribution struct {
	edges       []time.Duration // bounds of the buckets, in descending order
	sharesAbove []float64       // share of the calls that are slower than the edge with the same index, in ascending order
}

// tailPool holds tail distributions for reuse by makeSchedule.
var tailPool = sync.Pool{New: func() any { return new(tailDistribution) }}

// makeSchedule returns the schedule for calls whose latencies have the distribution w. It chooses the shortest first delay
// for which all hedges together cost at most the budget, in hedges per call. It returns nil if no hedge is allowed or w has
// fewer than MinSamples latencies.
//
// The distribution holds the latencies that callers observed, including the effect of hedges. Therefore a hedge at delay x
// is sent for the share P(L > x) of the calls, even if the latencies of attempts are correlated.
func (c *Config) makeSchedule(w *sketch.Distribution, budget float64) *Schedule {
	hedges := min(c.MaxHedges, race.MaxHedges)
	if hedges == 0 || budget <= 0 || w.Len() < MinSamples {
		return nil
	}
	t := tailPool.Get().(*tailDistribution)
	defer tailPool.Put(t)
	t.edges, t.sharesAbove = t.edges[:0], t.sharesAbove[:0]
	most := min(1-c.Percentile, budget) + 1e-9 // largest share of the calls that may be hedged
	var p99 time.Duration
	for edge, above := range w.Tail() {
		if above <= 0.01+1e-9 {
			p99 = edge
		}
		if above > most {
			break
		}
		t.edges, t.sharesAbove = append(t.edges, edge), append(t.sharesAbove, above)
	}
	// The cost rises with every edge: that of hedge k is the larger of P(L > k·d_1)
	// and a tenth of the cost of hedge k−1. The slowest edge costs nothing.
	var delays [race.MaxHedges]time.Duration
	i := sort.Search(len(t.edges), func(i int) bool { return t.chooseDelays(delays[:hedges], i) > budget+1e-9 })
	n := hedges
	t.chooseDelays(delays[:hedges], i-1)
	// In a tail without gaps, the first hedge gets at least its part of the budget,
	// and its delay does not become a multiple of the shortest one.
	first := len(t.edges) - 1
	if float64(hedges+1)*t.sharesAbove[i-1] < t.sharesAbove[first] || delays[0] > 4*t.edges[first] {
		n = t.chooseDelaysBeforeGap(delays[:hedges], first, budget)
	}
	median, _ := w.Quantile(0.5)
	p := &Schedule{FixedSchedule: race.FixedSchedule{Delays: c.clampDelays(delays[:n]), UsualLatency: p99}, Median: median}
	p.setSlowMarker(max(delays[0], c.MinDelay))
	return p
}

// chooseDelays sets the delays of a schedule whose first delay is the edge with index i, as early as useful. It returns the
// cost of this schedule in hedges per call.
func (t *tailDistribution) chooseDelays(delays []time.Duration, i int) (cost float64) {
	open := t.sharesAbove[i] // share of the calls without an answer at the previous hedge
	delays[0], cost = t.edges[i], open
	for k := 1; k < len(delays); k++ {
		// The next hedge is due when the previous attempt had as much time as the first one,
		at := time.Duration(k+1) * t.edges[i]
		j := sort.Search(i, func(j int) bool { return t.edges[j] <= at })
		left := t.sharesAbove[j]
		// or earlier, when only a tenth of the calls still has no answer.
		if open > 0 {
			m := sort.Search(i, func(m int) bool { return t.sharesAbove[m] > nextShare*open }) - 1
			if m >= 0 && t.edges[m] < at {
				at, left = t.edges[m], t.sharesAbove[m]
			}
		}
		open = max(left, nextShare*open)
		delays[k] = at
		cost += open
	}
	return cost
}

// chooseDelaysBeforeGap sets delays for a distribution with a gap between usual and very slow calls. It is for a budget that
// cannot pay two hedges for each very slow call.
//
// The first hedge is due before the gap, at the edge with the index first. Further hedges are due as early as the rest of
// the budget allows. chooseDelaysBeforeGap returns the number of delays that it has set.
func (t *tailDistribution) chooseDelaysBeforeGap(delays []time.Duration, first int, budget float64) (n int) {
	open := t.sharesAbove[first]
	delays[0] = t.edges[first]
	left := budget - open
	for n = 1; n < len(delays); n++ {
		m := sort.Search(first, func(m int) bool { return t.sharesAbove[m] > left }) - 1
		if open *= nextShare; m < 0 || open > left {
			break
		}
		open = max(open, t.sharesAbove[m])
		delays[n] = t.edges[m]
		left -= open
		first = m
	}
	return n
}

// clampDelays returns the delays adjusted to the configured limits. MinDelay is the minimum of the first delay and of the
// time between two hedges. MaxDelay is the maximum of each delay. Delays that do not fit between these limits are dropped.
func (c *Config) clampDelays(delays []time.Duration) []time.Duration {
	var kept []time.Duration
	var last time.Duration
	for _, d := range delays {
		d = max(d, last+c.MinDelay)
		if c.MaxDelay > 0 && d > c.MaxDelay {
			if d = max(c.MaxDelay, c.MinDelay); len(kept) > 0 && d < last+c.MinDelay {
				break
			}
		}
		if len(kept) > 0 && d == last {
			break
		}
		kept = append(kept, d)
		last = d
	}
	return kept
}
