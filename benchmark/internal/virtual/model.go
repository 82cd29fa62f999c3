package virtual

import (
	"math"
	"math/rand/v2"
	"time"
)

// Draws are the random numbers of an episode of a simulation. Each attempt has random numbers of its own, so that all
// policies meet the same latencies. They are not safe for concurrent use.
type Draws struct {
	seed   uint64
	source splitMix
	rng    *rand.Rand
}

// NewDraws returns the random numbers of the first episode of a simulation with the given seed.
func NewDraws(seed uint64) *Draws { return newEpisodeDraws(seed, 0) }

// newEpisodeDraws returns the random numbers of the episode with the given number, in a simulation with the given seed.
func newEpisodeDraws(seed uint64, episode int) *Draws {
	d := &Draws{seed: mixBits(seed + mixBits(uint64(episode)))}
	d.rng = rand.New(&d.source)
	return d
}

// randomOf returns the random numbers of an attempt, given by the numbers of its request and its attempt. Each negative
// number of an attempt stands for another purpose, for example the arrival of the request. The result is valid until the
// next call.
func (d *Draws) randomOf(request, attempt int) *rand.Rand {
	d.source = splitMix(mixBits(d.seed ^ mixBits(uint64(request)<<8^uint64(attempt+128))))
	return d.rng
}

// ArrivalGap returns the time between the arrival of a request, given by its number, and the arrival before it.
// Arrivals are a Poisson process with the given rate per second.
func (d *Draws) ArrivalGap(request int, rate float64) time.Duration {
	return time.Duration(d.randomOf(request, -1).ExpFloat64() / rate * 1e9)
}

// A splitMix is SplitMix64, a generator of random numbers for many short streams (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", OOPSLA 2014).
type splitMix uint64

func (s *splitMix) Uint64() uint64 {
	*s += 0x9e3779b97f4a7c15
	return mixBits(uint64(*s))
}

// mixBits returns a hash of z: the output function of SplitMix64.
func mixBits(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// An Attempt identifies an attempt for a Model, by its request, its number, its host and the time of its start.
type Attempt struct {
	Request int
	N       int // 0 is the primary
	Host    int
	At      time.Duration // of its start, since the start of the episode
}

// A Model returns the latency of an attempt at the simulated backend. The result depends on the attempt and on the seed
// of the random numbers alone.
type Model func(d *Draws, a Attempt) time.Duration

// OwnRandom returns the random numbers of this attempt alone, from d.
func (a Attempt) OwnRandom(d *Draws) *rand.Rand { return d.randomOf(a.Request, a.N) }

// SharedRandom returns the random numbers that all attempts of the request share, from d.
func (a Attempt) SharedRandom(d *Draws) *rand.Rand { return d.randomOf(a.Request, -100) }

// LognormalLatency returns a model of latencies with a lognormal distribution, given by its mean and its standard
// deviation.
func LognormalLatency(mean, deviation time.Duration) Model {
	ratio := float64(deviation) / float64(mean)
	sigma := math.Sqrt(math.Log(1 + ratio*ratio))
	mu := math.Log(float64(mean)) - sigma*sigma/2
	return func(d *Draws, a Attempt) time.Duration {
		return time.Duration(math.Exp(mu + sigma*a.OwnRandom(d).NormFloat64()))
	}
}

// SampledLatency returns a model that draws each latency from the given times.
func SampledLatency(times []time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration { return times[a.OwnRandom(d).IntN(len(times))] }
}

// ParetoLatency returns a model of latencies with a Pareto distribution: at least scale, and longer than x with
// probability (scale/x)^shape.
func ParetoLatency(scale time.Duration, shape float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		return time.Duration(float64(scale) * math.Pow(1-a.OwnRandom(d).Float64(), -1/shape))
	}
}

// ConstantLatency returns a model of latencies around t. They differ from t by at most a share of it, from 0 to 1.
func ConstantLatency(t time.Duration, share float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		return time.Duration(float64(t) * (1 + share*(2*a.OwnRandom(d).Float64()-1)))
	}
}

// WithStragglers returns model m, in which the latency of a share of the attempts is multiplied by factor.
func WithStragglers(m Model, share, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		t := m(d, a)
		if d.rng.Float64() < share { // the next number of the attempt
			t = time.Duration(float64(t) * factor)
		}
		return t
	}
}

// WithDelays returns model m, in which the latency of a share of the attempts is longer by a fixed time.
func WithDelays(m Model, share float64, by time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration {
		t := m(d, a)
		if d.rng.Float64() < share { // the next number of the attempt
			t += by
		}
		return t
	}
}

// MixByRequest returns a model that uses the model slow for all attempts of a share of the requests, and fast for the
// others. It models a cache: the hedge of a cache miss misses as well.
func MixByRequest(fast, slow Model, share float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.SharedRandom(d).Float64() < share {
			return slow(d, a)
		}
		return fast(d, a)
	}
}

// WithSlowReplica returns model m for n replicas, to which attempts go at random. The latency of the first replica is
// multiplied by factor.
func WithSlowReplica(m Model, n int, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if d.randomOf(a.Request, -40-a.N).IntN(n) > 0 {
			return m(d, a)
		}
		return time.Duration(factor * float64(m(d, a)))
	}
}

// WithPauses returns model m for n replicas, to which attempts go at random. Each replica stops once in every period,
// as for garbage collection. It stops for half to one and a half times the pause, and then goes on with its attempts.
func WithPauses(m Model, n int, pause, period time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration {
		replica := d.randomOf(a.Request, -40-a.N).IntN(n)
		left := m(d, a)
		at := a.At
		for k := int(at / period); ; k++ {
			r := d.randomOf(k*n+replica, -60)
			length := pause/2 + time.Duration(r.Int64N(int64(pause)))
			start := time.Duration(k)*period + time.Duration(r.Int64N(int64(period-length)))
			if start+length <= at {
				continue
			}
			if at+left <= start {
				return at + left - a.At
			}
			left -= max(0, start-at)
			at = start + length
		}
	}
}

// DuringInterval returns a model that uses the model then for attempts that start in [from, to), and the model
// otherwise for all others.
func DuringInterval(from, to time.Duration, then, otherwise Model) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.At >= from && a.At < to {
			return then(d, a)
		}
		return otherwise(d, a)
	}
}

// WithSlowHedges returns model m, in which the latency of hedges is multiplied by factor.
func WithSlowHedges(m Model, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.N == 0 {
			return m(d, a)
		}
		return time.Duration(factor * float64(m(d, a)))
	}
}

// ScaleLatency returns model m, in which the latency of all attempts is multiplied by factor.
func ScaleLatency(m Model, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration { return time.Duration(factor * float64(m(d, a))) }
}

// HangUntil returns a model of a server that does not work until the given time of the simulation. All attempts then
// take the latency of m.
func HangUntil(m Model, until time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration { return until - a.At + m(d, a) }
}

// OnHost returns a model that uses the model then for the host with the given number, and the model otherwise for all
// other hosts.
func OnHost(host int, then, otherwise Model) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.Host == host {
			return then(d, a)
		}
		return otherwise(d, a)
	}
}
