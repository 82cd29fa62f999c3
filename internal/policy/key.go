package policy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

// A Key is a latency key: the state of the calls to a host, a route or a method. Its methods are safe for concurrent use. They get the time as
// an argument, so that a simulation can use its own clock.
type Key struct {
	// These never change once the key is in the table.
	Name         Name
	Info         observe.KeyInfo // the same for observers
	engine       *Engine
	host         *Key            // whose bucket this key shares; nil: it shares none
	account      *budget.Account // pays for its hedges
	experiment   experiment      // of the host
	earlierCalls int64           // calls of the key of this name before it was evicted

	schedule     atomic.Pointer[Schedule] // stored with scheduleMu held; nil: do not hedge
	lastUsed     atomic.Int64             // the engine's age when a call last began, see [Engine]
	inFlight     inFlightCheck
	evicted      atomic.Bool // the engine's table has evicted the key
	scheduleMu   sync.Mutex  // held while a schedule is made; locked before mu
	AdapterState             // written by the adapter

	_            [64]byte     // keeps fields that every call writes out of the cache line of fields that it only reads
	requestCount atomic.Int64 // requests; not used if the account counts them

	mu       sync.Mutex // guards the fields below, and payments of the account
	brakes   brakes
	counters Counters     // Denied is nil until a hedge is denied
	latency  *latencies   // never nil
	shadow   *shadowStats // nil unless in shadow mode
}

// An AdapterState is state that an adapter stores beside a key. The engine reads TypicalCost alone.
type AdapterState struct {
	Features    atomic.Int32 // bits of the adapter; 0 at first
	Extension   atomic.Value // empty at first; an [EvictionListener] is called when the key changes
	TypicalCost atomic.Int32 // tokens that a hedge usually costs; 0: one
}

// An EvictionListener is an Extension that is called when its key is reset or evicted. The Engine is locked during the call. The
// function that is returned is called when the Engine is unlocked, and may call observers; nil: there is none.
type EvictionListener interface {
	Reset() (report func())
	Forget() (report func())
}

// IsEvicted reports whether the table has evicted k.
func (k *Key) IsEvicted() bool { return k.evicted.Load() }

// ReportEndpointEvent reports an event at an endpoint of the key's calls to observers.
func (k *Key) ReportEndpointEvent(p observe.EndpointEvent) {
	if w := k.engine.setup.Notifier; w != nil {
		w.Notify(func(o observe.Observer) { o.EndpointEvent(k.Info, p) })
	}
}

// ReportChange reports a change that the adapter has found.
func (k *Key) ReportChange(c Change) {
	if f := k.engine.setup.Changed; f != nil {
		f(k.Info, c)
	}
}

// Counters count events since a key was made.
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
	k := &Key{Name: name, Info: e.keyInfo(name), engine: e, host: host, latency: newLatencies()}
	if c.Shadow {
		k.shadow = new(shadowStats)
	}
	switch {
	case c.Shared != nil:
		k.account = budget.NewAccount(c.Shared)
	case host != nil:
		k.account = host.account.ShareMain()
	default:
		k.account = e.reserves.NewAccount(c.bucketSizing(), !c.PerHost)
	}
	if share > 0 {
		k.account.AddRouteBucket(c.bucketSizing(), share, &e.reserves)
	}
	k.brakes.resetResults()
	k.schedule.Store(c.initialSchedule())
	return k
}

// IsCurrent reports whether the engine returns k for the name. It is false for a nil k. It is cheaper than Lookup.
func (k *Key) IsCurrent(name Name) bool { return k != nil && k.Name == name && !k.evicted.Load() }

// Schedule returns the current schedule; nil means that calls are not hedged.
func (k *Key) Schedule() *Schedule { return k.schedule.Load() }

// AddBuckets adds buckets from which each hedge of the key takes tokens as well. The caller counts the requests of these buckets.
func (k *Key) AddBuckets(buckets ...*budget.Bucket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.account.AddBuckets(buckets...)
}

// Tokens returns how many hedges the budget would pay for now.
func (k *Key) Tokens() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.account.Tokens()
}

// totalRequests returns the number of calls that have begun.
func (k *Key) totalRequests() int64 {
	if k.account.IsExclusive() {
		return k.account.Requests()
	}
	return k.requestCount.Load()
}

// Begin counts a call that starts now and returns its schedule.
func (k *Key) Begin(now time.Time) *Schedule {
	k.MarkUsed(now)
	if k.experiment.isAudited() {
		k.experiment.BeginCall(now.UnixNano(), k.engine.timeOfDay)
	}
	if !k.account.IsExclusive() {
		k.requestCount.Add(1)
	}
	k.account.EarnAt(now)
	return k.schedule.Load()
}

// MarkUsed records that a call needs k now. The call may begin on another key.
func (k *Key) MarkUsed(now time.Time) {
	if age := k.engine.advanceAge(now); k.lastUsed.Load() != age {
		k.lastUsed.Store(age)
	}
}

