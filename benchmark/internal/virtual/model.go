package virtual

import (
	"math"
	"math/rand/v2"
	"time"
)

// A RandomSource generates the random numbers of one episode of a simulation. Each attempt has its own sequence of
// numbers, so that all policies meet the same latencies. A RandomSource is not safe for concurrent use.
type RandomSource struct {
	seed   uint64
	source splitMix
	rng    *rand.Rand
}

// NewRandomSource returns the source of the random numbers of a simulation's first episode, for the given seed.
func NewRandomSource(seed uint64) *RandomSource { return newEpisodeRandomSource(seed, 0) }

// newEpisodeRandomSource returns the random numbers of an episode, one part of a run. The first episode has the number 0.
func newEpisodeRandomSource(seed uint64, episode int) *RandomSource {
	d := &RandomSource{seed: mix64(seed + mix64(uint64(episode)))}
	d.rng = rand.New(&d.source)
	return d
}

// attemptRand returns the random numbers of an attempt. The next call of attemptRand changes them. Negative attempts
// stand for other purposes, for example the arrival of the request.
func (d *RandomSource) attemptRand(request, attempt int) *rand.Rand {
	d.source = splitMix(mix64(d.seed ^ mix64(uint64(request)<<8^uint64(attempt+128))))
	return d.rng
}

// InterarrivalTime returns the time before a request arrives, in a Poisson process with the given rate per second.
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

// A LatencyModel determines the latencies of a simulated backend. It returns the latency of attempt a, with random numbers of d.
// The latency depends on a and the seed of d alone, so that it is the same for all strategies.
type LatencyModel func(d *RandomSource, a Attempt) time.Duration

// Rand returns the random numbers of d that belong to this attempt alone. So they do not depend on which other
// attempts are sent.
func (a Attempt) Rand(d *RandomSource) *rand.Rand { return d.attemptRand(a.Request, a.N) }

// LognormalLatency returns a model with lognormally distributed latencies.
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

// WithStragglers returns a model that multiplies the latency of a share of the attempts by factor.
func WithStragglers(m LatencyModel, share, factor float64) LatencyModel {
	return changeShare(m, share, func(t time.Duration) time.Duration { return time.Duration(float64(t) * factor) })
}

// WithDelays returns a model that adds the given delay to the latency of a share of the attempts.
func WithDelays(m LatencyModel, share float64, delay time.Duration) LatencyModel {
	return changeShare(m, share, func(t time.Duration) time.Duration { return t + delay })
}

// changeShare returns a model that applies the function change to the latency of a share of the attempts.
func changeShare(m LatencyModel, share float64, change func(time.Duration) time.Duration) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration {
		t := m(d, a)
		if d.rng.Float64() < share { // the next number of the attempt
			t = change(t)
		}
		return t
	}
}

// selectModel returns a model that uses the model then for attempts for which applies returns true, and else otherwise.
func selectModel(applies func(*RandomSource, Attempt) bool, then, otherwise LatencyModel) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration {
		if applies(d, a) {
			return then(d, a)
		}
		return otherwise(d, a)
	}
}

// WithCacheMisses returns a model that uses slow for all attempts of a share of the requests, and fast for all others.
// It models a cache: the hedge of a cache miss is a miss as well.
func WithCacheMisses(fast, slow LatencyModel, share float64) LatencyModel {
	return selectModel(func(d *RandomSource, a Attempt) bool { return d.attemptRand(a.Request, -100).Float64() < share }, slow, fast)
}

// WithSlowReplica returns a model of n replicas with the latencies of m, to which attempts go at random. The latencies
// of the first replica are multiplied by factor.
func WithSlowReplica(m LatencyModel, n int, factor float64) LatencyModel {
	isFirst := func(d *RandomSource, a Attempt) bool { return d.attemptRand(a.Request, -40-a.N).IntN(n) == 0 }
	return selectModel(isFirst, ScaleLatency(m, factor), m)
}

// WithIntervalModel returns a model that uses the model then for attempts that start in [from, to), and else otherwise.
func WithIntervalModel(from, to time.Duration, then, otherwise LatencyModel) LatencyModel {
	return selectModel(func(_ *RandomSource, a Attempt) bool { return a.At >= from && a.At < to }, then, otherwise)
}

// ScaleHedgeLatency returns a model that multiplies the latency of hedges by factor.
func ScaleHedgeLatency(m LatencyModel, factor float64) LatencyModel {
	return selectModel(func(_ *RandomSource, a Attempt) bool { return a.N > 0 }, ScaleLatency(m, factor), m)
}

// ScaleLatency returns a model that multiplies all latencies of m by factor.
func ScaleLatency(m LatencyModel, factor float64) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration { return time.Duration(factor * float64(m(d, a))) }
}

// WithHangUntil returns a model of a server that hangs until a time of the simulation, and then answers.
func WithHangUntil(m LatencyModel, until time.Duration) LatencyModel {
	return func(d *RandomSource, a Attempt) time.Duration { return until - a.At + m(d, a) }
}

// SelectByHost returns a model that uses the model then at one host, and the model otherwise at all other hosts.
func SelectByHost(host int, then, otherwise LatencyModel) LatencyModel {
	return selectModel(func(_ *RandomSource, a Attempt) bool { return a.Host == host }, then, otherwise)
}
