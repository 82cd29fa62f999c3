package engine

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

const (
	// A plan is made anew after so many completions, sooner while there are few, and
	// later where there are many: when a thirty-second of what counts in the window is
	// new, which in a busy window is every third of a second at any rate.
	everyPlan      = 256
	newShareOfPlan = 32

	// The first brake: if most calls reach the delay that was learned, it is an outage, not a tail.
	slowWeight = 1.0 / 16
	SlowLimit  = 0.75 // no hedge starts above it; not below 0.7, which the calls reach when one of three replicas pauses

	// The second brake: hedges that do not win spend a tenth of the budget.
	payFired   = 100
	payWins    = 2
	payRestore = 5
	payFloor   = 0.1

	// The third brake: if more than a few answers push back, the service has too much to do.
	pushWeight = 1.0 / 128
	PushStop   = 0.05             // no hedge starts from here on …
	PushResume = 0.025            // … until the share is below this
	maxPause   = 10 * time.Second // what a server may ask for beyond that

	// MaxInFlight bounds the hedges of one key in flight.
	MaxInFlight = 1000
)

// A Key is what is known of one thing that latency is learned for. Its methods
// are safe for concurrent use. Time comes in as an argument, so that a
// simulation can drive a key by its own clock.
type Key struct {
	Name Name
	Info observe.KeyInfo // of it, for observers
	Tag  atomic.Int32    // for the adapter's use; starts at 0

	engine      *Engine
	host        *Key                 // whose bucket this key shares; nil: no other's
	bucket      *budget.Bucket       // may be shared with other keys
	alone       bool                 // bucket is not shared
	routeBudget *budget.Bucket       // of a route with a share of its own; else nil
	routeShare  float64              // that share
	plan        atomic.Pointer[Plan] // nil: do not hedge
	used        atomic.Int64         // the engine's age when a call last began, see [Engine]
	inFlight    atomic.Int64         // hedges
	evicted     atomic.Bool          // the engine's table has forgotten it
	audit       *audit.Audit         // of the host; nil: it is not audited
	planning    sync.Mutex           // held by who makes a plan; locked before mu

	_     [64]byte     // what every call writes is not in a cache line with what it only reads
	count atomic.Int64 // requests; of a key that is alone its bucket counts them

	mu         sync.Mutex    // guards the fields below
	window     sketch.Window // what callers waited; in shadow mode, what they would have waited with hedges
	actual     sketch.Window // in shadow mode: what callers waited
	since      int           // completions since the plan was made
	due        int           // how many of them ask for another
	slow       float64       // moving average of "reached the learned delay"
	scale      float64       // of the budget, in [payFloor, 1]
	fired      int           // hedges since scale was last judged
	won        int
	push       float64 // moving average of "this answer pushed back"
	pushed     bool    // push exceeded PushStop, and has not been below PushResume since
	pausedTo   time.Time
	hedges     int64
	wins       int64
	shadowWins int64                    // by hedges that were not sent
	saved      time.Duration            // by the wins of either, estimated
	residual   *residual                // nil: nothing is known
	pauses     *pauses                  // of bodies; nil: nothing is known
	denied     map[observe.Reason]int64 // nil: no hedge was
	more       []*budget.Bucket         // which the adapter asks itself

	exhausted bool            // the budget refused a hedge, and has not been half full since
	notices   *[topics]Notice // nil: nobody is told
}

func newKey(e *Engine, name Name, host *Key, share float64) *Key {
	k := &Key{Name: name, Info: e.info(name), engine: e, host: host, scale: 1, due: MinSamples}
	c := e.Config()
	switch {
	case c.Shared != nil:
		k.bucket = c.Shared
	case host != nil:
		k.bucket = host.bucket
	default:
		k.bucket, k.alone = budget.NewSized(c.sizing()), !c.PerHost
	}
	if share > 0 {
		k.routeBudget, k.routeShare = budget.NewRoute(c.sizing(), share), share
	}
	k.plan.Store(c.cold())
	return k
}

// Is reports whether the engine would return k as the key of that name; a nil k it would
// not. To ask is cheaper than to have the engine find the key again.
func (k *Key) Is(name Name) bool { return k != nil && k.Name == name && !k.evicted.Load() }

