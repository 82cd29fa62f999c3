package policy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

// A Key holds what is learned about the calls with one latency key (a host, a route or a method): their latencies, budget and
// safety checks. It is safe for concurrent use. Methods get the current time as an argument, so that a simulation can use its
// own clock.
type Key struct {
	// These fields do not change after the engine has added the key to its table.
	Name         Name
	Info         observe.KeyInfo // description of the key for observers
	engine       *Engine
	host         *Key            // key of the host, if this key shares the bucket of its host; otherwise nil
	account      *budget.Account // buckets that pay for the hedges of the key
	experiment   experiment      // audit of the key's host
	earlierCalls int64           // number of calls of evicted keys with the same name

	schedule     atomic.Pointer[Schedule] // stored while scheduleMu is held; nil: calls are not hedged
	lastUsed     atomic.Int64             // age of the engine when a call last began, in milliseconds, see [Engine]
	inFlight     inFlightCheck            // counts the hedges in flight
	evicted      atomic.Bool              // true after the engine has removed the key from its table
	scheduleMu   sync.Mutex               // held while a schedule is made and stored; must be locked before mu
	AdapterState                          // written by the adapter

	// The padding separates fields that every call writes from the cache line of the fields that calls only read.
	_            [64]byte
	requestCount atomic.Int64 // number of calls that the account does not count for this key alone

	mu           sync.Mutex   // guards the fields that follow and the account
	safetyChecks safetyChecks // safety checks that deny hedges
	counters     Counters     // its map Denied is nil until a hedge is denied
	latency      *latencies   // never nil
	shadow       *shadowStats // predictions of shadow mode; nil if shadow mode is off
}

// An AdapterState holds data that the adapter for a protocol stores with each key. The engine reads only its field
// TypicalCost. If the field Extension holds an [EvictionListener], the engine also calls that.
type AdapterState struct {
	Features    atomic.Int32 // bits whose meaning the adapter defines; initially 0
	Extension   atomic.Value // value of the adapter, initially empty; the engine calls it if it is an [EvictionListener]
	TypicalCost atomic.Int32 // usual cost of a hedge in tokens; 0 means one token
}

// An EvictionListener is an Extension that is notified when its key is reset or evicted. Reset is called when the key is
// reset, and Forget when the key is evicted.
//
// The engine is locked during both calls, so the methods must not call the engine. They may return a function, which the
// engine calls after it has unlocked, for example to notify observers. They may return nil.
type EvictionListener interface {
	Reset() (report func())
	Forget() (report func())
}

// IsEvicted reports whether the engine has removed k from its table. A caller that keeps k for further calls must then look
// up the key again.
func (k *Key) IsEvicted() bool { return k.evicted.Load() }

// ReportEndpointEvent passes p, an event such as the ejection of an endpoint, to the observers of the engine.
func (k *Key) ReportEndpointEvent(p observe.EndpointEvent) {
	if w := k.engine.setup.Notifier; w != nil {
		w.Notify(func(o observe.Observer) { o.EndpointEvent(k.Info, p) })
	}
}

// ReportChange passes c, a change that the adapter has detected, to the function [Setup].Changed. It does nothing if that
// function is nil.
func (k *Key) ReportChange(c Change) {
	if f := k.engine.setup.Changed; f != nil {
		f(k.Info, c)
	}
}

// Counters count events of a key since the key was made.
type Counters struct {
	Hedges     int64                    // hedges that were admitted and sent
	Wins       int64                    // hedges that won
	ShadowWins int64                    // hedges that shadow mode did not send, and that would have won
	Saved      time.Duration            // estimated time that Wins and ShadowWins have saved
	Denied     map[observe.Reason]int64 // hedges that were due and denied, by reason
	Unresumed  map[string]int64         // stalled bodies that could not be resumed, by cause; nil: there were none
}

// newKey returns a new key with the given name, which the caller must add to the table. If host is not nil, the key shares
// the token bucket of the key host.
//
// If share is positive, the key also gets a route bucket, which limits its hedges to this share of its requests. The caller
// must hold the engine's mu.
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
		k.account = host.account.NewSharedAccount()
	default:
		k.account = e.reserves.NewAccount(c.bucketSizing(), !c.PerHost)
	}
	if share > 0 {
		k.account.AddRouteBucket(c.bucketSizing(), share, &e.reserves)
	}
	k.safetyChecks.resetResults()
	k.schedule.Store(c.initialSchedule())
	return k
}

// IsCurrent reports whether k has the given name and was not evicted, so that the caller need not look up the key again. It is
// false if k is nil. IsCurrent is faster than Engine.Lookup.
func (k *Key) IsCurrent(name Name) bool { return k != nil && k.Name == name && !k.evicted.Load() }

