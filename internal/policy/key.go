package policy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

// A Key is the learned state of the calls with one latency key: a host, a route or a method. Its methods are safe for concurrent use. They
// get the time as an argument, so that a simulation can use its own clock.
type Key struct {
	// These fields never change after the key was added to the table.
	Name         Name
	Info         observe.KeyInfo // the same for observers
	engine       *Engine
	host         *Key            // key of the host, whose bucket this key shares; nil: the key shares no bucket
	account      *budget.Account // pays for the hedges of the key
	experiment   experiment      // of the host
	earlierCalls int64           // number of calls of an evicted key with this name

	schedule     atomic.Pointer[Schedule] // stored with scheduleMu held; nil: calls are not hedged
	lastUsed     atomic.Int64             // the engine's age when a call last began, see [Engine]
	inFlight     inFlightCheck
	evicted      atomic.Bool // the engine's table has evicted the key
	scheduleMu   sync.Mutex  // held while a schedule is made; locked before mu
	AdapterState             // written by the adapter

	_            [64]byte     // keeps fields that every call writes out of the cache line of fields that it only reads
	requestCount atomic.Int64 // number of calls; not used if the account counts them

	mu       sync.Mutex // guards the fields below, and payments of the account
	brakes   brakes
	counters Counters     // Denied is nil until a hedge is denied
	latency  *latencies   // never nil
	shadow   *shadowStats // nil unless in shadow mode
}

// An AdapterState is state that an adapter stores with a key. The engine itself only reads TypicalCost, and calls an Extension that is an
// [EvictionListener].
type AdapterState struct {
	Features    atomic.Int32 // bits that the adapter defines; 0 at first
	Extension   atomic.Value // empty at first; an [EvictionListener] is called when the key changes
	TypicalCost atomic.Int32 // tokens that a hedge usually costs; 0: one
}

// An EvictionListener is an Extension with hooks: Reset is called when its key is reset, and Forget when the key is evicted. The engine is
// locked during the call. After the engine is unlocked, it calls the returned function, which may call observers. A nil function is not
// called.
type EvictionListener interface {
	Reset() (report func())
	Forget() (report func())
}

// IsEvicted reports whether the engine has evicted k.
func (k *Key) IsEvicted() bool { return k.evicted.Load() }

// ReportEndpointEvent reports an event at an endpoint, such as its ejection, to observers.
func (k *Key) ReportEndpointEvent(p observe.EndpointEvent) {
	if w := k.engine.setup.Notifier; w != nil {
		w.Notify(func(o observe.Observer) { o.EndpointEvent(k.Info, p) })
	}
}

// ReportChange reports a change of state that the adapter has detected to [Setup].Changed.
func (k *Key) ReportChange(c Change) {
	if f := k.engine.setup.Changed; f != nil {
		f(k.Info, c)
	}
}

// Counters count events since the key was made.
type Counters struct {
	Hedges     int64
	Wins       int64
	ShadowWins int64                    // hedges that shadow mode did not send and that would have won
	Saved      time.Duration            // estimated time that Wins and ShadowWins have saved
	Denied     map[observe.Reason]int64 // hedges that were due and not sent
	Unresumed  map[string]int64         // stalled bodies that could not be resumed, by obstacle; nil: there is none
}

// newKey returns a new key, which the caller adds to the table. If host is not nil, the key shares the bucket of host. If share is
// positive, the key also gets a route bucket with that share. The caller holds the engine's mu.
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

// IsCurrent reports whether k is the key that the engine has for the name. It is false if k is nil or was evicted. It is faster than
// Lookup.
func (k *Key) IsCurrent(name Name) bool { return k != nil && k.Name == name && !k.evicted.Load() }

// Schedule returns the current schedule; nil means that calls are not hedged.
func (k *Key) Schedule() *Schedule { return k.schedule.Load() }

// AddBuckets adds buckets from which each hedge of the key takes tokens as well. The caller counts the requests that refill these buckets.
func (k *Key) AddBuckets(buckets ...*budget.Bucket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.account.AddBuckets(buckets...)
}

// Tokens returns the number of tokens that the budget has for hedges.
func (k *Key) Tokens() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.account.Tokens()
}

// totalRequests returns the number of calls that have begun on the key.
func (k *Key) totalRequests() int64 {
	if k.account.IsExclusive() {
		return k.account.Requests()
	}
	return k.requestCount.Load()
}

