package virtual

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// Oracle searches the best static delays for this very world and these very
// draws: those with the lowest quantile q of latency among all schedules of
// the given number of hedges (1 or 2) that start at most extra hedges per
// request. No client can know them beforehand.
//
// It needs a world whose attempts neither wait for one another nor time out.
// In a closed loop it also needs a model that does not depend on time.
func (w World) Oracle(seed uint64, hedges int, extra, q float64) Static {
	o := w.replay(seed)
	costs := func(delays ...time.Duration) float64 {
		_, cost := o.try(delays)
		return cost
	}
	earliest := o.search(0, extra, func(d time.Duration) float64 { return costs(d) })
	if hedges == 1 {
		return Static{earliest}
	}
	// The earliest first delay leaves no budget for a second one. From there
	// on, each first delay has an earliest second one that both can be paid for.
	var best Static
	lowest := time.Duration(math.MaxInt64)
	first := earliest
	for range 50 {
		second := o.search(first, extra, func(d time.Duration) float64 { return costs(first, d) })
		if l := o.quantile(Static{first, second}, q); l < lowest {
			best, lowest = Static{first, second}, l
		}
		first += max(first/80, 1)
	}
	return best
}

// replay is what the world's requests and their attempts would meet.
type replay struct {
	World
	draws     *Draws
	starts    []time.Duration
	primary   []time.Duration // what the first attempts take
	longest   time.Duration   // of these
	latencies []time.Duration // scratch
}

const replayed = 400_000 // requests are enough

func (w World) replay(seed uint64) *replay {
	o := &replay{World: w, draws: newDraws(seed, 0)}
	r := &run{World: w, draws: o.draws}
	var at time.Duration
	for i := range min(w.Requests, replayed) {
		if w.Workers == 0 {
			r.issued = i
			at += r.gap()
		}
		o.starts = append(o.starts, at)
		o.primary = append(o.primary, o.latency(i, 0, 0))
	}
	o.longest = slices.Max(o.primary)
	return o
}

func (o *replay) latency(i, n int, after time.Duration) time.Duration {
	a := Attempt{Request: i, N: n, At: o.starts[i] + after}
	if o.Hosts > 1 {
		a.Host = o.draws.at(i, -2).IntN(o.Hosts)
	}
	return after + o.Model(o.draws, a)
}

// try returns what the callers of the hedged requests would wait under the
// schedule, in no order, and the hedges per request.
func (o *replay) try(delays []time.Duration) (hedged []time.Duration, cost float64) {
	o.latencies = o.latencies[:0]
	hedges := 0
	for i, l := range o.primary {
		if l <= delays[0] {
			continue
		}
		for n, d := range delays {
			if l <= d {
				break
			}
			hedges++
			l = min(l, o.latency(i, n+1, d))
		}
		o.latencies = append(o.latencies, l)
	}
	return o.latencies, float64(hedges) / float64(len(o.primary))
}

// quantile returns quantile q of what all callers would wait under the schedule.
// No other caller waits longer than those whose request is hedged.
func (o *replay) quantile(delays Static, q float64) time.Duration {
	hedged, _ := o.try(delays)
	slices.Sort(hedged)
	others := len(o.primary) - len(hedged)
	if rank := latency.Rank(q, len(o.primary)); rank >= others {
		return hedged[rank-others]
	}
	return delays[0]
}

// search returns the earliest delay that costs at most extra; the cost falls with the delay.
func (o *replay) search(from time.Duration, extra float64, cost func(time.Duration) float64) time.Duration {
	const fine = 1000 // steps per factor e
	span := float64(o.longest-from) + 1
	steps := int(math.Log(span+1) * fine)
	at := func(i int) time.Duration { return from + time.Duration(math.Expm1(float64(i)/fine)) }
	return at(sort.Search(steps, func(i int) bool { return cost(at(i)) <= extra }))
}
