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

// nextShare is the share of the calls still unanswered at one hedge that may be
// unanswered at the next: a tenth.
const nextShare = 0.1

// A Schedule holds the delays after which a call is hedged, since the start of its primary. It is published whole and never changed.
//
// Where most calls reach a delay they need not be slow: the user may have set a delay that is shorter than the usual one. So a schedule also has
// a slow marker: the delay by which a call counts as slow, see [outageCheck]. If it is no delay of a hedge, it is a further delay at the end.
type Schedule struct {
	race.FixedSchedule               // Usual is the 99th percentile of the latencies from which the schedule was made; 0 if unknown
	Median             time.Duration // of the same latencies; 0 if unknown

	usualDelay      time.Duration // the first delay without limits of a user; 0 if unknown
	slowMarkerIndex int           // index of the slow marker; -1: there is none
	hasOwnMarker    bool          // the last delay is only a slow marker

	override *PolicyOverride          // for which the schedule was made; nil: the configuration holds
	adjusted atomic.Pointer[Schedule] // this schedule for the override of the latest call that had one; nil: there was none
}

// hedgeDelays returns the delays after which calls are hedged. A nil schedule has none.
func (p *Schedule) hedgeDelays() []time.Duration {
	switch {
	case p == nil:
		return nil
	case p.hasOwnMarker:
		return p.Delays[:len(p.Delays)-1]
	}
	return p.Delays
}

// setSlowMarker sets the delay by which a call counts as slow.
func (p *Schedule) setSlowMarker(usual time.Duration) {
	p.usualDelay = usual
	if p.slowMarkerIndex = slices.IndexFunc(p.Delays, func(d time.Duration) bool { return d >= usual }); p.slowMarkerIndex < 0 {
		p.slowMarkerIndex, p.hasOwnMarker = len(p.Delays), true
		p.Delays = append(p.Delays, usual)
	}
}

// copyLatencyMarks copies the slow marker, which is the delay at which a call counts as slow, and the 99th percentile from the learned schedule of
// the key to p. It returns p.
func (p *Schedule) copyLatencyMarks(own *Schedule) *Schedule {
	if own != nil && own.usualDelay > 0 && len(p.Delays) > 0 {
		p.UsualLatency = own.UsualLatency
		p.setSlowMarker(own.usualDelay)
	}
	return p
}

// unscheduledReason returns why a key has no schedule.
func (c *Config) unscheduledReason() observe.Reason {
	if c.MaxHedges == 0 || c.Share <= 0 {
		return observe.DeniedDisabled
	}
	return observe.DeniedWarming
}

// NewFixedSchedule returns a schedule that hedges after d, and again after each further d.
func NewFixedSchedule(d time.Duration, hedges int) *Schedule {
	p := &Schedule{FixedSchedule: race.FixedSchedule{Delays: make([]time.Duration, hedges, hedges+1)}, slowMarkerIndex: -1}
	for k := range p.Delays {
		p.Delays[k] = time.Duration(k+1) * d
	}
	return p
}

// initialSchedule returns the schedule of a key that knows too few latencies; nil: its calls are not hedged.
func (c *Config) initialSchedule() *Schedule {
	if c.InitialDelay <= 0 || c.MaxHedges == 0 {
		return nil
	}
	p := NewFixedSchedule(c.InitialDelay, c.MaxHedges)
	p.Delays, p.slowMarkerIndex = c.clampDelays(p.Delays), 0
	return p
}

// A PolicyOverride replaces settings of the configuration for some calls of a key.
type PolicyOverride struct {
	Hedges int           // at most, per call
	Fixed  bool          // hedges start after each Delay; otherwise after the learned delays
	Delay  time.Duration // between attempts, if it is fixed
}

// MaxHedges returns the maximum of hedges per call if the configuration allows the given number. A nil override changes nothing.
func (t *PolicyOverride) MaxHedges(allowed int) int {
	if t == nil || allowed == 0 {
		return allowed
	}
	return t.Hedges
}

