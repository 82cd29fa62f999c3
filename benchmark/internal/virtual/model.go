package virtual

import (
	"math"
	"math/rand/v2"
	"time"
)

// Draws are the random numbers of a run. They are not safe for concurrent use.
type Draws struct {
	seed   uint64
	source splitMix
	rng    *rand.Rand
}

// NewDraws returns the random numbers of the first episode of a run.
func NewDraws(seed uint64) *Draws { return newEpisodeDraws(seed, 0) }

func newEpisodeDraws(seed uint64, episode int) *Draws {
	d := &Draws{seed: mixBits(seed + mixBits(uint64(episode)))}
	d.rng = rand.New(&d.source)
	return d
}

// randomOf returns the random numbers of an attempt. They are valid until the next call.
func (d *Draws) randomOf(request, attempt int) *rand.Rand {
	d.source = splitMix(mixBits(d.seed ^ mixBits(uint64(request)<<8^uint64(attempt+128))))
	return d.rng
}

// ArrivalGap returns the time between the arrivals of a request and the request before it, in a Poisson process with a
// rate per second.
func (d *Draws) ArrivalGap(request int, rate float64) time.Duration {
	return time.Duration(d.randomOf(request, -1).ExpFloat64() / rate * 1e9)
}

// A splitMix is SplitMix64, a generator for many short streams (Steele, Lea, Flood: "Fast splittable pseudorandom
// number generators", OOPSLA 2014).
type splitMix uint64

func (s *splitMix) Uint64() uint64 {
	*s += 0x9e3779b97f4a7c15
	return mixBits(uint64(*s))
}

func mixBits(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// An Attempt identifies an attempt for a Model.
type Attempt struct {
	Request int
	N       int // 0 is the primary
	Host    int
	At      time.Duration // of its start, since the start of the episode
}

// A Model returns the duration of an attempt. The result depends on the arguments alone.
type Model func(d *Draws, a Attempt) time.Duration

// OwnRandom returns the random numbers of the attempt.
func (a Attempt) OwnRandom(d *Draws) *rand.Rand { return d.randomOf(a.Request, a.N) }

// SharedRandom returns the random numbers that all attempts of the request share.
func (a Attempt) SharedRandom(d *Draws) *rand.Rand { return d.randomOf(a.Request, -100) }

// LognormalLatency has a lognormal distribution with the given mean and standard deviation.
func LognormalLatency(mean, deviation time.Duration) Model {
	ratio := float64(deviation) / float64(mean)
	sigma := math.Sqrt(math.Log(1 + ratio*ratio))
	mu := math.Log(float64(mean)) - sigma*sigma/2
	return func(d *Draws, a Attempt) time.Duration {
		return time.Duration(math.Exp(mu + sigma*a.OwnRandom(d).NormFloat64()))
	}
}

// SampledLatency is one of the given times, at random.
func SampledLatency(times []time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration { return times[a.OwnRandom(d).IntN(len(times))] }
}

// ParetoLatency is at least scale, and longer than x with probability (scale/x)^shape.
func ParetoLatency(scale time.Duration, shape float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		return time.Duration(float64(scale) * math.Pow(1-a.OwnRandom(d).Float64(), -1/shape))
	}
}

// ConstantLatency is t, plus or minus at most a share of it.
func ConstantLatency(t time.Duration, share float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		return time.Duration(float64(t) * (1 + share*(2*a.OwnRandom(d).Float64()-1)))
	}
}

// WithStragglers multiplies the latency of a share of the attempts by factor.
func WithStragglers(m Model, share, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		t := m(d, a)
		if d.rng.Float64() < share { // the next number of the attempt
			t = time.Duration(float64(t) * factor)
		}
		return t
	}
}

// WithDelays adds a time to the latency of a share of the attempts.
func WithDelays(m Model, share float64, by time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration {
		t := m(d, a)
		if d.rng.Float64() < share { // the next number of the attempt
			t += by
		}
		return t
	}
}

// MixByRequest uses the model slow for all attempts of a share of the requests, and fast for the others. It models a
// cache: the hedge of a cache miss misses as well.
func MixByRequest(fast, slow Model, share float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.SharedRandom(d).Float64() < share {
			return slow(d, a)
		}
		return fast(d, a)
	}
}

// WithSlowReplica sends each attempt to one of n replicas at random. The latency of the first replica is multiplied by
// factor.
func WithSlowReplica(m Model, n int, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if d.randomOf(a.Request, -40-a.N).IntN(n) > 0 {
			return m(d, a)
		}
		return time.Duration(factor * float64(m(d, a)))
	}
}

// WithPauses sends each attempt to one of n replicas at random. Each replica stops once in every period, as for garbage
// collection, for half to one and a half times the pause. Its attempts continue after that.
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

// DuringInterval uses the model then for attempts that start in [from, to).
func DuringInterval(from, to time.Duration, then, otherwise Model) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.At >= from && a.At < to {
			return then(d, a)
		}
		return otherwise(d, a)
	}
}

// WithSlowHedges multiplies the latency of hedges by factor.
func WithSlowHedges(m Model, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.N == 0 {
			return m(d, a)
		}
		return time.Duration(factor * float64(m(d, a)))
	}
}

// ScaleLatency multiplies the latency of all attempts by factor.
func ScaleLatency(m Model, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration { return time.Duration(factor * float64(m(d, a))) }
}

// HangUntil delays all answers to the given time, and then by the latency of m.
func HangUntil(m Model, until time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration { return until - a.At + m(d, a) }
}

// OnHost uses the model then for one host.
func OnHost(host int, then, otherwise Model) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.Host == host {
			return then(d, a)
		}
		return otherwise(d, a)
	}
}