// Schedule returns the current schedule of the key, or nil if its calls are not hedged.
func (k *Key) Schedule() *Schedule { return k.schedule.Load() }

// AddBuckets adds token buckets that must also pay for each hedge of the key. The key deposits no tokens in them: the caller
// must do this for each request.
func (k *Key) AddBuckets(buckets ...*budget.Bucket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.account.AddBuckets(buckets...)
}

// Tokens returns the number of tokens that are available for hedges of the key.
func (k *Key) Tokens() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.account.Tokens()
}

// totalRequests returns the number of calls of the key that have begun. Hedges are not counted.
func (k *Key) totalRequests() int64 {
	n := k.requestCount.Load()
	if k.account.IsExclusive() {
		n += k.account.Requests()
	}
	return n
}

// HasCalls reports whether a call has begun since the key was made. The key of a host, and an imported key, may have no calls.
func (k *Key) HasCalls() bool { return k.totalRequests() > 0 }

// Begin counts a call that starts now, and deposits the tokens for it in the budget. It returns the schedule of the call's
// hedges, or nil if the call is not hedged.
func (k *Key) Begin(now time.Time) *Schedule {
	if !k.account.IsExclusive() {
		k.requestCount.Add(1)
	}
	k.account.DepositAt(now)
	return k.begin(now)
}

// BeginRetry does the same as Begin for a call that its caller has marked as a retry. It deposits no tokens.
func (k *Key) BeginRetry(now time.Time) *Schedule {
	k.requestCount.Add(1)
	return k.begin(now)
}

// begin implements the part of Begin that retries have in common with other calls.
func (k *Key) begin(now time.Time) *Schedule {
	k.MarkUsed(now)
	if a := k.experiment.audit.Load(); a != nil {
		a.BeginCall(now.UnixNano(), k.engine.timeOfDay)
	}
	return k.schedule.Load()
}

// MarkUsed records that the key is in use at the time now, so that other keys are evicted before it.
func (k *Key) MarkUsed(now time.Time) {
	if age := k.engine.advanceAge(now); k.lastUsed.Load() != age {
		k.lastUsed.Store(age)
	}
}

// Admit decides whether a hedge may start at the time now. If it returns None, the hedge may start: the budget has paid for
// it, and it counts as in flight until HedgeEnded is called. Otherwise Admit returns the reason of the denial. In shadow
// mode, a hedge that nothing else denies is denied with DeniedShadow.
//
// slow is true if the call has just reached the slow marker of its schedule: the delay from which a call counts as slow.
// deadline is the deadline of the call, or zero if there is none.
func (k *Key) Admit(now time.Time, slow bool, deadline time.Time, request HedgeRequest) observe.Reason {
	return k.admit(now, slow, deadline, request, None)
}