// Begin counts a call that starts now, and returns the schedule of the key; nil: the call is not hedged.
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

// MarkUsed records that k is in use, which delays its eviction.
func (k *Key) MarkUsed(now time.Time) {
	if age := k.engine.advanceAge(now); k.lastUsed.Load() != age {
		k.lastUsed.Store(age)
	}
}

// Admit decides whether a hedge may start. If Admit returns None, the hedge may start: the budget has paid for it, and it counts as in
// flight until HedgeEnded. In shadow mode, Admit returns DeniedShadow in place of None.
//
// If slow is true, the call has just reached the slow marker of its schedule, see [Schedule].
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

// denyAdmission returns the reason of the first admission check that denies the hedge; None if all checks pass. Budget and shadow mode are
// not among these checks. The caller holds mu.
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

// recordResult passes the result of a call to the checks that learn from results. A list of interfaces would cost each call a few
// nanoseconds more. The caller holds mu.
func (k *Key) recordResult(r *Result) {
	k.brakes.outage.record(r)
	k.brakes.pushback.record(r)
	k.brakes.winRate.record(r)
}

// wouldBeDenied predicts whether Admit will deny a hedge at the given time to a call with the given deadline.
func (k *Key) wouldBeDenied(then, deadline time.Time, request HedgeRequest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shadow.deny() != None || k.account.Tokens() < float64(request.tokens()) ||
		k.denyAdmission(admission{request, then, deadline, k.schedule.Load()}) != None
}

// recordDenied counts a hedge that the adapter denied. The argument slow has the meaning that it has for Admit.
func (k *Key) recordDenied(slow bool, reason observe.Reason) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slow {
		k.brakes.outage.recordSlowCall()
	}
	k.countDenied(reason)
}

// countDenied counts a hedge that was due and is not sent. If the budget is the reason, it counts as exhausted. The caller holds mu.
func (k *Key) countDenied(reason observe.Reason) {
	k.brakes.budgetExhausted = k.brakes.budgetExhausted || reason == observe.DeniedBudget
	if k.counters.Denied == nil {
		k.counters.Denied = make(map[observe.Reason]int64)
	}
	k.counters.Denied[reason]++
}

// recordSlowCall counts a slow call for the outage check.
func (k *Key) recordSlowCall() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.brakes.outage.recordSlowCall()
}

// Withdraw takes back the admission of a hedge that was not sent. It returns the tokens to the budget, and counts the hedge as denied for
// the given reason. The caller calls HedgeEnded as well.
func (k *Key) Withdraw(now time.Time, reason observe.Reason, request HedgeRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.countDenied(reason)
	k.counters.Hedges--
	k.brakes.winRate.withdrawHedge()
	k.account.Refund(now, k.engine.limit.Load(), request.tokens())
}

// HedgeEnded records that an admitted hedge is no longer in flight.
func (k *Key) HedgeEnded() { k.inFlight.hedges.Add(-1) }

// HedgeEndedUnless calls [Key.HedgeEnded] unless *reported is true. Functions that call observers between Admit and the start of the hedge
// defer it: if an observer ends the goroutine, the hedge never starts.
func (k *Key) HedgeEndedUnless(reported *bool) {
	if !*reported {
		k.HedgeEnded()
	}
}

// RecordPushback records an answer with pushback that asks for a pause of d; 0 if the answer names no time. [Key.RecordCall] counts answers
// without pushback. See [pushbackCheck].
func (k *Key) RecordPushback(now time.Time, d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.brakes.pushback.recordPushback(now, d)
}

// clearPushback ends a pause after pushback at once.
func (k *Key) clearPushback() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.brakes.pushback = pushbackCheck{}
}

func (k *Key) copyBrakeState() brakeState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.brakes.copyState()
}

// resetLearned deletes the learned latencies and the state of the brakes. Counters and budgets stay.
func (k *Key) resetLearned() {
	k.scheduleMu.Lock() // otherwise updateSchedule could store a schedule of the old latencies afterwards
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

// CountUnresumed counts a stalled response body that could not be resumed because of the obstacle.
func (k *Key) CountUnresumed(obstacle string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.counters.Unresumed == nil {
		k.counters.Unresumed = make(map[string]int64)
	}
	k.counters.Unresumed[obstacle]++
}

// recordResumptionWin counts a hedge of [Call.BeginResumption] whose bytes the caller got.
func (k *Key) recordResumptionWin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counters.Wins++
	k.brakes.winRate.wins++
}
