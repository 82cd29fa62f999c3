package netsim

import (
	"math/rand/v2"
	"time"
)

// A Profile describes how a link delays and loses packets. The zero value delivers all packets at once.
type Profile struct {
	// Delay is the distribution of the time that a packet takes; nil: no time.
	Delay Dist

	// Loss is the probability, from 0 to 1, that a packet is lost. Losses are independent.
	Loss float64

	// Burst, if not nil, loses further packets in bursts.
	Burst *Burst

	// Reorder is the probability, from 0 to 1, that a packet may overtake earlier packets of its flow: those with the same addresses,
	// protocol and ports. Other packets keep the order of their flow, even if their delay is shorter. Flows do not wait for each other.
	Reorder float64

	// Rate is the capacity of the link in bytes per second; 0: no limit.
	// A packet that would wait for a second or more is lost.
	Rate int

	// BlackHole loses all packets.
	BlackHole bool
}

// A Burst is the Gilbert–Elliott model of packet loss: a link is in a good or a bad state. After each packet, it may change its state. Each
// state has its own loss probability.
type Burst struct {
	GoodToBad float64 // probability per packet
	BadToGood float64 // probability per packet; its inverse is the mean length of a burst in packets
	LossGood  float64
	LossBad   float64
}

// A Dist returns random durations of a distribution. Its argument must be its only source of randomness.
type Dist func(*rand.Rand) time.Duration

// Constant returns the distribution that always gives d.
func Constant(d time.Duration) Dist { return func(*rand.Rand) time.Duration { return d } }

// Uniform returns the uniform distribution from lo to hi.
func Uniform(lo, hi time.Duration) Dist {
	return func(r *rand.Rand) time.Duration {
		return lo + time.Duration(r.Float64()*float64(hi-lo))
	}
}

// Spikes returns the distribution of base, to which a duration of extra is added with probability p.
func Spikes(base Dist, p float64, extra Dist) Dist {
	return func(r *rand.Rand) time.Duration {
		d := base(r)
		if r.Float64() < p {
			d += extra(r)
		}
		return d
	}
}
