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

// AddSample updates the estimate with took, a measured round trip time. share only matters for the first sample: it
// sets the mean deviation to share times took. RFC 6298 uses 1/2. A lower share gives shorter timeouts, for servers
// whose rare slow answers cost little.
func (e *Estimate[F]) AddSample(took time.Duration, share F) {
	d := F(took)
	if e.SRTT == 0 {
		e.SRTT, e.RTTVAR = d, d*share
		return
	}
	e.RTTVAR += (max(e.SRTT-d, d-e.SRTT) - e.RTTVAR) / 4
	e.SRTT = SmoothRTT(e.SRTT, took)
}

// UpperBound returns a time that a response rarely exceeds, for use as a retransmission timeout: SRTT plus four times
// RTTVAR, and at least floor. grain, in nanoseconds, is the least value that is added to SRTT. Without it, the bound of
// a server with constant times would be equal to its time (RFC 6298 §2.3).
func (e Estimate[F]) UpperBound(grain F, floor time.Duration) time.Duration {
	return max(floor, time.Duration(e.SRTT+max(4*e.RTTVAR, grain)))
}

// SmoothRTT returns the moving average of round trip times after a new sample d. It is an exponential average, in which
// d has the weight 1/8. avg is the average before that sample, in nanoseconds. An avg of 0 means that d is the first
// sample, and the result is d.
func SmoothRTT[F Float](avg F, d time.Duration) F {
	if avg == 0 {
		return F(d)
	}
	return avg + (F(d)-avg)/8
}
