// Package rtt estimates round trip times of servers as RFC 6298 does. It has no clock and no locks: callers measure
// times and synchronize access.
package rtt

import "time"

// Float is the type of stored times, in ns. A float32 halves the memory of large tables.
type Float interface{ float32 | float64 }

// Estimate is the smoothed round trip time of a server and its mean deviation. The zero value has no sample.
type Estimate[F Float] struct {
	SRTT   F // smoothed round trip time in ns; 0: no sample
	RTTVAR F // mean deviation in ns
}

// AddSample adds a measured round trip time. share is the deviation of the first sample, as a share of its time: 1/2 in
// RFC 6298, and less where a single slow answer of a server costs little.
func (e *Estimate[F]) AddSample(took time.Duration, share F) {
	d := F(took)
	if e.SRTT == 0 {
		e.SRTT, e.RTTVAR = d, d*share
		return
	}
	e.RTTVAR += (max(e.SRTT-d, d-e.SRTT) - e.RTTVAR) / 4
	e.SRTT = SmoothRTT(e.SRTT, took)
}

// UpperBound returns the time that an answer rarely exceeds: SRTT plus four times the deviation, and at least floor.
// grain is the lowest deviation term, in ns: without it, a server with constant times would get a bound equal to its
// time (RFC 6298 §2.3).
func (e Estimate[F]) UpperBound(grain F, floor time.Duration) time.Duration {
	return max(floor, time.Duration(e.SRTT+max(4*e.RTTVAR, grain)))
}

// SmoothRTT returns the moving average avg, in ns, after another sample d. If avg is 0, the result is d.
func SmoothRTT[F Float](avg F, d time.Duration) F {
	if avg == 0 {
		return F(d)
	}
	return avg + (F(d)-avg)/8
}
