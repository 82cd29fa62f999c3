package policy

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

// A plan is made anew after so many completions, sooner while there are few, and later where
// there are many: when a thirty-second of what counts in the window is new. In a busy
// window that is every third of a second.
const (
	everyPlan      = 256
	newShareOfPlan = 32

	failingCalls = 256 // the last calls, whose share of failures shadow mode expects of hedges
)

// A Key is what is known of one thing that latency is learned for. Its methods
// are safe for concurrent use. Time comes in as an argument, so that a
// simulation can drive a key by its own clock.
type Key struct {
	// These never change once the key is in the table.
	Name    Name
	Info    observe.KeyInfo // the same for observers
	engine  *Engine
	host    *Key            // whose bucket this key shares; nil: no other's
	account *budget.Account // pays for its hedges; mu guards payments
	audit   *audit.Audit    // of the host; nil: it is not audited
	earlier int64           // calls of the key of this name before it was forgotten

	plan         atomic.Pointer[Schedule] // stored with planning held; nil: do not hedge
	used         atomic.Int64             // the engine's age when a call last began, see [Engine]
	inFlight     atomic.Int64             // hedges
	evicted      atomic.Bool              // the engine's table has forgotten it
	planning     sync.Mutex               // held by who makes a plan; locked before mu
	AdapterState                          // what the adapter writes

	_     [64]byte     // what every call writes is not in a cache line with what it only reads
	count atomic.Int64 // requests; of a key that is alone its bucket counts them

	mu       sync.Mutex    // guards the fields below
	window   sketch.Window // what callers waited; in shadow mode, what they would have waited with hedges
	actual   sketch.Window // in shadow mode: what callers waited
	failing  float64       // in shadow mode: share of the last calls that failed
	since    int           // completions since the plan was made
	due      int           // how many of them ask for another
	brakes   brakes
	tally    Counters      // Denied is nil until a hedge was
	residual *residualTime // nil: nothing is known
	pauses   *pauseLengths // of bodies; nil: nothing is known
}

// An AdapterState is what an adapter writes beside a key. The engine reads the TypicalCost alone.
type AdapterState struct {
	Features    atomic.Int32 // starts at 0
	Extension   atomic.Value // holds nothing at first; an [EvictionListener] is told what happens to the key
	TypicalCost atomic.Int32 // tokens that a hedge usually costs; 0: one
}

// An EvictionListener is an Extension that is told when its key is reset, and when the table forgets it. The Engine is locked then: what they return
// is called when it no longer is, and tells observers; nil: there is nothing to tell.
type EvictionListener interface {
	Reset() (tell func())
	Forget() (tell func())
}

// Forgotten reports whether the table has forgotten k.
func (k *Key) Forgotten() bool { return k.evicted.Load() }

// EndpointEvent tells observers what happened at an endpoint of the key's calls.
func (k *Key) EndpointEvent(p observe.EndpointEvent) {
	if w := k.engine.setup.Watcher; w != nil {
		w.Tell(func(o observe.Observer) { o.EndpointEvent(k.Info, p) })
	}
}

// Changed tells of a change that the adapter has found.
func (k *Key) Changed(c Change) {
	if f := k.engine.setup.Changed; f != nil {
		f(k.Info, c)
	}
}

// Counters are what was counted since a key was made.
type Counters struct {
	Hedges     int64
	Wins       int64
	ShadowWins int64                    // by hedges that were not sent
	Saved      time.Duration            // by the wins of either, estimated
	Denied     map[observe.Reason]int64 // hedges that were due and not sent
	Unresumed  map[string]int64         // bodies that were not resumed, by obstacle; nil: there is none
}

// newKey returns a key that is not in the table yet. The caller holds the Engine's mu.
func newKey(e *Engine, name Name, host *Key, share float64) *Key {
	c := e.Config()
	k := &Key{Name: name, Info: e.info(name), engine: e, host: host, due: MinSamples}
	switch {
	case c.Shared != nil:
		k.account = budget.NewAccount(c.Shared)
	case host != nil:
		k.account = host.account.ShareMain()
	default:
		k.account = e.reserves.NewAccount(c.sizing(), !c.PerHost)
	}
	if share > 0 {
		k.account.AddRoute(c.sizing(), share, &e.reserves)
	}
	k.brakes.forget()
	k.plan.Store(c.cold())
	return k
}

// Is reports whether the engine would return k as the key of that name; a nil k it would
// not. To ask is cheaper than to have the engine find the key again.
func (k *Key) Is(name Name) bool { return k != nil && k.Name == name && !k.evicted.Load() }

