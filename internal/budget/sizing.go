package budget

import "time"

const (
	// The short bucket of a key gains this share of a token per request, or the
	// budget's share if that is larger, and holds this many tokens at least. With more, a thousand
	// quiet clients of one busy server can drive it into a wave of hedges that lasts.
	minShortShare = 0.17
	minShortBurst = 3

	// The long bucket of a key whose rate is measured is sized for that rate, and for this
	// one at least: the tail of a quiet key comes in clusters, for which it must have saved.
	minSizingRate = 100
)

// A Sizing says how large buckets are.
type Sizing struct {
	Share          float64       // hedges per request
	EstimatedRPS   float64       // sizes the burst until the rate is measured; without Short, the rate counts as this at least
	Burst          time.Duration // how long the budget of that rate may be saved up
	HasShortBucket bool          // the bucket of a key or host has a second limiter, see [Bucket]
	MinBurst       float64       // what every bucket holds at least, if its share is not 0
}

// burstSizes returns what the buckets of a share may hold, whose rate is measured or unknown.
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
