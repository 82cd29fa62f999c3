package policy

import (
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/observe"
)

// MinSamples is the number of latencies that a key must know before its calls are hedged. A guessed delay would double the load of every
// service that is slower.
const MinSamples = 10

// None is no reason to deny: a hedge may start.
const None observe.Reason = ""

// A Config holds the settings of an Engine. Each adapter has defaults of its own.
type Config struct {
	Percentile     float64       // never hedge before this quantile, in [0, 1)
	MaxHedges      int           // per call
	Share          float64       // hedges per request
	EstimatedRPS   float64       // sizes the burst until the rate is measured; without HasShortBucket, the rate counts as this at least
	Burst          time.Duration // for which the budget of that rate may be saved up
	HasShortBucket bool          // a key's bucket has a second limiter, see [budget.Bucket]
	MinDelay       time.Duration // before the first hedge, and between two
	MaxDelay       time.Duration // no hedge is due later; 0: no limit
	InitialDelay   time.Duration // before anything is learned; 0: do not hedge then
	MaxPerSecond   float64       // hedges of all keys per second; 0: no limit
	MaxKeys        int           // keys remembered; the least recently used go first

	Setup
}

// A Setup holds the settings that never change.
type Setup struct {
	Client, Protocol string                        // as in [observe.KeyInfo]
	Notifier         *observers.Notifier           // of observers; nil: there are none
	Changed          func(observe.KeyInfo, Change) // is called with changes of state, see [MinChangeInterval]; may be nil
	Shared           *budget.Bucket                // pays for all keys; nil: each key has its own
	PerHost          bool                          // keys of one host share its bucket, whatever their route
	Shadow           bool                          // learn, decide and count, but start no hedge
	Audit            bool                          // measure whether hedging helps, see package audit
	Wall             func() time.Time              // the time of day; nil: calls begin at the time of day
	MaxHedgeCost     int                           // tokens; 0: every hedge costs one token
}

// bucketSizing returns the sizes of the buckets of keys, hosts and routes.
func (c *Config) bucketSizing() budget.Sizing {
	s := budget.Sizing{Share: c.Share, EstimatedRPS: c.EstimatedRPS, Burst: c.Burst, HasShortBucket: c.HasShortBucket}
	if c.MaxHedgeCost > 1 {
		s.MinBurst = 2 * float64(c.MaxHedgeCost)
	}
	return s
}
