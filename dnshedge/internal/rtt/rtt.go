// Package rtt estimates round trip times of servers as RFC 6298 does. It has no clock and no locks: callers measure
// times and synchronize access.
package rtt

import "time"

// Float is the type of the times in an Estimate, which are in nanoseconds. A table with many estimates uses float32,
// which takes half of the memory.
type Float interface{ float32 | float64 }

// An Estimate is the smoothed round trip time of a server and the mean deviation from it, as in RFC 6298. The zero
// value has no sample. An Estimate is not safe for concurrent use.
type Estimate[F Float] struct {
	SRTT   F // smoothed round trip time in ns; 0: no sample
	RTTVAR F // mean deviation in ns
}

// AddSample updates the estimate with took, a measured round trip time. The first sample sets the mean deviation to
// share times took, where RFC 6298 uses a share of 1/2. A lower share makes the first timeouts shorter. Later samples
// ignore share.
func (e *Estimate[F]) AddSample(took time.Duration, share F) {
	d := F(took)
	if e.SRTT == 0 {
		e.SRTT, e.RTTVAR = d, d*share
		return
	}
	e.RTTVAR += (max(e.SRTT-d, d-e.SRTT) - e.RTTVAR) / 4
	e.SRTT = SmoothRTT(e.SRTT, took)
}

// UpperBound returns a retransmission timeout (RFC 6298 §2): SRTT plus the larger of 4*RTTVAR and grain, but at least
// floor. grain is in nanoseconds. It keeps the timeout above SRTT if all samples are equal.
func (e Estimate[F]) UpperBound(grain F, floor time.Duration) time.Duration {
	return max(floor, time.Duration(e.SRTT+max(4*e.RTTVAR, grain)))
}

// SmoothRTT returns the exponential moving average of round trip times after the new sample d, which has the weight
// 1/8. avg is the average before d, in nanoseconds. If avg is 0, d is the first sample, and the result is d.
func SmoothRTT[F Float](avg F, d time.Duration) F {
	if avg == 0 {
		return F(d)
	}
	return avg + (F(d)-avg)/8
}
