// Package policy decides for each latency key whether calls are hedged, after which delays, and whether the budget pays for a hedge.
//
// It hedges the slowest tenth of the calls. If the hedge is slow too, it sends a second hedge for the slowest tenth of these
// calls. The first delay is the shortest delay for which the budget can pay all hedges.
//
// Each request deposits a fraction of a token, and a hedge costs one token. While most calls are slow, hedges are denied,
// because this is an outage. While hedges never win, the budget shrinks to a tenth.
//
// Package race starts the attempts of a call. The adapters for HTTP, gRPC and DNS connect the two packages. On its fast path, a
// call reads two atomic variables and locks one mutex, that of its key.
package policy

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/evicted"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// A Name identifies a key by host and route. Route is "" for the key of a whole host. Names may come from untrusted sources.
// Therefore the engine shortens them with [sanitize.ShortenText].
type Name struct{ Host, Route string }

// shortened returns a copy of n in which host and route are at most as long as the engine stores them.
func (n Name) shortened() Name {
	return Name{sanitize.ShortenText(n.Host), sanitize.ShortenText(n.Route)}
}

// An Engine holds the keys of one adapter, up to a maximum number, and their configuration. It is safe for concurrent use.
//
// Names of keys may come from untrusted sources, so keys can be added and evicted at any rate. Nevertheless, the number of
// tokens is limited: all keys together send at most the configured share of their calls as hedges, plus one burst. See
// [budget.SharedReserve].
//
// When a key is evicted, the engine keeps the state of the key's safety checks. When the last key of a host is evicted, the
// engine keeps the verdict of the host's audit. It keeps at most as many states and verdicts as it can hold keys.
//
// The age of the engine orders keys for eviction: each key stores the age at its last use. The age grows with the clock, in
// milliseconds, and by one for each new key. It never decreases, even if the clock is set back.
type Engine struct {
	setup     Setup     // never changes
	startedAt time.Time // never changes
	inBubble  bool      // New was called in a bubble of testing/synctest; never changes

	// age is the age of the engine in milliseconds, see Engine.
	age    atomic.Int64
	config atomic.Pointer[Config]           // stored while mu is held
	limit  atomic.Pointer[budget.RateLimit] // limit of hedges per second, stored while mu is held; nil: no limit
	keys   sync.Map                         // map from Name to *Key, modified only while mu is held

	mu             sync.Mutex                        // guards the fields that follow; must be locked before the mutex of a key or an experiment
	size           int                               // number of keys
	reserves       budget.ReserveSet                 // shared supply of the initial tokens of new keys
	experiments    *experiments                      // audits of all hosts; nil: hosts are not audited
	safetyStates   evicted.States[Name, safetyState] // states of the safety checks of evicted keys
	pendingReports []func()                          // functions to call after mu is unlocked, because they notify observers, which may call the engine
}

// unlockAndReport unlocks mu, and then calls the functions in pendingReports. They were delayed because they notify
// observers, which may call the engine.
func (e *Engine) unlockAndReport() {
	reports := e.pendingReports
	e.pendingReports = nil
	e.mu.Unlock()
	for _, report := range reports {
		report()
	}
}

// notifyExtension notifies the Extension of the key if that is an [EvictionListener]. The function f is a method expression,
// such as EvictionListener.Forget.
//
// The function that f returns is added to pendingReports. The caller must hold mu, and unlock it with unlockAndReport.
func (e *Engine) notifyExtension(k *Key, f func(EvictionListener) func()) {
	if n, ok := k.Extension.Load().(EvictionListener); ok {
		if report := f(n); report != nil {
			e.pendingReports = append(e.pendingReports, report)
		}
	}
}

// New returns an Engine with the configuration c and without keys.
func New(c Config) *Engine {
	e := &Engine{startedAt: time.Now(), setup: c.Setup, reserves: budget.NewReserveSet(c.bucketSizing()), experiments: newExperiments(&c)}
	e.inBubble = e.startedAt == e.startedAt.Round(0)
	e.config.Store(&c)
	e.limit.Store(budget.NewRateLimit(c.MaxPerSecond))
	return e
}

