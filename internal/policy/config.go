package policy

import (
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/observe"
)

// MinSamples is the number of latencies that a key records before its calls are hedged. A guessed delay would double the load of every
// service that is slower.
const MinSamples = 10

// None means that there is no reason to deny a hedge.
const None observe.Reason = ""

// A Config holds the settings of an Engine. Each adapter has its own defaults.
type Config struct {
	Percentile     float64       // the first delay is at least this quantile of the latencies, in [0, 1)
	MaxHedges      int           // maximum per call
	Share          float64       // hedges per request
	EstimatedRPS   float64       // request rate that sizes the burst until the rate is measured; without HasShortBucket, also the least rate
	Burst          time.Duration // the burst is the budget that requests at that rate earn in this time
	HasShortBucket bool          // the bucket of a key has a short token bucket as well, see [budget.Bucket]
	MinDelay       time.Duration // minimum of the first delay and of the time between two hedges
	MaxDelay       time.Duration // no hedge is due later; 0: no limit
	InitialDelay   time.Duration // delay while too few latencies are known; 0: calls are not hedged then
	MaxPerSecond   float64       // maximum of hedges per second, of all keys together; 0: no limit
	MaxKeys        int           // maximum number of keys; the least recently used keys are evicted

	Setup
}

// A Setup holds the settings that cannot change after New.
type Setup struct {
	Client, Protocol string                        // as in [observe.KeyInfo]
	Notifier         *observers.Notifier           // notifies the observers; nil: there are no observers
	Changed          func(observe.KeyInfo, Change) // is called with each reported change of a key's state; may be nil
	Shared           *budget.Bucket                // bucket that pays for the hedges of all keys; nil: each key has its own bucket
	PerHost          bool                          // all keys of a host share one bucket
	Shadow           bool                          // shadow mode: hedges are decided and counted, but not sent
	Audit            bool                          // audit each host, see package audit
	Wall             func() time.Time              // returns the time of day, for audits; nil: the engine's clock shows the time of day
	MaxHedgeCost     int                           // highest cost of a hedge in tokens; 0: every hedge costs one token
}

// bucketSizing returns the settings for the sizes of the buckets of keys, hosts and routes.
func (c *Config) bucketSizing() budget.Sizing {
	s := budget.Sizing{Share: c.Share, EstimatedRPS: c.EstimatedRPS, Burst: c.Burst, HasShortBucket: c.HasShortBucket}
	if c.MaxHedgeCost > 1 {
		s.MinBurst = 2 * float64(c.MaxHedgeCost)
	}
	return s
}
