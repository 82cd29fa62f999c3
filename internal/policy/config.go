package policy

import (
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/watch"
	"github.com/gohedge/hedge/observe"
)

// MinSamples is how many latencies a key must have learned before it hedges:
// a guessed delay doubles the load of every service that is slower.
const MinSamples = 10

// None is no reason to deny: a hedge may start.
const None observe.Reason = ""

// A Config says what an Engine may do. Each adapter has defaults of its own.
type Config struct {
	Percentile   float64       // never hedge before this quantile, in [0, 1)
	MaxHedges    int           // per call
	Share        float64       // hedges per request
	EstimatedRPS float64       // sizes the burst until the rate is measured; without Short, the rate counts as this at least
	Burst        time.Duration // how long the budget of that rate may be saved up
	Short        bool          // a key's bucket has a second limiter, see [budget.Bucket]
	MinDelay     time.Duration // before the first hedge, and between two
	MaxDelay     time.Duration // no hedge is due later; 0: no limit
	InitialDelay time.Duration // before anything is learned; 0: do not hedge then
	MaxPerSecond float64       // hedges of all keys per second; 0: no limit
	MaxKeys      int           // keys remembered; the least recently used go first

	Setup
}

// Setup is what cannot be changed once there is an Engine.
type Setup struct {
	Client, Protocol string                        // as in [observe.KeyInfo]
	Watcher          *watch.Watcher                // is told what happens; nil: nobody is
	Changed          func(observe.KeyInfo, Change) // is told of changes of state, see [ChangeEvery]; nil: nobody is
	Shared           *budget.Bucket                // pays for all keys; nil: each key has its own
	PerHost          bool                          // keys of one host share its bucket, whatever their route
	Shadow           bool                          // learn, decide and count, but start no hedge
	Audit            bool                          // measure whether hedging helps, see package audit
	Wall             func() time.Time              // the time of day; nil: calls begin at the time of day
	MaxHedgeCost     int                           // what a hedge costs at most; 0: one token, as every other does
}

// sizing says how large the buckets of keys, hosts and routes are.
func (c *Config) sizing() budget.Sizing {
	s := budget.Sizing{Share: c.Share, EstimatedRPS: c.EstimatedRPS, Burst: c.Burst, Short: c.Short}
	if c.MaxHedgeCost > 1 {
		s.Least = 2 * float64(c.MaxHedgeCost)
	}
	return s
}