// advanceAge updates the age of the engine to the time that has passed since it was made. It changes nothing if the age is
// already higher. It returns the age in milliseconds.
func (e *Engine) advanceAge(now time.Time) int64 {
	age := e.age.Load()
	if t := now.Sub(e.startedAt).Milliseconds(); t > age {
		e.age.CompareAndSwap(age, t) // fails if a concurrent call has advanced the age
		return t
	}
	return age
}

// ageDuration returns the engine's age as a duration.
func (e *Engine) ageDuration() time.Duration { return time.Duration(e.age.Load()) * time.Millisecond }

// now returns the current time by the clock of the engine, and the time since the engine was made. This clock starts at the
// time of day at which the engine was made, and ignores later changes of the system clock. Therefore it must only be used to
// measure durations. Reading it takes half as long as time.Now.
func (e *Engine) now() (now time.Time, age time.Duration) {
	age = time.Since(e.startedAt)
	return e.startedAt.Add(age), age
}

// engineTime converts a result of time.Now to the clock of the engine, see the method now.
func (e *Engine) engineTime(now time.Time) time.Time { return e.startedAt.Add(now.Sub(e.startedAt)) }

// timeOfDay returns the time of day for audits: the result of Setup.Wall, or the argument now if Wall is nil.
func (e *Engine) timeOfDay(now time.Time) time.Time {
	if f := e.setup.Wall; f != nil {
		return f()
	}
	return now
}

// Config returns the current configuration. The caller must not modify it.
func (e *Engine) Config() *Config { return e.config.Load() }

// SetConfig replaces the configuration, but keeps the embedded Setup. Existing keys keep their latencies and states, and get
// new schedules. If c allows fewer keys, the least recently used keys are evicted. If c ends audits, their verdicts are lost.
func (e *Engine) SetConfig(c Config, now time.Time) {
	e.mu.Lock()
	defer e.unlockAndReport()
	old := e.Config()
	c.Setup = e.setup
	e.config.Store(&c)
	if c.MaxPerSecond != old.MaxPerSecond {
		e.limit.Store(budget.NewRateLimit(c.MaxPerSecond))
	}
	e.evictLeastRecentlyUsed()
	e.reconfigureAudits(old, &c)
	for k := range e.AllKeys() {
		k.reconfigure(now)
	}
}

// reconfigureAudits begins the audits of all hosts if c enables audits and old does not. If c disables them, it discards all
// verdicts. The caller must hold mu.
func (e *Engine) reconfigureAudits(old, c *Config) {
	if c.hasAudits() == old.hasAudits() {
		return
	}
	e.experiments = newExperiments(c)
	for k := range e.AllKeys() {
		k.experiment.audit.Store(e.experiments.AddKey(k.Name.Host))
	}
}

// keyInfo returns the description of a key for observers.
func (e *Engine) keyInfo(name Name) observe.KeyInfo {
	name = name.shortened()
	return observe.KeyInfo{Client: e.setup.Client, Protocol: e.setup.Protocol, Host: name.Host, Route: name.Route}
}

// Key returns the key with the given name. It adds the key if it does not exist.
func (e *Engine) Key(name Name) *Key { return e.RouteKey(name, 0) }

// RouteKey returns the key with the given name, which should have a route. It adds the key if it does not exist. If share is
// positive, hedges of a new key are also limited to this share of the key's requests. An existing key does not change.
func (e *Engine) RouteKey(name Name, share float64) *Key {
	if k := e.Lookup(name); k != nil {
		return k
	}
	e.mu.Lock()
	defer e.unlockAndReport()
	return e.addKey(name.shortened(), share)
}

// addKey implements RouteKey for a name that is already shortened. The caller must hold mu, and unlock it with unlockAndReport.
func (e *Engine) addKey(name Name, share float64) *Key {
	if k, ok := e.keys.Load(name); ok {
		return k.(*Key)
	}
	var host *Key
	if e.setup.PerHost && name.Route != "" {
		host = e.addKey(Name{Host: name.Host}, 0)
	}
	k := newKey(e, name, host, share)
	if state, calls, ok := e.safetyStates.Take(name); ok {
		k.safetyChecks.setState(&state)
		k.earlierCalls = calls
	}
	k.experiment.audit.Store(e.experiments.AddKey(name.Host))
	k.lastUsed.Store(e.age.Add(1)) // otherwise it would be evicted first
	e.keys.Store(name, k)
	e.size++
	e.evictLeastRecentlyUsed()
	return k
}

