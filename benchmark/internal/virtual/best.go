package virtual

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// BestStaticDelays returns the hedge delays with the lowest quantile q of latency, for the random numbers of the given
// seed. hedges is the number of delays, one or two. They cost at most extra hedges per request. No client can know
// these delays in advance.
//
// The attempts of the simulation must not wait for each other or time out. In a closed loop the model must not depend
// on time.
func (s Simulation) BestStaticDelays(seed uint64, hedges int, extra, q float64) StaticDelays {
	r := s.newReplay(seed)
	costOf := func(delays ...time.Duration) float64 {
		_, cost := r.hedgedLatencies(delays)
		return cost
	}
	earliest := r.earliestDelay(0, extra, func(d time.Duration) float64 { return costOf(d) })
	if hedges == 1 {
		return StaticDelays{earliest}
	}
	// With the earliest first delay there is no budget for a second one. Each later first delay has an earliest second
	// one within the budget.
	var best StaticDelays
	lowest := time.Duration(math.MaxInt64)
	first := earliest
	for range 50 {
		second := r.earliestDelay(first, extra, func(d time.Duration) float64 { return costOf(first, d) })
		if l := r.latencyQuantile(StaticDelays{first, second}, q); l < lowest {
			best, lowest = StaticDelays{first, second}, l
		}
		first += max(first/80, 1)
	}
	return best
}

// A replay has the requests of a simulation and the latencies of their first attempts, from which it computes the
// effect of hedge delays.
type replay struct {
	Simulation
	draws     *Draws
	starts    []time.Duration // of the requests
	primaries []time.Duration // latencies
	longest   time.Duration   // of primaries
	buffer    []time.Duration // for hedgedLatencies
}

const maxReplayed = 400_000 // requests

// newReplay returns the requests of the simulation's first episode with the given seed, at most maxReplayed of them.
func (s Simulation) newReplay(seed uint64) *replay {
	p := &replay{Simulation: s, draws: newEpisodeDraws(seed, 0)}
	r := &episodeRun{Simulation: s, draws: p.draws}
	var at time.Duration
	for i := range min(s.Requests, maxReplayed) {
		if s.Workers == 0 {
			r.issued = i
			at += r.nextGap()
		}
		p.starts = append(p.starts, at)
		p.primaries = append(p.primaries, p.attemptLatency(i, 0, 0))
	}
	p.longest = slices.Max(p.primaries)
	return p
}

// attemptLatency returns the time from the start of request i to the answer of its attempt n, which starts after a
// delay. Attempt 0 is the first one.
func (p *replay) attemptLatency(i, n int, delay time.Duration) time.Duration {
	a := Attempt{Request: i, N: n, At: p.starts[i] + delay}
	if p.Hosts > 1 {
		a.Host = p.draws.randomOf(i, -2).IntN(p.Hosts)
	}
	return delay + p.Model(p.draws, a)
}

// hedgedLatencies returns the latencies of the requests that are hedged with the given delays, not sorted. cost is the
// number of hedges per request. The slice is valid until the next call.
func (p *replay) hedgedLatencies(delays []time.Duration) (hedged []time.Duration, cost float64) {
	p.buffer = p.buffer[:0]
	hedges := 0
	for i, l := range p.primaries {
		if l <= delays[0] {
			continue
		}
		for n, d := range delays {
			if l <= d {
				break
			}
			hedges++
			l = min(l, p.attemptLatency(i, n+1, d))
		}
		p.buffer = append(p.buffer, l)
	}
	return p.buffer, float64(hedges) / float64(len(p.primaries))
}

// latencyQuantile returns quantile q of the latencies of all requests with the given hedge delays. Requests without a
// hedge are the fastest.
func (p *replay) latencyQuantile(delays StaticDelays, q float64) time.Duration {
	hedged, _ := p.hedgedLatencies(delays)
	slices.Sort(hedged)
	others := len(p.primaries) - len(hedged)
	if rank := latency.RankOf(q, len(p.primaries)); rank >= others {
		return hedged[rank-others]
	}
	return delays[0]
}

// earliestDelay returns the shortest delay, longer than from, that costs at most extra hedges per request. cost returns
// the hedges per request of a delay. It falls with the delay.
func (p *replay) earliestDelay(from time.Duration, extra float64, cost func(time.Duration) float64) time.Duration {
	const resolution = 1000 // steps per factor e
	span := float64(p.longest-from) + 1
	steps := int(math.Log(span+1) * resolution)
	at := func(i int) time.Duration { return from + time.Duration(math.Expm1(float64(i)/resolution)) }
	return at(sort.Search(steps, func(i int) bool { return cost(at(i)) <= extra }))
}