// Schedule returns the current plan; nil means that calls are not hedged.
func (k *Key) Schedule() *Schedule { return k.plan.Load() }

// AddBuckets makes hedges of the key paid from further buckets as well, whose requests the adapter counts.
func (k *Key) AddBuckets(buckets ...*budget.Bucket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.account.Add(buckets...)
}

// Tokens returns how many hedges the budget would pay for now.
func (k *Key) Tokens() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.account.Tokens()
}

// requests returns how many calls have begun.
func (k *Key) requests() int64 {
	if k.account.IsExclusive() {
		return k.account.Requests()
	}
	return k.count.Load()
}

// Begin counts a call that starts now and returns the plan for it.
func (k *Key) Begin(now time.Time) *Schedule {
	k.Use(now)
	if k.audit != nil {
		k.audit.BeginCall(now.UnixNano(), k.engine.wall)
	}
	if !k.account.IsExclusive() {
		k.count.Add(1)
	}
	k.account.Count(now)
	return k.plan.Load()
}

// Use says that a call needs k now, which may begin on another key.
func (k *Key) Use(now time.Time) {
	if age := k.engine.aged(now); k.used.Load() != age {
		k.used.Store(age)
	}
}

// Admit is called when a hedge of a call is due. It returns None if it may start;
// then it has spent the budget, and the hedge counts as in flight until Ended. Slow says that the call
// has just reached the delay by which it counts as slow, see [Schedule]. In shadow mode,
// Admit returns DeniedShadow where it would return None.
func (k *Key) Admit(now time.Time, slow bool, deadline time.Time, request HedgeRequest) observe.Reason {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slow {
		k.brakes.reached()
	}
	if denial := k.check(now, deadline, request); denial != None {
		k.countDenied(denial)
		return denial
	}
	k.brakes.fired++
	if k.engine.setup.Shadow {
		k.countDenied(observe.DeniedShadow)
		return observe.DeniedShadow
	}
	k.inFlight.Add(1)
	k.tally.Hedges++
	return None
}

// A HedgeRequest describes a hedge that asks for admission. The zero value describes a plain hedge.
type HedgeRequest struct {
	Cost         int  // tokens; 0: one
	OtherBackend bool // the hedge goes to another backend than the primary, whose slowness and pushback do not hold it back
}

// tokens returns the cost of the hedge.
func (r HedgeRequest) tokens() int64 { return int64(max(r.Cost, 1)) }

// deny counts a hedge that its adapter denied. Slow says that the call has just reached the delay by which it counts as slow.
func (k *Key) deny(slow bool, reason observe.Reason) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slow {
		k.brakes.reached()
	}
	k.countDenied(reason)
}

// check returns why no hedge may start now, or spends the budget and returns None.
// The caller holds mu.
func (k *Key) check(now, deadline time.Time, request HedgeRequest) observe.Reason {
	if k.audit.IsDark() {
		return observe.DeniedAudit
	}
	if denial := k.brakes.deny(now, deadline, k.plan.Load(), k.inFlight.Load(), request.OtherBackend); denial != None {
		return denial
	}
	if !k.account.Pay(now, k.engine.limit.Load(), request.tokens()) {
		return observe.DeniedBudget
	}
	return None
}

// countDenied counts a hedge that was due and is not sent. The caller holds mu.
func (k *Key) countDenied(reason observe.Reason) {
	k.brakes.exhausted = k.brakes.exhausted || reason == observe.DeniedBudget
	if k.tally.Denied == nil {
		k.tally.Denied = make(map[observe.Reason]int64)
	}
	k.tally.Denied[reason]++
}

// recordSlowCall counts a call as slow when no hedge is due.
func (k *Key) recordSlowCall() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.brakes.reached()
}

// RandomLatency returns how long a hedge might take: as long as one of the known calls. It is 0 if no call is known, and, for a hedge
// that fails, as often as calls fail.
func (k *Key) RandomLatency() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if rand.Float64() < k.failing {
		return 0
	}
	d, _ := k.actual.Quantile(rand.Float64())
	return d
}

// Withdraw says that a hedge which Admit let start with a request was not sent, for the given reason. The
// budget has its tokens back, and the hedge counts as denied. Ended must be called as well.
func (k *Key) Withdraw(now time.Time, reason observe.Reason, request HedgeRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.countDenied(reason)
	k.tally.Hedges--
	k.brakes.refused()
	k.account.Refund(now, k.engine.limit.Load(), request.tokens())
}

