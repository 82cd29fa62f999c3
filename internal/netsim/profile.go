package netsim

import (
	"math/rand/v2"
	"time"
)

// Profile is what a link does to packets. The zero value delivers all of them
// at once.
type Profile struct {
	// Delay is how long a packet travels. Nil: no time.
	Delay Dist

	// Loss is the share of packets lost, each by itself, from 0 to 1.
	Loss float64

	// Burst, if not nil, loses packets in bursts, besides Loss.
	Burst *Burst

	// Reorder is the share of packets, from 0 to 1, that may overtake earlier
	// packets of their flow (the same addresses, protocol and ports). The others
	// keep the flow's order, however long a delay each drew; flows do not wait for
	// each other.
	Reorder float64

	// Rate is how many bytes per second the link carries. Zero: no limit.
	// A packet that would wait for a second or more is lost.
	Rate int

	// BlackHole loses everything.
	BlackHole bool
}

// Burst is the Gilbert–Elliott model: a link is good or bad, changes between the
// two at packets, and loses a share of packets that depends on which it is.
type Burst struct {
	GoodToBad float64 // probability per packet
	BadToGood float64 // probability per packet; its inverse is a burst's mean length
	LossGood  float64
	LossBad   float64
}

// Dist is a distribution of durations. It must use no other source of
// randomness than the one it is given.
type Dist func(*rand.Rand) time.Duration

// Constant is d every time.
func Constant(d time.Duration) Dist { return func(*rand.Rand) time.Duration { return d } }

// Uniform is anything from lo up to hi.
func Uniform(lo, hi time.Duration) Dist {
	return func(r *rand.Rand) time.Duration {
		return lo + time.Duration(r.Float64()*float64(hi-lo))
	}
}

// Spikes is base, and with probability p more by extra.
func Spikes(base Dist, p float64, extra Dist) Dist {
	return func(r *rand.Rand) time.Duration {
		d := base(r)
		if r.Float64() < p {
			d += extra(r)
		}
		return d
	}
}
