package virtual

import (
	"math"
	"math/rand/v2"
	"time"
)

// A RandomSource generates the random numbers of one episode, which is an independent part of a simulation. Each attempt
// has its own sequence of numbers, so that all policies meet the same latencies. It is not safe for concurrent use.
type RandomSource struct {
	seed   uint64
	source splitMix
	rng    *rand.Rand
}

// NewRandomSource returns the random numbers with which a Simulation with this seed begins, for use outside of it.
func NewRandomSource(seed uint64) *RandomSource { return newEpisodeRandomSource(seed, 0) }

// newEpisodeRandomSource returns the random numbers of one of a simulation's independent parts, numbered from 0.
func newEpisodeRandomSource(seed uint64, episode int) *RandomSource {
	d := &RandomSource{seed: mix64(seed + mix64(uint64(episode)))}
	d.rng = rand.New(&d.source)
	return d
}

// attemptRand returns the sequence of random numbers of an attempt of a request, from its start. It is valid until the
// next call. Negative attempts stand for other purposes of the request, for example its arrival.
func (d *RandomSource) attemptRand(request, attempt int) *rand.Rand {
	d.source = splitMix(mix64(d.seed ^ mix64(uint64(request)<<8^uint64(attempt+128))))
	return d.rng
}

// InterarrivalTime returns the time from the arrival of the previous request to that of the request with the given
// number, in a Poisson process with the given rate per second. The same number always gets the same time.
func (d *RandomSource) InterarrivalTime(request int, rate float64) time.Duration {
	return time.Duration(d.attemptRand(request, -1).ExpFloat64() / rate * 1e9)
}

// A splitMix is the generator SplitMix64, which suits many short sequences of random numbers (Steele, Lea, Flood: "Fast
// splittable pseudorandom number generators", OOPSLA 2014).
type splitMix uint64

func (s *splitMix) Uint64() uint64 {
	*s += 0x9e3779b97f4a7c15
	return mix64(uint64(*s))
}

func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// An Attempt identifies an attempt of a simulated call.
type Attempt struct {
	Request int
	N       int // 0 is the primary
	Host    int
	At      time.Duration // of its start, since the start of the episode
}

// A LatencyModel determines the latencies of a simulated backend. It returns the latency of attempt a, with random numbers
// of d. The latency depends on a and the seed of d alone, so that it is the same for all hedging policies.
type LatencyModel func(d *RandomSource, a Attempt) time.Duration

// Rand returns the random numbers of d that belong to this attempt alone. They do not depend on which other attempts are
// sent, and are valid until the next use of d.
func (a Attempt) Rand(d *RandomSource) *rand.Rand { return d.attemptRand(a.Request, a.N) }

// LognormalLatency returns a model with lognormally distributed latencies of the given mean and standard deviation.
func LognormalLatency(mean, deviation time.Duration) LatencyModel {
	ratio := float64(deviation) / float64(mean)
	sigma := math.Sqrt(math.Log(1 + ratio*ratio))
	mu := math.Log(float64(mean)) - sigma*sigma/2
	return func(d *RandomSource, a Attempt) time.Duration {
		return time.Duration(math.Exp(mu + sigma*a.Rand(d).NormFloat64()))
	}
}

// EmpiricalLatency returns a model that picks each latency at random from times.
func EmpiricalLatency(times []time.Duration) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration { return times[a.Rand(d).IntN(len(times))] }
}

// ParetoLatency returns a model with Pareto distributed latencies: at least scale, and longer than x with probability
// (scale/x)^shape.
func ParetoLatency(scale time.Duration, shape float64) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration {
		return time.Duration(float64(scale) * math.Pow(1-a.Rand(d).Float64(), -1/shape))
	}
}

// UniformLatency returns a model with uniformly distributed latencies around t, within the given share of t.
func UniformLatency(t time.Duration, share float64) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration {
		return time.Duration(float64(t) * (1 + share*(2*a.Rand(d).Float64()-1)))
	}
}

// AddStragglers returns the model m with stragglers: a share of the attempts, chosen at random, takes factor times as long.
func AddStragglers(m LatencyModel, share, factor float64) LatencyModel {
	return changeSomeLatencies(m, share, func(t time.Duration) time.Duration { return time.Duration(float64(t) * factor) })
}

// AddDelays returns the model m with a further delay for a share of the attempts, chosen at random.
func AddDelays(m LatencyModel, share float64, delay time.Duration) LatencyModel {
	return changeSomeLatencies(m, share, func(t time.Duration) time.Duration { return t + delay })
}

// changeSomeLatencies returns m with change applied to the latencies of a share of the attempts, chosen at random.
func changeSomeLatencies(m LatencyModel, share float64, change func(time.Duration) time.Duration) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration {
		t := m(d, a)
		if d.rng.Float64() < share { // the next number of the attempt
			t = change(t)
		}
		return t
	}
}

// conditionalModel returns a model that uses ifTrue for attempts that meet the condition, and ifFalse for others.
func conditionalModel(condition func(*RandomSource, Attempt) bool, ifTrue, ifFalse LatencyModel) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration {
		if condition(d, a) {
			return ifTrue(d, a)
		}
		return ifFalse(d, a)
	}
}

// CacheLatency returns a model of a server with a cache. A share of the requests, chosen at random, misses the cache: all
// their attempts have latencies of miss, also the hedges. The other requests have latencies of hit.
func CacheLatency(hit, miss LatencyModel, missShare float64) LatencyModel {
	return conditionalModel(func(d *RandomSource, a Attempt) bool { return d.attemptRand(a.Request, -100).Float64() < missShare }, miss, hit)
}

// OneSlowReplica returns a model of a group of n replicas, one of them slow. Each attempt goes to a random replica.
// Replicas have the latencies of m, which are multiplied by factor at the slow one.
func OneSlowReplica(m LatencyModel, n int, factor float64) LatencyModel {
	isFirst := func(d *RandomSource, a Attempt) bool { return d.attemptRand(a.Request, -40-a.N).IntN(n) == 0 }
	return conditionalModel(isFirst, ScaleLatency(m, factor), m)
}

// SwitchByTime returns a model that uses inside for attempts that start in [from, to), and outside for others. from and to
// count from the start of each episode of the simulation.
func SwitchByTime(from, to time.Duration, inside, outside LatencyModel) LatencyModel {
	return conditionalModel(func(_ *RandomSource, a Attempt) bool { return a.At >= from && a.At < to }, inside, outside)
}

// ScaleHedgeLatency returns the model m with the latencies of hedges multiplied by factor.
func ScaleHedgeLatency(m LatencyModel, factor float64) LatencyModel {
	return conditionalModel(func(_ *RandomSource, a Attempt) bool { return a.N > 0 }, ScaleLatency(m, factor), m)
}

// ScaleLatency returns a model that multiplies all latencies of m by factor.
func ScaleLatency(m LatencyModel, factor float64) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration { return time.Duration(factor * float64(m(d, a))) }
}

// HangUntil returns a model of a server that hangs until a time of the simulation, and then answers all attempts that
// wait, each after a latency of m. All attempts must start before that time, or their latencies would be too short.
func HangUntil(m LatencyModel, until time.Duration) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration { return until - a.At + m(d, a) }
}

// SwitchByHost returns a model that uses atHost for attempts at the host with that number, and atOthers for all others.
func SwitchByHost(host int, atHost, atOthers LatencyModel) LatencyModel {
	return conditionalModel(func(_ *RandomSource, a Attempt) bool { return a.Host == host }, atHost, atOthers)
}