// Ended says that a hedge is no longer in flight.
func (k *Key) Ended() { k.inFlight.Add(-1) }

// EndedUnless is [Key.Ended] unless a hedge that was admitted was told of. Who tells observers defers it: one of them may end the goroutine
// that would make the hedge.
func (k *Key) EndedUnless(told *bool) {
	if !*told {
		k.Ended()
	}
}

// A Result is how a call ended.
type Result struct {
	Latency           time.Duration // what the caller waited, without what a connection took
	Waited            time.Duration // by the caller, since Begin; 0: Latency
	Answered          bool          // by a success; a failure teaches nothing about latency
	LatencyUnknown    bool          // the latency is an upper bound, which teaches nothing either
	Abandoned         bool          // the caller gave up, or its deadline passed
	Canceled          bool          // the caller gave up
	Hedges            int           // that were sent
	ReachedFirstDelay bool          // its first delay
	Learned           bool          // there was a delay by which it would count as slow
	Slow              bool          // and it has reached that delay
	HedgeWon          bool
	PredictedHedgeEnd time.Duration // when the first of the hedges that were not sent would have answered; 0: none would
}

// timed reports whether the latency is known, or a sure lower bound of it is.
func (r Result) timed() bool {
	return r.Answered && !r.LatencyUnknown || r.Abandoned && r.ReachedFirstDelay
}

// failed reports whether the call ended by itself without a success.
func (r Result) failed() bool { return !r.Answered && !r.Abandoned }

// Done learns from a call that ended now.
//
// A call that its caller abandoned counts with the time it was out if that
// exceeds its first delay: a sure lower bound. If it does not, it says nothing.
//
// Done returns how much longer the caller would have waited if no hedge had won, and whether a hedge that shadow mode did not send would have won.
//
// Plans are made, and changes of the key's state told, with no lock held that
// another call could wait for.
func (k *Key) Done(now time.Time, r Result) (saved time.Duration, shadowWon bool) {
	at := sketch.Index(r.Latency)
	k.mu.Lock()
	saved, shadowWon = k.done(now, r, at)
	due, changed := k.since >= k.due, k.engine.setup.Changed
	var all []Change
	if changed != nil {
		all = k.changes(now)
	}
	k.mu.Unlock()
	if k.audit != nil {
		waited := cmp.Or(r.Waited, r.Latency)
		k.audit.EndCall(now.Add(-waited).UnixNano(), audit.Result{Waited: waited, Failed: !r.Answered && !r.Canceled, Hedges: r.Hedges})
	}
	if due && k.planning.TryLock() { // otherwise another call is making the plan
		k.replan(now)
		k.planning.Unlock()
	}
	for _, c := range all {
		changed(k.Info, c)
	}
	if k.audit != nil {
		k.tellAudit()
	}
	return saved, shadowWon
}

// tellAudit tells what the audit has found, if that is new.
func (k *Key) tellAudit() {
	v, turned, news := k.audit.TakeNews()
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
func (k *Key) done(now time.Time, r Result, at int) (saved time.Duration, shadowWon bool) {
	known := r.timed()
	switch {
	case k.engine.setup.Shadow:
		k.learnActual(now, r, at)
		if shadowWon = k.wouldHaveWon(r); shadowWon {
			saved = max(r.Latency-r.PredictedHedgeEnd, 0)
			k.tally.ShadowWins++
			k.brakes.won++
			at, known = sketch.Index(r.PredictedHedgeEnd), true // what the caller would have waited
		}
	case r.ReachedFirstDelay && (known || r.failed()) && k.audit == nil: // an audit measures what this estimates
		saved = k.learnResidual(r)
	}
	k.tally.Saved += saved
	if r.HedgeWon {
		k.tally.Wins++
		k.brakes.won++
	}
	k.brakes.ended(r.Answered, r.Learned && !r.Slow)
	if known {
		k.window.AddIndex(now, at)
		k.since++
	}
	return saved, shadowWon
}

// learnActual learns what the caller waited in shadow mode, and whether the call failed. The caller holds mu.
func (k *Key) learnActual(now time.Time, r Result, at int) {
	failed := 0.0
	if r.failed() {
		failed = 1
	}
	k.failing += (failed - k.failing) / failingCalls
	if r.timed() {
		k.actual.AddIndex(now, at)
	}
}

// wouldHaveWon reports whether a hedge that shadow mode did not send would have given the call its result: sooner than the primary's
// answer or the caller's end, or while the primary's failure waits for it.
func (k *Key) wouldHaveWon(r Result) bool {
	most := r.Latency
	if p := k.plan.Load(); r.failed() && p != nil {
		most += race.Bound(p.P99, r.Latency)
	}
	return r.PredictedHedgeEnd > 0 && r.PredictedHedgeEnd < most
}

// learnResidual learns how long the primary of a call took that has reached its first delay, and
// returns how much longer it would have taken if a hedge has won. The caller holds mu.
func (k *Key) learnResidual(r Result) (saved time.Duration) {
	if r.HedgeWon {
		saved = k.residual.After(r.Latency)
	}
	if k.residual == nil {
		k.residual = new(residualTime)
	}
	k.residual.Add(r.Latency, !r.Abandoned && !r.HedgeWon)
	return saved
}

// changes returns the changes to report. The caller holds mu.
func (k *Key) changes(now time.Time) []Change {
	if k.brakes.exhausted && k.account.HalfFull(now, k.engine.limit.Load()) {
		k.brakes.exhausted = false
	}
	return k.brakes.changes(now)
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
	scale := k.brakes.Scale
	k.since, k.due = 0, due(d)
	k.mu.Unlock()

	c := k.engine.Config()
	if p := c.plan(d, k.account.Follow(c.sizing(), now)*scale/float64(max(k.TypicalCost.Load(), 1))); p != nil {
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
	k.brakes.pushBack(now, d)
}

// resume forgets that the server asked for less.
func (k *Key) resume() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.brakes.clearPushback()
}

// copyBrakeState returns a copy of the state of the key's brakes.
func (k *Key) copyBrakeState() brakeState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.brakes.brakeState
}