// adjustSchedule returns the schedule of a call with the override, where own is the schedule of the key. It caches the result in own. It
// returns nil if the configuration allows no hedges or the key has no schedule.
func (t *PolicyOverride) adjustSchedule(own *Schedule, c *Config) *Schedule {
	if c.MaxHedges == 0 || own == nil {
		return nil
	}
	if p := own.adjusted.Load(); p != nil && p.override == t {
		return p
	}
	var p *Schedule
	if t.Fixed {
		p = NewFixedSchedule(t.Delay, t.Hedges).copyLatencyMarks(own)
	} else {
		p = own.withHedgeCount(t.Hedges)
	}
	p.Median, p.override = own.Median, t
	own.adjusted.Store(p)
	return p
}

// withHedgeCount returns a copy of p with delays for n hedges.
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

// ResizeDelays returns n delays: the first of the given delays, or all of them and further delays at the distance of the last two.
// Without a delay it returns nil.
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

// tailDistribution is a distribution's tail in two columns, from the slowest bucket down.
type tailDistribution struct {
	edges       []time.Duration // falling
	sharesAbove []float64       // share of the calls above that edge; rising
}

var tailPool = sync.Pool{New: func() any { return new(tailDistribution) }}

// makeSchedule returns the schedule for a latency distribution and a budget in hedges per call. It chooses the shortest first delay for which
// all hedges together cost no more than the budget.
//
// The distribution is that of the latencies as callers observed them, with hedges. So a hedge at x is sent for P(L > x) of the calls, even if
// the latencies of the attempts are correlated.
func (c *Config) makeSchedule(w *sketch.Distribution, budget float64) *Schedule {
	hedges := min(c.MaxHedges, race.MaxHedges)
	if hedges == 0 || budget <= 0 || w.Len() < MinSamples {
		return nil
	}
	t := tailPool.Get().(*tailDistribution)
	defer tailPool.Put(t)
	t.edges, t.sharesAbove = t.edges[:0], t.sharesAbove[:0]
	most := min(1-c.Percentile, budget) + 1e-9 // of the calls to hedge at all
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
	i := sort.Search(len(t.edges), func(i int) bool { return t.placeDelays(delays[:hedges], i) > budget+1e-9 })
	n := hedges
	t.placeDelays(delays[:hedges], i-1)
	// In a tail without gaps the first hedge gets its part of the budget at least,
	// and that costs it no multiple of the time.
	first := len(t.edges) - 1
	if float64(hedges+1)*t.sharesAbove[i-1] < t.sharesAbove[first] || delays[0] > 4*t.edges[first] {
		n = t.placeDelaysBeforeGap(delays[:hedges], first, budget)
	}
	median, _ := w.Quantile(0.5)
	p := &Schedule{FixedSchedule: race.FixedSchedule{Delays: c.clampDelays(delays[:n]), UsualLatency: p99}, Median: median}
	p.setSlowMarker(max(delays[0], c.MinDelay))
	return p
}

// placeDelays writes the delays that follow from a first delay at edge i. It returns their cost in hedges per call.
func (t *tailDistribution) placeDelays(delays []time.Duration, i int) (cost float64) {
	open := t.sharesAbove[i] // share of the calls unanswered at the hedge before
	delays[0], cost = t.edges[i], open
	for k := 1; k < len(delays); k++ {
		// Give every attempt the time that the first one got …
		at := time.Duration(k+1) * t.edges[i]
		j := sort.Search(i, func(j int) bool { return t.edges[j] <= at })
		left := t.sharesAbove[j]
		// … or hedge as soon as only a tenth of the calls is still open.
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

// placeDelaysBeforeGap writes the delays for a distribution with a gap, beyond which there are too many calls for a second hedge each. The
// first hedge is due before the gap. Further hedges are due where the rest of the budget pays for them. It returns the number of delays.
func (t *tailDistribution) placeDelaysBeforeGap(delays []time.Duration, first int, budget float64) (n int) {
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

// clampDelays raises each delay, and each distance between two delays, to MinDelay, and limits delays to MaxDelay. It drops delays for which
// there is no room.
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