// admit implements Admit. It also denies the hedge if a mode that has ended denied hedges when the call began. denialAtStart is
// the reason, the result of denialByMode at that time.
func (k *Key) admit(now time.Time, slow bool, deadline time.Time, request HedgeRequest, denialAtStart observe.Reason) observe.Reason {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slow {
		k.safetyChecks.outage.recordSlowCall()
	}
	reason := k.denyAdmission(admission{request, now, deadline, k.schedule.Load()})
	hasModeEnded := denialAtStart == observe.DeniedShadow && k.shadow == nil || denialAtStart == observe.DeniedAudit && !k.experiment.isAudited()
	if reason == None && hasModeEnded {
		reason = denialAtStart
	}
	if reason == None && !k.account.Spend(now, k.engine.limit.Load(), request.tokens()) {
		reason = observe.DeniedBudget
	}
	if reason == None {
		if !request.AfterFailure {
			k.safetyChecks.winRate.hedges++
		}
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

// denialByMode returns the reason for which the current mode of the engine denies hedges, or None.
func (k *Key) denialByMode() observe.Reason {
	if k.engine.Config().Shadow {
		return observe.DeniedShadow
	}
	return k.experiment.deny(admission{})
}

// denyAdmission asks all admission checks about a hedge. It returns the reason of the first check that denies it, or None if
// all checks allow it. The budget and shadow mode are not checked. The caller must hold mu.
func (k *Key) denyAdmission(a admission) observe.Reason {
	for _, check := range [...]admissionCheck{
		&k.experiment,
		&k.safetyChecks.outage,
		&k.safetyChecks.pushback,
		deadlineCheck{},
		&k.inFlight,
	} {
		if reason := check.deny(a); reason != None {
			return reason
		}
	}
	return None
}

// updateSafetyChecks passes the result of a call to the checks that learn from results. It calls each check directly, because a list
// of interfaces would cost a few nanoseconds per call. The caller must hold mu.
func (k *Key) updateSafetyChecks(r *Result) {
	k.safetyChecks.outage.record(r)
	k.safetyChecks.pushback.record(r)
	k.safetyChecks.winRate.reviewScale()
}

// wouldBeDenied predicts whether the hedge that request describes would be denied at the future time startTime. The argument
// deadline is the deadline of the call, or zero if there is none.
func (k *Key) wouldBeDenied(startTime, deadline time.Time, request HedgeRequest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shadow.deny() != None || k.account.Tokens() < float64(request.tokens()) ||
		k.denyAdmission(admission{request, startTime, deadline, k.schedule.Load()}) != None
}

// recordDenied counts a hedge that the adapter has denied for the given reason. slow is true if the call has just reached
// the slow marker of its schedule: the delay from which a call counts as slow.
func (k *Key) recordDenied(slow bool, reason observe.Reason) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slow {
		k.safetyChecks.outage.recordSlowCall()
	}
	k.countDenied(reason)
}

// countDenied counts a hedge that was due but was denied. If the budget is the reason, the budget is marked as exhausted. The
// caller must hold mu.
func (k *Key) countDenied(reason observe.Reason) {
	k.safetyChecks.budgetExhausted = k.safetyChecks.budgetExhausted || reason == observe.DeniedBudget
	if k.counters.Denied == nil {
		k.counters.Denied = make(map[observe.Reason]int64)
	}
	k.counters.Denied[reason]++
}

// recordSlowCall counts a slow call in the outage check. It must be called when a call reaches the slow marker of its
// schedule: the delay from which a call counts as slow.
func (k *Key) recordSlowCall() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.safetyChecks.outage.recordSlowCall()
}

// Withdraw reverses the admission of a hedge that was not sent: it returns the tokens to the budget, and counts the hedge as
// denied for the given reason. The caller must call HedgeEnded as well.
func (k *Key) Withdraw(now time.Time, reason observe.Reason, request HedgeRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.countDenied(reason)
	k.counters.Hedges--
	if !request.AfterFailure {
		k.safetyChecks.winRate.withdrawHedge()
	}
	k.account.Refund(now, k.engine.limit.Load(), request.tokens())
}

// HedgeEnded records that an admitted hedge is no longer in flight. It must be called once for each admitted hedge.
func (k *Key) HedgeEnded() { k.inFlight.hedges.Add(-1) }

// HedgeEndedUnless calls [Key.HedgeEnded] if *reported is false. A function that calls observers between Admit and the start
// of the hedge must defer it: an observer may panic or call runtime.Goexit, and then the hedge never starts.
//
// The function must set *reported to true after the observers have returned.
func (k *Key) HedgeEndedUnless(reported *bool) {
	if !*reported {
		k.HedgeEnded()
	}
}

// RecordPushback records a response by which the server asks for less load. d is the pause that the response asks for, or 0
// if it names no time. Responses without pushback are recorded by RecordCall.
func (k *Key) RecordPushback(now time.Time, d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.safetyChecks.pushback.recordPushback(now, d)
}

// clearPushback ends a pause after pushback at once, and forgets the share of responses with pushback.
func (k *Key) clearPushback() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.safetyChecks.pushback = pushbackCheck{}
}

// copySafetyState returns a copy of the state of the safety checks that the engine keeps after the key is evicted: the
// outage check, the pushback check, and the budget scale.
func (k *Key) copySafetyState() safetyState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.safetyChecks.copyState()
}

// resetLearned deletes the learned latencies and the state of the safety checks. It keeps counters and budgets.
func (k *Key) resetLearned() {
	k.scheduleMu.Lock() // otherwise updateSchedule could store a schedule of the old latencies afterwards
	defer k.scheduleMu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.latency.resetStatistics()
	if k.shadow != nil {
		k.shadow.observedWindow = sketch.Window{}
	}
	k.safetyChecks.resetResults()
	k.schedule.Store(k.engine.Config().initialSchedule())
}

// CountUnresumed counts a response body that stalled and could not be resumed. The argument obstacle names the cause, for
// example "status" for a response with an unsuitable status.
func (k *Key) CountUnresumed(obstacle string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.counters.Unresumed == nil {
		k.counters.Unresumed = make(map[string]int64)
	}
	k.counters.Unresumed[obstacle]++
}

// recordResumptionWin counts a winning hedge that resumed a stalled response body, see [Call.BeginResumption].
func (k *Key) recordResumptionWin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counters.Wins++
	k.safetyChecks.winRate.wins++
}