// reset forgets what was learned. What is counted stays, and so do the budgets.
func (k *Key) reset() {
	k.planning.Lock() // or a plan that is being made would survive
	defer k.planning.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.window, k.actual, k.since, k.due = sketch.Window{}, sketch.Window{}, 0, MinSamples
	k.residual, k.pauses = nil, nil
	k.brakes.forget()
	k.plan.Store(k.engine.Config().cold())
}

// A Snapshot is what a key knows, at one moment.
type Snapshot struct {
	Name      Name
	Requests  int64
	Counters  // Denied is not nil; reasons that never applied are missing
	Samples   int
	Delays    []time.Duration
	P50, P90  time.Duration
	P99       time.Duration
	Tokens    float64
	Scale     float64
	Slow      float64
	Push      float64       // share of the last answers that pushed back
	Pushed    bool          // that is too many
	PausedTo  time.Time     // the server asked to wait until then; zero: it did not
	Stall     time.Duration // see [Key.Stall]
	Audit     observe.Audit // of the host
	Extension any           // the adapter's; nil: there is none
}

// Snapshot returns what the key knows.
func (k *Key) Snapshot() Snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	window, b := k.waited(), &k.brakes
	v := Snapshot{
		Name: k.Name, Requests: k.requests(), Counters: k.tally, Samples: window.Len(), Tokens: k.account.Tokens(),
		Scale: b.Scale, Slow: b.Slow, Push: b.Push, Pushed: b.Pushed, PausedTo: b.waits(), Stall: k.stall(), Extension: k.Extension.Load(),
	}
	if v.Denied = maps.Clone(k.tally.Denied); v.Denied == nil {
		v.Denied = make(map[observe.Reason]int64)
	}
	v.Unresumed = maps.Clone(k.tally.Unresumed)
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

// Paused learns from the body of an answer, whose reader waited for more of it for d at most.
func (k *Key) Paused(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pauses == nil {
		k.pauses = new(pauseLengths)
	}
	k.pauses.Add(d)
}

// Unresumed counts a body that was not resumed.
func (k *Key) Unresumed(obstacle string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tally.Unresumed == nil {
		k.tally.Unresumed = make(map[string]int64)
	}
	k.tally.Unresumed[obstacle]++
}

// Stall returns how long a body must pause to have stalled: twice as long as nineteen
// bodies in twenty ever do, and at least 50 ms, and as long as a call waits for its first
// hedge. It is 0 until ten bodies and ten calls are known.
func (k *Key) Stall() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stall()
}

// stall is Stall. The caller holds mu.
func (k *Key) stall() time.Duration {
	p, d := k.plan.Load(), k.pauses.Stall()
	if p == nil || d == 0 {
		return 0
	}
	return max(d, p.usual)
}

// restWon counts a request for the rest of an answer that was read, see [Call.BeginRest].
func (k *Key) restWon() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tally.Wins++
	k.brakes.won++
}