// Lookup returns the key with the given name, or nil if the engine has no such key.
func (e *Engine) Lookup(name Name) *Key {
	if k, ok := e.keys.Load(name); ok {
		return k.(*Key)
	}
	if short := name.shortened(); short != name {
		if k, ok := e.keys.Load(short); ok {
			return k.(*Key)
		}
	}
	return nil
}

// evictLeastRecentlyUsed evicts the least recently used keys if the engine has more keys than MaxKeys. It evicts a sixteenth
// more than necessary, because sorting the keys is expensive. The caller must hold mu, and unlock it with unlockAndReport.
func (e *Engine) evictLeastRecentlyUsed() {
	bound := max(e.Config().MaxKeys, 1)
	if e.size <= bound {
		return
	}
	used := make(map[*Key]int64, e.size)
	for k := range e.AllKeys() {
		age := k.lastUsed.Load() // one value for the sort, because it may change meanwhile
		used[k] = max(used[k], age)
		if k.host != nil { // a host counts as used when its routes are
			used[k.host] = max(used[k.host], age)
		}
	}
	keys := slices.SortedFunc(e.AllKeys(), func(a, b *Key) int {
		return cmp.Or(cmp.Compare(used[a], used[b]), -cmp.Compare(len(a.Name.Route), len(b.Name.Route)))
	})
	for _, k := range keys[:len(keys)-(bound-bound/16)] {
		e.evictKey(k, bound)
	}
}

// evictKey removes the key k from the engine, and returns its tokens to the shared reserve. It keeps the state of k's safety
// checks. If k was the last key of its host, it also keeps the verdict of the host's audit.
//
// The engine keeps at most maxStates states of evicted keys, and as many verdicts. The caller must hold mu, and unlock it
// with unlockAndReport.
func (e *Engine) evictKey(k *Key, maxStates int) {
	e.keys.Delete(k.Name)
	k.evicted.Store(true)
	e.notifyExtension(k, EvictionListener.Forget)
	e.size--
	k.account.Close()
	at, calls := e.ageDuration(), k.totalRequests()
	if state := k.copySafetyState(); state.isWorthKeeping() {
		e.safetyStates.Put(k.Name, state, k.earlierCalls+calls, at, maxStates)
	}
	e.experiments.RemoveKey(k.Name.Host, calls, at, maxStates)
}

// ClearPushback ends all pauses of hedging that pushback has caused. It applies to all keys, and to the stored states of
// evicted keys.
func (e *Engine) ClearPushback() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k := range e.AllKeys() {
		k.clearPushback()
	}
	e.safetyStates.Each(func(_ Name, state *safetyState, _ int64) bool {
		state.pushback = pushbackCheck{}
		return state.isWorthKeeping()
	})
}

// Reset deletes the learned latencies and the states of the keys with the given host and route. An empty host or route matches
// every host or route. Reset returns the number of keys that matched.
func (e *Engine) Reset(host, route string) (keys int) {
	want := Name{host, route}.shortened()
	e.mu.Lock()
	defer e.unlockAndReport()
	e.safetyStates.Each(func(n Name, _ *safetyState, _ int64) bool { return !want.matchesName(n) })
	e.experiments.ForgetEvicted(func(host string) bool { return want.matchesName(Name{Host: host}) })
	for k := range e.AllKeys() {
		if want.matchesName(k.Name) {
			k.resetLearned()
			e.notifyExtension(k, EvictionListener.Reset)
			if a := k.experiment.audit.Load(); a != nil && route == "" {
				a.Reset()
			}
			keys++
		}
	}
	return keys
}

// matchesName reports whether other matches the pattern n. An empty Host or Route of n matches every host or route.
func (n Name) matchesName(other Name) bool {
	return (n.Host == "" || n.Host == other.Host) && (n.Route == "" || n.Route == other.Route)
}

// AllKeys returns an iterator over the keys of the engine, in no particular order. Keys may be added and evicted during the
// iteration.
func (e *Engine) AllKeys() func(yield func(*Key) bool) {
	return func(yield func(*Key) bool) {
		e.keys.Range(func(_, k any) bool { return yield(k.(*Key)) })
	}
}
