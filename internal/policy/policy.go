// Package policy decides for each latency key whether calls are hedged, after which delays, and whether the budget pays for a hedge.
//
// It hedges the slowest tenth of the calls; if the hedge is slow too, it hedges the slowest tenth of these calls again. The first delay is
// the shortest delay at which all hedges together fit the budget. Each request refills the budget by a share of a hedge. While most calls
// are slow, no hedge starts: that is an outage. If hedges never win, a tenth of the budget remains.
//
// Package race starts the attempts. The adapters for HTTP, gRPC and DNS connect both packages. A call reads two atomics and takes one lock,
// that of its key.
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

// A Name identifies a key by its host and its route. Route is "" for the key of the host itself. Names come from untrusted sources: the
// engine shortens them with [sanitize.ShortenText].
type Name struct{ Host, Route string }

func (n Name) shortened() Name {
	return Name{sanitize.ShortenText(n.Host), sanitize.ShortenText(n.Route)}
}

// An Engine is a bounded table of keys with one configuration. It is safe for concurrent use.
//
// Names come from untrusted sources, so keys can be made and evicted at any rate. The total number of tokens stays limited: all keys
// together send at most the configured share of their calls as hedges, and one burst. See [budget.SharedReserve].
//
// When a key is evicted, the engine keeps the state of its brakes. When the last key of a host is evicted, it keeps the verdict of its
// audit. It keeps at most as many states and verdicts as the table can hold keys.
//
// Each key stores the engine's age at its last use, which orders keys for eviction. The age grows with the clock, in milliseconds, and by
// one with each new key. It never decreases, even if the clock is set back.
type Engine struct {
	setup     Setup     // never changes
	startedAt time.Time // never changes
	inBubble  bool      // made in a bubble of testing/synctest; never changes

	age    atomic.Int64
	config atomic.Pointer[Config]           // stored with mu held
	limit  atomic.Pointer[budget.RateLimit] // stored with mu held; nil: no limit
	keys   sync.Map                         // Name to *Key; stored and deleted with mu held

	mu             sync.Mutex                       // guards the fields below; locked before the mutex of a key or an experiment
	size           int                              // number of keys
	reserves       budget.Reserves                  // supply the initial tokens of keys
	experiments    *experiments                     // audits of the hosts; nil: hosts are not audited
	brakeStates    evicted.States[Name, brakeState] // of evicted keys
	pendingReports []func()                         // called after mu is unlocked, because observers may call the engine
}

// unlockAndReport unlocks mu, and then calls the pending reports.
func (e *Engine) unlockAndReport() {
	reports := e.pendingReports
	e.pendingReports = nil
	e.mu.Unlock()
	for _, report := range reports {
		report()
	}
}

// notifyExtension calls the method f of the key's Extension, if that is an [EvictionListener]. It adds the returned function to the pending
// reports. The caller holds mu, and must unlock it by unlockAndReport.
func (e *Engine) notifyExtension(k *Key, f func(EvictionListener) func()) {
	if n, ok := k.Extension.Load().(EvictionListener); ok {
		if report := f(n); report != nil {
			e.pendingReports = append(e.pendingReports, report)
		}
	}
}

// New returns an Engine without keys.
func New(c Config) *Engine {
	e := &Engine{startedAt: time.Now(), setup: c.Setup, reserves: budget.NewReserves(c.bucketSizing()), experiments: newExperiments(&c.Setup)}
	e.inBubble = e.startedAt == e.startedAt.Round(0)
	e.config.Store(&c)
	e.limit.Store(budget.NewRateLimit(c.MaxPerSecond))
	return e
}

// advanceAge sets the engine's age to the time since its start, unless the age is higher. It returns the age in milliseconds.
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

// now returns the time by the engine's clock, which takes half as long as time.Now. The clock starts at the time of day at which the engine
// is made. It ignores later changes of the system clock, so it only serves to measure durations.
func (e *Engine) now() time.Time { return e.startedAt.Add(time.Since(e.startedAt)) }

// engineTime converts a time from time.Now to the engine's clock.
func (e *Engine) engineTime(now time.Time) time.Time { return e.startedAt.Add(now.Sub(e.startedAt)) }

// timeOfDay returns the time of day: the result of Setup.Wall, or the argument now if Wall is nil.
func (e *Engine) timeOfDay(now time.Time) time.Time {
	if f := e.setup.Wall; f != nil {
		return f()
	}
	return now
}

// Config returns the current configuration. The caller must not modify it.
func (e *Engine) Config() *Config { return e.config.Load() }

// SetConfig replaces the configuration, except for its Setup, which stays. Existing keys keep their latencies and states, and get new
// schedules.
func (e *Engine) SetConfig(c Config, now time.Time) {
	e.mu.Lock()
	defer e.unlockAndReport()
	old := e.Config()
	c.Setup = e.setup
	e.config.Store(&c)
	if c.MaxPerSecond != old.MaxPerSecond {
		e.limit.Store(budget.NewRateLimit(c.MaxPerSecond))
	}
	e.evictLeastUsed()
	for k := range e.allKeys() {
		k.reconfigure(now)
	}
}