// Plan returns the current plan; nil means that calls are not hedged.
func (k *Key) Plan() *Plan { return k.plan.Load() }

// AlsoPaidBy says that the adapter asks other buckets besides the key's, before Admit:
// the key's budget is exhausted while one of them is.
func (k *Key) AlsoPaidBy(more ...*budget.Bucket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.more = more
}

// Tokens returns how many hedges the budget would pay for now.
func (k *Key) Tokens() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tokens()
}

// tokens is Tokens. The caller holds mu.
func (k *Key) tokens() float64 {
	n := k.bucket.Tokens()
	for _, b := range k.more {
		n = min(n, b.Tokens())
	}
	return n
}

// requests returns how many calls have begun.
func (k *Key) requests() int64 {
	if k.alone {
		return k.bucket.Requests()
	}
	return k.count.Load()
}

// Begin counts a call that starts now and returns the plan for it.
func (k *Key) Begin(now time.Time) *Plan {
	if age := k.engine.aged(now); k.used.Load() != age {
		k.used.Store(age)
	}
	if a := k.audit; a != nil {
		if t := now.UnixNano(); a.Due(t) {
			a.Turn(t, k.engine.wall(now))
		}
	}
	if !k.alone {
		k.count.Add(1)
	}
	if k.bucket.Earn() == 1 {
		k.bucket.Start(now)
	}
	if k.routeBudget != nil && k.routeBudget.Earn() == 1 {
		k.routeBudget.Start(now)
	}
	return k.plan.Load()
}

// Admit is called when a hedge of a call is due. It returns None if it may start;
// then it has spent the budget, and the hedge counts as in flight until Ended. A
// denial other than None is the caller's own reason to refuse. Slow says that the call
// has just reached the delay by which it counts as slow, see [Plan]. In shadow mode,
// Admit returns DeniedShadow where it would return None.
func (k *Key) Admit(now time.Time, slow bool, deadline time.Time, denial observe.Reason) observe.Reason {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slow {
		k.slow += (1 - k.slow) * slowWeight
	}
	if denial == None {
		denial = k.deny(now, deadline)
	}
	if denial != None {
		k.countDenied(denial)
		emptied := k.audit != nil && k.audit.Fresh() != 0 // for a slot, which is no exhaustion
		k.exhausted = k.exhausted || denial == observe.DeniedBudget && !emptied
		return denial
	}
	k.fired++
	if k.engine.setup.Shadow {
		k.countDenied(observe.DeniedShadow)
		return observe.DeniedShadow
	}
	k.inFlight.Add(1)
	k.hedges++
	if k.audit != nil {
		k.audit.Hedged(1)
	}
	return None
}

// countDenied counts a hedge that was due and is not sent. The caller holds mu.
func (k *Key) countDenied(reason observe.Reason) {
	if k.denied == nil {
		k.denied = make(map[observe.Reason]int64)
	}
	k.denied[reason]++
}

// slowed says that a call counts as slow for which no hedge is due.
func (k *Key) slowed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.slow += (1 - k.slow) * slowWeight
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
func (k *Key) deny(now, deadline time.Time) observe.Reason {
	p := k.plan.Load()
	switch {
	case k.audit != nil && k.audit.Dark():
		return observe.DeniedAudit
	case k.slow > SlowLimit:
		return observe.DeniedSlow
	case k.paused(now):
		return observe.DeniedPaused
	case !deadline.IsZero() && p != nil && deadline.Sub(now) < p.Median:
		return observe.DeniedDeadline
	case k.inFlight.Load() >= MaxInFlight:
		return observe.DeniedInFlight
	}
	if k.audit != nil {
		if slot := k.audit.Fresh(); slot != 0 && k.engine.setup.Shared == nil {
			k.bucket.Empty(slot)
		}
	}
	if k.routeBudget != nil && !k.routeBudget.Pays() || !k.engine.ceiling.Load().Spend(now, k.bucket) {
		return observe.DeniedBudget
	}
	if k.routeBudget != nil {
		k.routeBudget.Spend() // which nobody else does, under mu
	}
	return None
}

