package engine

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/sketch"
)

const (
	// MinSamples is how many latencies a key must have learned before it hedges:
	// a guessed delay doubles the load of every service that is slower.
	MinSamples = 10

	everyPlan = 256 // completions after which a plan is made anew; sooner while there are few

	// The first brake: if most calls reach their first delay, it is an outage, not a tail.
	slowWeight = 1.0 / 32
	SlowLimit  = 0.75 // no hedge starts above it; not below 0.7, which the calls reach when one of three replicas pauses

	// The second brake: hedges that do not win spend a tenth of the budget.
	payFired   = 100
	payWins    = 2
	payRestore = 5
	payFloor   = 0.1

	minPause = time.Second
	maxPause = 30 * time.Second
	topPause = time.Hour // what a server may ask for

	// MaxInFlight bounds the hedges of one key in flight.
	MaxInFlight = 1000
)

// A Key is what is known of one thing that latency is learned for. Its methods
// are safe for concurrent use. Time comes in as an argument, so that a
// simulation can drive a key by its own clock.
type Key struct {
	Name Name
	Tag  atomic.Int32 // for the adapter's use; starts at 0

	engine      *Engine
	bucket      *Bucket              // may be shared with other keys
	routeBudget *Bucket              // of a route with a share of its own; else nil
	plan        atomic.Pointer[Plan] // nil: do not hedge
	used        atomic.Int64         // when a call last began, Unix ns
	count       atomic.Int64         // requests
	inFlight    atomic.Int64         // hedges

	mu         sync.Mutex    // guards the fields below
	window     sketch.Window // what callers waited; in shadow mode, what they would have waited with hedges
	actual     sketch.Window // in shadow mode: what callers waited
	since      int           // completions since the plan was made
	slow       float64       // moving average of "reached its first delay"
	scale      float64       // of the budget, in [payFloor, 1]
	fired      int           // hedges since scale was last judged
	won        int
	pausedTo   time.Time
	pause      time.Duration // how long the last one was
	hedges     int64
	wins       int64
	shadowWins int64         // by hedges that were not sent
	saved      time.Duration // by the wins of either, estimated
	residual   *residual     // nil: nothing is known
	denied     [Reasons]int64

	exhausted bool            // the budget refused a hedge, and has not been half full since
	notices   *[topics]notice // nil: nobody is told
}

func newKey(e *Engine, name Name, host *Bucket, share float64) *Key {
	k := &Key{Name: name, engine: e, scale: 1}
	c := e.Config()
	switch {
	case c.Shared != nil:
		k.bucket = c.Shared
	case host != nil:
		k.bucket = host
	default:
		k.bucket = NewBucket(c.Share, c.burst(0))
	}
	if share > 0 {
		k.routeBudget = NewBucket(share, c.burst(0)*share/max(c.Share, share))
	}
	k.plan.Store(c.cold())
	return k
}

// Plan returns the current plan; nil means that calls are not hedged.
func (k *Key) Plan() *Plan { return k.plan.Load() }

// Begin counts a call that starts now and returns the plan for it.
func (k *Key) Begin(now time.Time) *Plan {
	k.used.Store(now.UnixNano())
	k.count.Add(1)
	k.bucket.Earn()
	if k.routeBudget != nil {
		k.routeBudget.Earn()
	}
	return k.plan.Load()
}

// Admit is called when a call is unanswered at the delay with the given index (0
// is the first). It returns None if a hedge may start; then it has spent the
// budget, and the hedge counts as in flight until Ended. A denial other than None
// is the caller's own reason to refuse. Calls whose delay was not learned say so:
// they do not tell whether the key is slow. In shadow mode, Admit returns Shadow
// where it would return None.
func (k *Key) Admit(now time.Time, index int, learned bool, deadline time.Time, denial Reason) Reason {
	k.mu.Lock()
	defer k.mu.Unlock()
	if index == 0 && learned {
		k.slow += (1 - k.slow) * slowWeight
	}
	if denial == None {
		denial = k.deny(now, deadline)
	}
	if denial != None {
		k.denied[denial]++
		k.exhausted = k.exhausted || denial == Budget
		return denial
	}
	k.fired++
	if k.engine.shadow {
		k.denied[Shadow]++
		return Shadow
	}
	k.inFlight.Add(1)
	k.hedges++
	return None
}

// RandomLatency returns how long a hedge might take: as long as one of the calls
// that are known. It is 0 if none is.
func (k *Key) RandomLatency() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, _ := k.actual.Quantile(rand.Float64())
	return d
}

// deny returns why no hedge may start now, or spends the budget and returns None.
// The caller holds mu.
func (k *Key) deny(now, deadline time.Time) Reason {
	p := k.plan.Load()
	switch {
	case k.slow > SlowLimit:
		return Slow
	case now.Before(k.pausedTo):
		return Paused
	case !deadline.IsZero() && p != nil && deadline.Sub(now) < p.Median:
		return Deadline
	case k.inFlight.Load() >= MaxInFlight:
		return InFlight
	}
	if k.routeBudget != nil && k.routeBudget.Tokens() < 1 || !k.engine.ceiling.Load().spend(now, k.bucket) {
		return Budget
	}
	if k.routeBudget != nil {
		k.routeBudget.Spend() // which nobody else does, under mu
	}
	return None
}

// Ended says that a hedge is no longer in flight.
func (k *Key) Ended() { k.inFlight.Add(-1) }

