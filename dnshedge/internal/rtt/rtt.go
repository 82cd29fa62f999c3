// Package rtt learns round trip times of servers as RFC 6298 does. It keeps no clock and no lock:
// both are the caller's.
package rtt

import "time"

// Float is the type of stored times, in ns. A float32 halves the memory of large tables.
type Float interface{ float32 | float64 }

// Estimate is the smoothed response time of a server and its deviation. The zero value has no sample.
type Estimate[F Float] struct {
	SRTT   F // smoothed round trip time, ns; 0: nothing was measured
	RTTVAR F // its mean deviation, ns
}

// AddSample adds the response time of an answer. The deviation of the first sample is the given share of its time. The
// share is a half in RFC 6298, and less where a server that is slow once costs little.
func (e *Estimate[F]) AddSample(took time.Duration, share F) {
	d := F(took)
	if e.SRTT == 0 {
		e.SRTT, e.RTTVAR = d, d*share
		return
	}
	e.RTTVAR += (max(e.SRTT-d, d-e.SRTT) - e.RTTVAR) / 4
	e.SRTT = SmoothRTT(e.SRTT, took)
}

// UpperBound returns the time that an answer hardly ever exceeds, floor at least. Grain is the least
// deviation in ns: without it, answers that all take the same time would make the bound just as long (§2.3).
func (e Estimate[F]) UpperBound(grain F, floor time.Duration) time.Duration {
	return max(floor, time.Duration(e.SRTT+max(4*e.RTTVAR, grain)))
}

// SmoothRTT returns the moving average of times after one more sample. An average of 0 has none.
func SmoothRTT[F Float](avg F, d time.Duration) F {
	if avg == 0 {
		return F(d)
	}
	return avg + (F(d)-avg)/8
}
