package virtual

import (
	"math"
	"math/rand/v2"
	"time"
)

// Draws are the random numbers of a run. They must not be used from several goroutines at once.
type Draws struct {
	seed   uint64
	source source
	rng    *rand.Rand
}

// NewDraws returns the numbers of the first episode of a run.
func NewDraws(seed uint64) *Draws { return newDraws(seed, 0) }

func newDraws(seed uint64, episode int) *Draws {
	d := &Draws{seed: mix(seed + mix(uint64(episode)))}
	d.rng = rand.New(&d.source)
	return d
}

// at returns the stream of an attempt. It is valid until the next call.
func (d *Draws) at(request, attempt int) *rand.Rand {
	d.source = source(mix(d.seed ^ mix(uint64(request)<<8^uint64(attempt+128))))
	return d.rng
}

// Gap returns the time between the arrival of a request and that before it, if
// they arrive at random at the given rate per second.
func (d *Draws) Gap(request int, rate float64) time.Duration {
	return time.Duration(d.at(request, -1).ExpFloat64() / rate * 1e9)
}

// source is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
// number generators", OOPSLA 2014): made for many short streams.
type source uint64

func (s *source) Uint64() uint64 {
	*s += 0x9e3779b97f4a7c15
	return mix(uint64(*s))
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// An Attempt is what a Model is asked about.
type Attempt struct {
	Request int
	N       int // 0 is the primary
	Host    int
	At      time.Duration // when it is begun, since the beginning of the episode
}

// A Model says how long an attempt takes. It depends on nothing but its arguments.
type Model func(d *Draws, a Attempt) time.Duration

// Own returns the random numbers of the attempt.
func (a Attempt) Own(d *Draws) *rand.Rand { return d.at(a.Request, a.N) }

// Common returns random numbers that all attempts of the request share.
func (a Attempt) Common(d *Draws) *rand.Rand { return d.at(a.Request, -100) }

// Lognormal takes a lognormal time of the given mean and deviation.
func Lognormal(mean, deviation time.Duration) Model {
	ratio := float64(deviation) / float64(mean)
	sigma := math.Sqrt(math.Log(1 + ratio*ratio))
	mu := math.Log(float64(mean)) - sigma*sigma/2
	return func(d *Draws, a Attempt) time.Duration {
		return time.Duration(math.Exp(mu + sigma*a.Own(d).NormFloat64()))
	}
}

// Drawn takes one of the given times, at random.
func Drawn(times []time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration { return times[a.Own(d).IntN(len(times))] }
}

// Pareto takes at least scale, and longer than x with probability (scale/x)^shape.
func Pareto(scale time.Duration, shape float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		return time.Duration(float64(scale) * math.Pow(1-a.Own(d).Float64(), -1/shape))
	}
}

// Constant takes t, plus or minus at most the given share of it.
func Constant(t time.Duration, share float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		return time.Duration(float64(t) * (1 + share*(2*a.Own(d).Float64()-1)))
	}
}

// Stragglers makes a share of the attempts slower by factor.
func Stragglers(m Model, share, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		t := m(d, a)
		if d.rng.Float64() < share { // the attempt's own stream, read on
			t = time.Duration(float64(t) * factor)
		}
		return t
	}
}

// Late makes a share of the attempts take longer by the given time.
func Late(m Model, share float64, by time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration {
		t := m(d, a)
		if d.rng.Float64() < share { // the attempt's own stream, read on
			t += by
		}
		return t
	}
}

// Inherent takes slow's time for a share of the requests, for each of their
// attempts, and fast's for the others: a hedge of a cache miss misses as well.
func Inherent(fast, slow Model, share float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.Common(d).Float64() < share {
			return slow(d, a)
		}
		return fast(d, a)
	}
}

// Replicas spreads attempts over n replicas at random, the first of which is
// slower by factor.
func Replicas(m Model, n int, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if d.at(a.Request, -40-a.N).IntN(n) > 0 {
			return m(d, a)
		}
		return time.Duration(factor * float64(m(d, a)))
	}
}

// Pauses spreads attempts over n replicas at random. Each stops once in every
// period, as for garbage collection, for half to one and a half times the given
// pause, and what it was doing waits.
func Pauses(m Model, n int, pause, period time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration {
		replica := d.at(a.Request, -40-a.N).IntN(n)
		left := m(d, a)
		at := a.At
		for k := int(at / period); ; k++ {
			r := d.at(k*n+replica, -60)
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

// Between changes the model for attempts begun in [from, to).
func Between(from, to time.Duration, then, otherwise Model) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.At >= from && a.At < to {
			return then(d, a)
		}
		return otherwise(d, a)
	}
}

// Hedges makes all attempts but the primaries slower by factor.
func Hedges(m Model, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.N == 0 {
			return m(d, a)
		}
		return time.Duration(factor * float64(m(d, a)))
	}
}

// Times makes everything slower by factor.
func Times(m Model, factor float64) Model {
	return func(d *Draws, a Attempt) time.Duration { return time.Duration(factor * float64(m(d, a))) }
}

// Hang answers nothing before the given time, and then as m does.
func Hang(m Model, until time.Duration) Model {
	return func(d *Draws, a Attempt) time.Duration { return until - a.At + m(d, a) }
}

// OnHost changes the model for one host.
func OnHost(host int, then, otherwise Model) Model {
	return func(d *Draws, a Attempt) time.Duration {
		if a.Host == host {
			return then(d, a)
		}
		return otherwise(d, a)
	}
}