// A Result is how a call ended.
type Result struct {
	Latency  time.Duration // what the caller waited
	Answered bool          // by a success; a failure teaches nothing about latency
	Gone     bool          // the caller gave up, or its deadline passed
	Reached  bool          // its first delay
	Learned  bool          // that delay was the key's own
	HedgeWon bool
	Unsent   time.Duration // when the first of the hedges that were not sent would have answered; 0: none would
}

// Done learns from a call that ended now.
//
// A call that its caller abandoned counts with the time it was out if that
// exceeds its first delay: a sure lower bound. If it does not, it says nothing.
//
// Done returns how much longer the caller would have waited if no hedge had won.
//
// Changes of the key's state are found and told here, with no lock held.
func (k *Key) Done(now time.Time, r Result) (saved time.Duration) {
	k.mu.Lock()
	saved = k.done(now, r)
	changed := k.engine.changed
	if changed == nil {
		k.mu.Unlock()
		return saved
	}
	all, n := k.changes(now)
	k.mu.Unlock()
	for _, c := range all[:n] {
		changed(k.Name, c)
	}
	return saved
}

// done is Done without the changes. The caller holds mu.
func (k *Key) done(now time.Time, r Result) (saved time.Duration) {
	known := r.Answered || r.Gone && r.Reached
	switch {
	case k.engine.shadow && known:
		k.actual.Add(now, r.Latency)
		if r.Unsent > 0 && r.Unsent < r.Latency {
			saved = r.Latency - r.Unsent
			k.shadowWins++
			k.won++
			r.Latency = r.Unsent // which the caller would have waited
		}
	case r.Reached && known:
		if r.HedgeWon {
			saved = k.residual.after(r.Latency)
		}
		if k.residual == nil {
			k.residual = new(residual)
		}
		k.residual.add(r.Latency, r.Answered && !r.HedgeWon)
	}
	k.saved += saved
	if !r.Reached && r.Learned {
		k.slow -= k.slow * slowWeight
	}
	if r.HedgeWon {
		k.wins++
		k.won++
	}
	switch {
	case k.won >= payRestore:
		k.scale, k.fired, k.won = min(1, 2*k.scale), 0, 0
	case k.fired >= payFired:
		if k.won < payWins {
			k.scale = max(payFloor, k.scale/2)
		}
		k.fired, k.won = 0, 0
	}
	if !known {
		return saved
	}
	k.window.Add(now, r.Latency)
	k.since++
	if n := k.window.Len(); n >= MinSamples && k.since >= min(everyPlan, n/4) {
		k.replan(now)
	}
	return saved
}

// waited returns the window of what callers really waited. The caller holds mu.
func (k *Key) waited() *sketch.Window {
	if k.engine.shadow {
		return &k.actual
	}
	return &k.window
}

// replan publishes what the window teaches. The caller holds mu.
func (k *Key) replan(now time.Time) {
	k.since = 0
	c := k.engine.Config()
	rate, budget := k.window.Rate(now), c.Share
	if c.Shared == nil {
		// Others may pay into the bucket as well: its rate is the larger by as much.
		all := float64(k.bucket.requests.Load()) / float64(max(k.count.Load(), 1))
		k.bucket.Set(c.Share, c.burst(rate*max(all, 1)))
	}
	if k.routeBudget != nil && c.Share > 0 {
		budget = min(budget, k.routeBudget.share)
		k.routeBudget.Set(k.routeBudget.share, c.burst(rate)*budget/c.Share)
	}
	if p := c.plan(&k.window, budget*k.scale); p != nil {
		k.plan.Store(p)
	} else {
		k.plan.Store(c.cold())
	}
}

// PushBack pauses hedging because the server asked for less: for the given
// time (an hour at most), or if it is 0, for a second that doubles each time up
// to 30 s. While a pause lasts, only a longer request changes it.
func (k *Key) PushBack(now time.Time, d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.slow = 1
	switch {
	case d > 0:
		d = min(d, topPause)
	case now.Before(k.pausedTo):
		return
	case now.Sub(k.pausedTo) > maxPause:
		d = minPause
	default:
		d = min(max(2*k.pause, minPause), maxPause)
	}
	if to := now.Add(d); to.After(k.pausedTo) {
		k.pausedTo, k.pause = to, d
	}
}

// A View is what a key knows, at one moment.
type View struct {
	Name       Name
	Requests   int64
	Hedges     int64
	Wins       int64
	ShadowWins int64
	Saved      time.Duration
	Denied     [Reasons]int64
	Samples    int
	Delays     []time.Duration
	P50, P90   time.Duration
	P99        time.Duration
	Tokens     float64
	Scale      float64
	PausedTo   time.Time
	Slow       float64
}

// View returns what the key knows.
func (k *Key) View() View {
	k.mu.Lock()
	defer k.mu.Unlock()
	window := k.waited()
	v := View{
		Name: k.Name, Requests: k.count.Load(), Hedges: k.hedges, Wins: k.wins, ShadowWins: k.shadowWins, Saved: k.saved, Denied: k.denied,
		Samples: window.Len(), Tokens: k.bucket.Tokens(), Scale: k.scale, PausedTo: k.pausedTo, Slow: k.slow,
	}
	if p := k.plan.Load(); p != nil {
		v.Delays = slices.Clone(p.Delays)
	}
	v.P50, _ = window.Quantile(0.50)
	v.P90, _ = window.Quantile(0.90)
	v.P99, _ = window.Quantile(0.99)
	return v
}

// Quantile returns what callers waited, and false if none has yet.
func (k *Key) Quantile(q float64) (time.Duration, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waited().Quantile(q)
}

// reconfigure applies a changed configuration at once.
func (k *Key) reconfigure(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.replan(now)
}
