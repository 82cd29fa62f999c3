package netsim

import (
	"math/rand/v2"
	"time"
)

// A Profile describes how a link delays and loses packets. The zero value delivers all packets at once.
type Profile struct {
	// Delay is the distribution of the time that a packet takes. If it is nil, packets take no time.
	Delay Dist

	// Loss is the probability, from 0 to 1, that a packet is lost. Losses are independent.
	Loss float64

	// Burst is a model by which additional packets are lost in bursts. If it is nil, there are no bursts.
	Burst *Burst

	// Reorder is the probability, from 0 to 1, that a packet may overtake earlier packets of its flow. A flow consists of the
	// packets with the same addresses, protocol and ports. All other packets keep the order of their flow, even if their delay
	// is shorter.
	Reorder float64

	// Rate is the capacity of the link in bytes per second. 0 means no limit. A packet that would have to wait for at least one
	// second is lost.
	Rate int

	// BlackHole makes the link lose all packets.
	BlackHole bool
}

// A Burst is the Gilbert–Elliott model of packet loss. A link is either in the good or in the bad state, and each state has its
// own loss probability. After each packet, the link may change to the other state.
type Burst struct {
	GoodToBad float64 // probability, for each packet, of a change to the bad state
	BadToGood float64 // probability, for each packet, of a change to the good state; 1/BadToGood is the mean length of a burst in packets
	LossGood  float64 // loss probability in the good state, from 0 to 1
	LossBad   float64 // loss probability in the bad state, from 0 to 1
}

// A Dist is a distribution of durations: each call returns a random duration. It must use its argument as its only source of
// random numbers, so that results can be repeated.
type Dist func(*rand.Rand) time.Duration

// Constant returns a distribution whose only value is d.
func Constant(d time.Duration) Dist { return func(*rand.Rand) time.Duration { return d } }

// Uniform returns the uniform distribution of durations from lo to hi.
func Uniform(lo, hi time.Duration) Dist {
	return func(r *rand.Rand) time.Duration {
		return lo + time.Duration(r.Float64()*float64(hi-lo))
	}
}

// Spikes returns a distribution of the sum of two durations: one of base and, with probability p, one of extra.
func Spikes(base Dist, p float64, extra Dist) Dist {
	return func(r *rand.Rand) time.Duration {
		d := base(r)
		if r.Float64() < p {
			d += extra(r)
		}
		return d
	}
}
