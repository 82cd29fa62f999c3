package budget

import "time"

const (
	// minShortShare and minShortBurst are the least share and burst of a short bucket. With higher values, the hedges of a thousand quiet
	// clients could keep a busy server overloaded for ever.
	minShortShare = 0.17
	minShortBurst = 3

	// minSizingRate is the least request rate for which a long bucket is sized. The slow calls of a quiet key come in clusters, for which
	// the bucket must hold enough tokens.
	minSizingRate = 100
)

// A Sizing holds the settings from which the sizes of buckets are computed.
type Sizing struct {
	Share          float64       // hedges per request
	EstimatedRPS   float64       // request rate until the rate is measured; without HasShortBucket, also the least request rate
	Burst          time.Duration // the burst holds the tokens that requests at that rate earn in this time
	HasShortBucket bool          // the bucket of a key or host also has a short token bucket, see [Bucket]
	MinBurst       float64       // least burst of every bucket, in tokens
}

// burstSizes returns the bursts of the long and the short bucket, in tokens, for a share and a request rate. If known is false,
// EstimatedRPS replaces rps.
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

func (s Sizing) shortShare() float64 { return max(minShortShare, s.Share) }