// keyInfo returns the description of a key for observers.
func (e *Engine) keyInfo(name Name) observe.KeyInfo {
	name = name.shortened()
	return observe.KeyInfo{Client: e.setup.Client, Protocol: e.setup.Protocol, Host: name.Host, Route: name.Route}
}

// Key returns the key with the given name, and adds it if it is missing.
func (e *Engine) Key(name Name) *Key { return e.RouteKey(name, 0) }

// RouteKey does the same as Key for a route. If share is positive, the hedges of a new key are also limited to that share of the key's own
// requests. An existing key keeps its share.
func (e *Engine) RouteKey(name Name, share float64) *Key {
	if k := e.Lookup(name); k != nil {
		return k
	}
	e.mu.Lock()
	defer e.unlockAndReport()
	return e.addKey(name.shortened(), share)
}

// addKey returns the key with the given name, and adds it if it is missing. The name must be shortened. If share is positive, the hedges of
// a new key are limited to that share of its requests. The caller holds mu.
func (e *Engine) addKey(name Name, share float64) *Key {
	if k, ok := e.keys.Load(name); ok {
		return k.(*Key)
	}
	var host *Key
	if e.setup.PerHost && name.Route != "" {
		host = e.addKey(Name{Host: name.Host}, 0)
	}
	k := newKey(e, name, host, share)
	if state, calls, ok := e.brakeStates.Take(name); ok {
		k.brakes.setState(&state)
		k.earlierCalls = calls
	}
	k.experiment = experiment{e.experiments.AddKey(name.Host)}
	k.lastUsed.Store(e.age.Add(1)) // otherwise it would be evicted first
	e.keys.Store(name, k)
	e.size++
	e.evictLeastUsed()
	return k
}

// Lookup returns the key with the given name; nil if it is not in the table.
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

// evictLeastUsed evicts the least recently used keys if the table is too large. It evicts a sixteenth of the table at once, because the
// search for these keys is expensive. The caller holds mu.
func (e *Engine) evictLeastUsed() {
	bound := max(e.Config().MaxKeys, 1)
	if e.size <= bound {
		return
	}
	used := make(map[*Key]int64, e.size)
	for k := range e.allKeys() {
		age := k.lastUsed.Load() // one value for the sort, because it may change meanwhile
		used[k] = max(used[k], age)
		if k.host != nil { // a host counts as used when its routes are
			used[k.host] = max(used[k.host], age)
		}
	}
	keys := slices.SortedFunc(e.allKeys(), func(a, b *Key) int {
		return cmp.Or(cmp.Compare(used[a], used[b]), -cmp.Compare(len(a.Name.Route), len(b.Name.Route)))
	})
	for _, k := range keys[:len(keys)-(bound-bound/16)] {
		e.evictKey(k, bound)
	}
}

// evictKey removes a key from the table, and returns its tokens to the reserve. It keeps the state of the key's brakes, and the verdict of
// its host if this was the last key of the host. At most bound states and bound verdicts are kept. The caller holds mu.
func (e *Engine) evictKey(k *Key, bound int) {
	e.keys.Delete(k.Name)
	k.evicted.Store(true)
	e.notifyExtension(k, EvictionListener.Forget)
	e.size--
	k.account.Close()
	at, calls := e.ageDuration(), k.totalRequests()
	if state := k.copyBrakeState(); state.isNotable() {
		e.brakeStates.Put(k.Name, state, k.earlierCalls+calls, at, bound)
	}
	e.experiments.RemoveKey(k.Name.Host, calls, at, bound)
}

// ClearPushback ends all pauses after pushback, for all keys and for the states of evicted keys.
func (e *Engine) ClearPushback() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k := range e.allKeys() {
		k.clearPushback()
	}
	e.brakeStates.Each(func(_ Name, state *brakeState, _ int64) bool {
		state.pushback = pushbackCheck{}
		return state.isNotable()
	})
}

// Reset deletes learned latencies and states of the keys with the given host and route. The value "" matches any host or any route. It
// returns the number of matching keys.
func (e *Engine) Reset(host, route string) (keys int) {
	want := Name{host, route}.shortened()
	e.mu.Lock()
	defer e.unlockAndReport()
	e.brakeStates.Each(func(n Name, _ *brakeState, _ int64) bool { return !want.matchesName(n) })
	e.experiments.ForgetEvicted(func(host string) bool { return want.matchesName(Name{Host: host}) })
	for k := range e.allKeys() {
		if want.matchesName(k.Name) {
			k.resetLearned()
			e.notifyExtension(k, EvictionListener.Reset)
			if k.experiment.isAudited() && route == "" {
				k.experiment.Reset()
			}
			keys++
		}
	}
	return keys
}

// matchesName reports whether n, as a pattern, matches other. An empty Host or Route of n matches any.
func (n Name) matchesName(other Name) bool {
	return (n.Host == "" || n.Host == other.Host) && (n.Route == "" || n.Route == other.Route)
}

func (e *Engine) allKeys() func(yield func(*Key) bool) {
	return func(yield func(*Key) bool) {
		e.keys.Range(func(_, k any) bool { return yield(k.(*Key)) })
	}
}
