package virtual

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// BestStaticDelays returns the static hedge delays that minimize quantile q of latency, for the random numbers of the
// given seed. hedges is the number of delays, one or two. The delays cost at most extra hedges per request. Clients
// cannot know these delays in advance.
//
// The attempts of the simulation must not wait for each other or time out. In a closed loop, the model must not depend
// on time.
func (s Simulation) BestStaticDelays(seed uint64, hedges int, extra, q float64) StaticDelays {
	r := s.newRequestSample(seed)
	costOf := func(delays ...time.Duration) float64 {
		_, cost := r.hedgedLatencies(delays)
		return cost
	}
	earliest := r.shortestDelay(0, extra, func(d time.Duration) float64 { return costOf(d) })
	if hedges == 1 {
		return StaticDelays{earliest}
	}
	// With the earliest first delay there is no budget for a second one. Each later first delay has an earliest second
	// one within the budget.
	var best StaticDelays
	lowest := time.Duration(math.MaxInt64)
	first := earliest
	for range 50 {
		second := r.shortestDelay(first, extra, func(d time.Duration) float64 { return costOf(first, d) })
		if l := r.latencyQuantile(StaticDelays{first, second}, q); l < lowest {
			best, lowest = StaticDelays{first, second}, l
		}
		first += max(first/80, 1)
	}
	return best
}

// A requestSample computes the latencies that the first requests of a simulation would have with other hedge delays.
type requestSample struct {
	Simulation
	random           *RandomSource
	starts           []time.Duration // of the requests
	primaryLatencies []time.Duration
	longestPrimary   time.Duration   // of primaryLatencies
	buffer           []time.Duration // for hedgedLatencies
}

const maxSampleRequests = 400_000

// newRequestSample draws the start times and primary latencies of the first requests of a simulation with this seed.
func (s Simulation) newRequestSample(seed uint64) *requestSample {
	p := &requestSample{Simulation: s, random: newEpisodeRandomSource(seed, 0)}
	r := &episodeState{Simulation: s, random: p.random}
	var at time.Duration
	for i := range min(s.Requests, maxSampleRequests) {
		if s.Workers == 0 {
			r.issued = i
			at += r.nextInterarrivalTime()
		}
		p.starts = append(p.starts, at)
		p.primaryLatencies = append(p.primaryLatencies, p.answerTime(i, 0, 0))
	}
	p.longestPrimary = slices.Max(p.primaryLatencies)
	return p
}

// answerTime returns the time from the start of request i to the answer of its attempt n, which starts after delay.
func (p *requestSample) answerTime(i, n int, delay time.Duration) time.Duration {
	a := Attempt{Request: i, N: n, At: p.starts[i] + delay}
	if p.Hosts > 1 {
		a.Host = p.random.attemptRand(i, -2).IntN(p.Hosts)
	}
	return delay + p.Model(p.random, a)
}

// hedgedLatencies returns the latencies that the requests have with the given hedge delays, in no order and only of the
// requests that are hedged. They are valid until the next call. cost is the number of hedges per request.
func (p *requestSample) hedgedLatencies(delays []time.Duration) (hedged []time.Duration, cost float64) {
	p.buffer = p.buffer[:0]
	hedges := 0
	for i, l := range p.primaryLatencies {
		if l <= delays[0] {
			continue
		}
		for n, d := range delays {
			if l <= d {
				break
			}
			hedges++
			l = min(l, p.answerTime(i, n+1, d))
		}
		p.buffer = append(p.buffer, l)
	}
	return p.buffer, float64(hedges) / float64(len(p.primaryLatencies))
}

// latencyQuantile returns quantile q of the latencies that the requests would have with the given hedge delays. If the
// quantile is below the first delay, it returns that delay as an upper bound.
func (p *requestSample) latencyQuantile(delays StaticDelays, q float64) time.Duration {
	hedged, _ := p.hedgedLatencies(delays)
	slices.Sort(hedged)
	others := len(p.primaryLatencies) - len(hedged)
	if rank := latency.NearestRank(q, len(p.primaryLatencies)); rank >= others {
		return hedged[rank-others]
	}
	return delays[0]
}

// shortestDelay returns the shortest delay from the given one on that costs at most maxCost hedges per request. cost
// must decrease as the delay grows, to maxCost or less at the longest primary latency.
func (p *requestSample) shortestDelay(from time.Duration, maxCost float64, cost func(time.Duration) float64) time.Duration {
	const resolution = 1000 // steps per factor e
	span := float64(p.longestPrimary-from) + 1
	steps := int(math.Log(span+1) * resolution)
	at := func(i int) time.Duration { return from + time.Duration(math.Expm1(float64(i)/resolution)) }
	return at(sort.Search(steps, func(i int) bool { return cost(at(i)) <= maxCost }))
}
