package policy

import (
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/observe"
)

// MinSamples is the number of latencies that a key must have recorded before its calls are hedged by learned delays. A guessed
// delay could be shorter than every latency of a slow service, and would double the load of that service.
const MinSamples = 10

// None is the empty Reason: the hedge is not denied.
const None observe.Reason = ""

// A Config holds the settings of an Engine. Each adapter supplies its own default values.
type Config struct {
	// Percentile is a quantile of the latencies, in [0, 1). The first hedge delay is at least this quantile.
	Percentile float64
	MaxHedges  int     // maximum number of hedges per call
	Share      float64 // budget in hedges per request, for example 0.05
	// EstimatedRPS is the assumed number of requests per second. It sets the burst until the rate is measured. Without
	// HasShortBucket, it is also the minimum of the measured rate.
	EstimatedRPS float64
	// Burst sets the capacity of the budget: the tokens that requests deposit in this time.
	Burst time.Duration
	// HasShortBucket adds a second, short token bucket to the bucket of each key, see [budget.Bucket].
	HasShortBucket bool
	MinDelay       time.Duration // minimum of the first delay and of the time between two hedges
	MaxDelay       time.Duration // no hedge is due later; 0: no limit
	InitialDelay   time.Duration // hedge delay while too few latencies are known; 0: calls are not hedged in that time
	MaxPerSecond   float64       // maximum number of hedges per second of all keys together; 0: no limit
	MaxKeys        int           // maximum number of keys; if there are more, the least recently used keys are evicted
	Shadow         bool          // shadow mode: hedges are decided and counted, but not sent
	Audit          bool          // measure the benefit of hedging for each host, see package audit; no effect in shadow mode

	Setup
}

// A Setup holds the settings of an Engine that cannot change after New.
type Setup struct {
	Client, Protocol string                        // names of the client and the protocol that observers get, see [observe.KeyInfo]
	Notifier         *observers.Notifier           // notifies the observers; nil: there are no observers
	Changed          func(observe.KeyInfo, Change) // called with each change that is due to be reported; nil: changes are not reported
	Shared           *budget.Bucket                // bucket that pays for the hedges of all keys; nil: keys do not share one bucket
	PerHost          bool                          // if Shared is nil: all keys of a host share one bucket
	Wall             func() time.Time              // returns the time of day for audits; nil: the clock of the engine is used
	MaxHedgeCost     int                           // highest cost of a hedge in tokens; 0: every hedge costs one token
}

// bucketSizing returns the settings from which the sizes of token buckets follow, for keys, hosts and routes. Each bucket
// holds at least twice the highest cost of a hedge.
func (c *Config) bucketSizing() budget.Sizing {
	s := budget.Sizing{Share: c.Share, EstimatedRPS: c.EstimatedRPS, Burst: c.Burst, HasShortBucket: c.HasShortBucket}
	if c.MaxHedgeCost > 1 {
		s.MinBurst = 2 * float64(c.MaxHedgeCost)
	}
	return s
}