// Admit decides whether a hedge may start. If it may, Admit returns None: the budget has paid for the hedge, which counts as in flight until
// Ended. Slow reports that the call has just reached the delay by which it counts as slow, see [Schedule]. In shadow mode, Admit returns
// DeniedShadow in place of None.
func (k *Key) Admit(now time.Time, slow bool, deadline time.Time, request HedgeRequest) observe.Reason {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slow {
		k.brakes.outage.recordSlowCall()
	}
	reason := k.denyAdmission(admission{request, now, deadline, k.schedule.Load()})
	if reason == None && !k.account.Spend(now, k.engine.limit.Load(), request.tokens()) {
		reason = observe.DeniedBudget
	}
	if reason == None {
		k.brakes.winRate.hedges++
		reason = k.shadow.deny()
	}
	if reason != None {
		k.countDenied(reason)
		return reason
	}
	k.inFlight.hedges.Add(1)
	k.counters.Hedges++
	return None
}

// denyAdmission asks the admission checks in their order, and returns the first reason to deny the hedge; None if there is none. The account
// pays after these checks, and shadow mode comes last. The caller holds mu.
func (k *Key) denyAdmission(a admission) observe.Reason {
	for _, check := range [...]admissionCheck{
		&k.experiment,
		&k.brakes.outage,
		&k.brakes.pushback,
		deadlineCheck{},
		&k.inFlight,
	} {
		if reason := check.deny(a); reason != None {
			return reason
		}
	}
	return None
}

// recordResult updates the checks with the result of a call. The caller holds mu. Every call is recorded, so this is no list of
// interfaces: that would cost each call a few nanoseconds.
func (k *Key) recordResult(r *Result) {
	k.brakes.outage.record(r)
	k.brakes.pushback.record(r)
	k.brakes.winRate.record(r)
}

// wouldBeDenied predicts whether a request for a hedge at the given time will be denied.
func (k *Key) wouldBeDenied(then, deadline time.Time, request HedgeRequest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shadow.deny() != None || k.account.Tokens() < float64(request.tokens()) ||
		k.denyAdmission(admission{request, then, deadline, k.schedule.Load()}) != None
}

// recordDenied counts a hedge that its adapter denied. Slow is as for Admit.
func (k *Key) recordDenied(slow bool, reason observe.Reason) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slow {
		k.brakes.outage.recordSlowCall()
	}
	k.countDenied(reason)
}

// countDenied counts a hedge that was due and is not sent. The caller holds mu.
func (k *Key) countDenied(reason observe.Reason) {
	k.brakes.budgetExhausted = k.brakes.budgetExhausted || reason == observe.DeniedBudget
	if k.counters.Denied == nil {
		k.counters.Denied = make(map[observe.Reason]int64)
	}
	k.counters.Denied[reason]++
}

// recordSlowCall counts a call as slow when no hedge is due.
func (k *Key) recordSlowCall() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.brakes.outage.recordSlowCall()
}

// Withdraw takes back the admission of a hedge that was not sent, for the given reason. It returns the tokens to the budget and counts the
// hedge as denied. Ended must be called as well.
func (k *Key) Withdraw(now time.Time, reason observe.Reason, request HedgeRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.countDenied(reason)
	k.counters.Hedges--
	k.brakes.winRate.withdrawHedge()
	k.account.Refund(now, k.engine.limit.Load(), request.tokens())
}

// HedgeEnded records that an admitted hedge has ended: it is no longer in flight.
func (k *Key) HedgeEnded() { k.inFlight.hedges.Add(-1) }

// HedgeEndedUnless is [Key.Ended] unless an admitted hedge was reported. Callers that report to observers defer it: an observer may end the
// goroutine that would start the hedge.
func (k *Key) HedgeEndedUnless(reported *bool) {
	if !*reported {
		k.HedgeEnded()
	}
}

// RecordPushback records an answer that asked for less load: by its status, and if d is not 0, by asking to wait for d.
// [Key.RecordCall] counts the answers without pushback. See [pushbackCheck].
func (k *Key) RecordPushback(now time.Time, d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.brakes.pushback.recordPushback(now, d)
}

// clearPushback ends the pause after pushback.
func (k *Key) clearPushback() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.brakes.pushback = pushbackCheck{}
}

// copyBrakeState returns a copy of the state of the key's brakes.
func (k *Key) copyBrakeState() brakeState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.brakes.copyState()
}

// resetLearned forgets the latencies and the state of the brakes. Counters and budgets stay.
func (k *Key) resetLearned() {
	k.scheduleMu.Lock() // or a schedule that is being made would survive
	defer k.scheduleMu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.latency.resetWindow()
	if k.shadow != nil {
		k.shadow.observedWindow = sketch.Window{}
	}
	k.brakes.resetResults()
	k.schedule.Store(k.engine.Config().initialSchedule())
}

// CountUnresumed counts a body that was not resumed.
func (k *Key) CountUnresumed(obstacle string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.counters.Unresumed == nil {
		k.counters.Unresumed = make(map[string]int64)
	}
	k.counters.Unresumed[obstacle]++
}

// recordResumptionWin counts a request for the rest of an answer whose answer was read, see [Call.BeginRest].
func (k *Key) recordResumptionWin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counters.Wins++
	k.brakes.winRate.wins++
}
