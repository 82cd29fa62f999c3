package budget

import "time"

const (
	// minShortShare (in tokens per request) and minShortBurst (in tokens) are the minimum refill and size of a short bucket.
	// With higher values, the hedges of a thousand clients with few requests could permanently overload a busy server.
	minShortShare = 0.17
	minShortBurst = 3

	// minSizingRate is the minimum request rate, in requests per second, for which a long bucket is sized. The slow calls of a
	// key with few requests come in clusters, and the bucket must hold enough tokens for a cluster.
	minSizingRate = 100
)

// A Sizing holds the settings that determine the sizes of buckets and reserves.
type Sizing struct {
	Share float64 // hedges per request
	// EstimatedRPS is the assumed number of requests per second until the rate is measured. Without HasShortBucket, it is also
	// the minimum of the rate.
	EstimatedRPS   float64
	Burst          time.Duration // the burst is the number of tokens that requests deposit in this time
	HasShortBucket bool          // buckets of keys and hosts also have a short token bucket, see [Bucket]
	MinBurst       float64       // minimum burst of every bucket, in tokens
}

// burstSizes returns the sizes of the long and the short token bucket of a [Bucket], in tokens. The argument share is in
// hedges per request, and rps is the measured rate in requests per second. If known is false, burstSizes uses EstimatedRPS
// in place of rps.
func (s Sizing) burstSizes(share, rps float64, known bool) (long, short float64) {
	sized := rps
	switch {
	case !known:
		rps, sized = s.EstimatedRPS, s.EstimatedRPS
	case !s.HasShortBucket:
		sized = max(rps, s.EstimatedRPS)
	default:
		sized = max(rps, minSizingRate)
	}
	perRPS := s.Burst.Seconds() * share
	return max(s.MinBurst, perRPS*sized), max(minShortBurst, s.MinBurst, perRPS*rps)
}

// shortShare returns the number of tokens that each request deposits in a short bucket.
func (s Sizing) shortShare() float64 { return max(minShortShare, s.Share) }