// Refused says that a hedge which Admit let start was not sent, for the given reason. The
// budget has its token back, and the hedge counts as denied. Ended must be called as well.
func (k *Key) Refused(now time.Time, reason observe.Reason) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.countDenied(reason)
	k.hedges--
	if k.audit != nil {
		k.audit.Hedged(-1)
	}
	k.fired = max(k.fired-1, 0) // or it was judged meanwhile
	k.engine.ceiling.Load().GiveBack(now, k.bucket)
	if k.routeBudget != nil {
		k.routeBudget.GiveBack()
	}
}

// Ended says that a hedge is no longer in flight.
func (k *Key) Ended() { k.inFlight.Add(-1) }

// A Result is how a call ended.
type Result struct {
	Latency  time.Duration // what the caller waited
	Answered bool          // by a success; a failure teaches nothing about latency
	Gone     bool          // the caller gave up, or its deadline passed
	Reached  bool          // its first delay
	Learned  bool          // there was a delay by which it would count as slow
	Slow     bool          // and it has reached that delay
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
// Plans are made, and changes of the key's state told, with no lock held that
// another call could wait for.
func (k *Key) Done(now time.Time, r Result) (saved time.Duration) {
	at := sketch.Index(r.Latency)
	k.mu.Lock()
	saved = k.done(now, r, at)
	due, changed := k.since >= k.due, k.engine.setup.Changed
	var all [topics]Change
	var n int
	if changed != nil {
		all, n = k.changes(now)
	}
	k.mu.Unlock()
	if k.audit != nil && (r.Answered || r.Gone && r.Reached) {
		k.audit.Done(now.Add(-r.Latency).UnixNano(), at)
	}
	if due && k.planning.TryLock() { // or somebody else is at it
		k.replan(now)
		k.planning.Unlock()
	}
	for _, c := range all[:n] {
		changed(k.Info, c)
	}
	if k.audit != nil {
		k.tellAudit()
	}
	return saved
}

// tellAudit tells what the audit has found, if that is new.
func (k *Key) tellAudit() {
	v, turned, news := k.audit.News()
	if !news {
		return
	}
	host := k.engine.info(Name{Host: k.Name.Host})
	k.engine.setup.Watcher.Tell(func(o observe.Observer) { o.Audited(host, v) })
	if f := k.engine.setup.Changed; f != nil && turned {
		f(host, Change{Topic: Judging, Bad: v.Verdict == observe.AuditOff, Audit: v})
	}
}

// done is Done without plans and changes. The latency's index in the window is at,
// if no hedge that was not sent would have shortened it. The caller holds mu.
func (k *Key) done(now time.Time, r Result, at int) (saved time.Duration) {
	known := r.Answered || r.Gone && r.Reached
	if r.Answered && k.push > 0 {
		k.push -= k.push * pushWeight
		k.pushed = k.pushed && k.push >= PushResume
	}
	switch {
	case k.engine.setup.Shadow && known:
		k.actual.AddIndex(now, at)
		if r.Unsent > 0 && r.Unsent < r.Latency {
			saved = r.Latency - r.Unsent
			k.shadowWins++
			k.won++
			at = sketch.Index(r.Unsent) // which the caller would have waited
		}
	case r.Reached && known && k.audit == nil: // which measures what this estimates
		if r.HedgeWon {
			saved = k.residual.after(r.Latency)
		}
		if k.residual == nil {
			k.residual = new(residual)
		}
		k.residual.add(r.Latency, r.Answered && !r.HedgeWon)
	}
	k.saved += saved
	if r.Learned && !r.Slow {
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
	k.window.AddIndex(now, at)
	k.since++
	return saved
}

// waited returns the window of what callers really waited. The caller holds mu.
func (k *Key) waited() *sketch.Window {
	if k.engine.setup.Shadow {
		return &k.actual
	}
	return &k.window
}

var distributions = sync.Pool{New: func() any { return new(sketch.Distribution) }}

// replan publishes what the window teaches. The caller holds planning, but not mu:
// only to copy the window does replan lock that.
func (k *Key) replan(now time.Time) {
	d := distributions.Get().(*sketch.Distribution)
	defer distributions.Put(d)
	k.mu.Lock()
	k.window.Distribution(d)
	scale := k.scale
	k.since, k.due = 0, due(d)
	k.mu.Unlock()

	c := k.engine.Config()
	budget := c.Share
	if c.Shared == nil {
		k.bucket.Follow(c.sizing(), c.Share, now)
	}
	if k.routeBudget != nil {
		budget = min(budget, k.routeShare)
		k.routeBudget.Follow(c.sizing(), k.routeShare, now)
	}
	if p := c.plan(d, budget*scale); p != nil {
		k.plan.Store(p)
	} else {
		k.plan.Store(c.cold())
	}
}

// due returns after how many completions a plan made of d is out of date.
func due(d *sketch.Distribution) int {
	n := d.Len()
	if n < MinSamples {
		return MinSamples - n
	}
	return max(min(everyPlan, n/3), int(d.Weight()/newShareOfPlan))
}

// PushBack says that an answer asked for less: by its status, and if d is not 0, by
// asking to wait so long. It counts that answer among those that did, and Done counts
// those that did not. Where more than PushStop of the answers push back, no hedge
// starts until fewer than PushResume do; and while more than that do, none starts within
// d (10 s at most) of one that asked for it.
func (k *Key) PushBack(now time.Time, d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.push += (1 - k.push) * pushWeight
	k.pushed = k.pushed || k.push > PushStop
	if to := now.Add(min(d, maxPause)); d > 0 && to.After(k.pausedTo) {
		k.pausedTo = to
	}
}

// paused reports whether the server has asked for less. The caller holds mu.
func (k *Key) paused(now time.Time) bool { return k.pushed || now.Before(k.waits()) }

// waits returns until when the server has asked to wait; zero if it has not, or if
// too few of its answers push back. The caller holds mu.
func (k *Key) waits() time.Time {
	if k.push <= PushResume {
		return time.Time{}
	}
	return k.pausedTo
}

// resume forgets that the server asked for less.
func (k *Key) resume() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.push, k.pushed, k.pausedTo = 0, false, time.Time{}
}

// reset forgets what was learned. What is counted stays, and so do the budgets.
func (k *Key) reset() {
	k.planning.Lock() // or a plan that is being made would survive
	defer k.planning.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.window, k.actual, k.since, k.due = sketch.Window{}, sketch.Window{}, 0, MinSamples
	k.slow, k.scale, k.fired, k.won, k.residual, k.pauses = 0, 1, 0, 0, nil, nil
	k.push, k.pushed, k.pausedTo = 0, false, time.Time{}
	k.plan.Store(k.engine.Config().cold())
}

// A View is what a key knows, at one moment.
type View struct {
	Name       Name
	Requests   int64
	Hedges     int64
	Wins       int64
	ShadowWins int64
	Saved      time.Duration
	Denied     map[observe.Reason]int64 // not nil; reasons that never applied are missing
	Samples    int
	Delays     []time.Duration
	P50, P90   time.Duration
	P99        time.Duration
	Tokens     float64
	Scale      float64
	Slow       float64
	Push       float64       // share of the last answers that pushed back
	Pushed     bool          // that is too many
	PausedTo   time.Time     // the server asked to wait until then; zero: it did not
	Stall      time.Duration // see [Key.Stall]
	Audit      observe.Audit // of the host
}

// View returns what the key knows.
func (k *Key) View() View {
	k.mu.Lock()
	defer k.mu.Unlock()
	window, denied := k.waited(), maps.Clone(k.denied)
	if denied == nil {
		denied = make(map[observe.Reason]int64)
	}
	v := View{
		Name: k.Name, Requests: k.requests(), Hedges: k.hedges, Wins: k.wins, ShadowWins: k.shadowWins, Saved: k.saved, Denied: denied,
		Samples: window.Len(), Tokens: k.tokens(), Scale: k.scale, Slow: k.slow,
		Push: k.push, Pushed: k.pushed, PausedTo: k.waits(), Stall: k.stall(),
	}
	if k.audit != nil {
		v.Audit = k.audit.View()
	}
	if p := k.plan.Load(); p != nil {
		v.Delays = slices.Clone(p.hedges())
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
	k.planning.Lock()
	defer k.planning.Unlock()
	k.replan(now)
}
