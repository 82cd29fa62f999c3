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

// A Name names a key: a host, and a route of the host or "". Names come from outside. The engine stores them as [sanitize.ShortenText] returns
// them.
type Name struct{ Host, Route string }

func (n Name) shortened() Name {
	return Name{sanitize.ShortenText(n.Host), sanitize.ShortenText(n.Route)}
}

// An Engine is a bounded table of keys under one configuration. It is safe for concurrent use.
//
// Names come from outside, so keys are made and evicted at any rate. Tokens are conserved: all keys together hedge no more than the share
// of their calls and one burst, see [budget.SharedReserve]. When a key is evicted, the state of its brakes is kept, and so is
// the verdict of its host, of as many keys and hosts as the table holds.
//
// Each key stores the engine's age at its last use, for finding the least recently used keys. The age grows with the clock, in
// milliseconds, and by one with each new key. It never falls, though the clock may be set back.
type Engine struct {
	setup     Setup     // never changes
	startedAt time.Time // never changes
	inBubble  bool      // born in a bubble of testing/synctest; never changes

	age    atomic.Int64
	config atomic.Pointer[Config]           // stored by SetConfig with mu held, as limit is
	limit  atomic.Pointer[budget.RateLimit] // nil: there is none
	keys   sync.Map                         // Name to *Key; stored and deleted with mu held

	mu             sync.Mutex                       // guards the fields below; locked before the mutex of a key or an experiment
	size           int                              // number of keys
	reserves       budget.Reserves                  // initial tokens of the keys
	experiments    *experiments                     // of the hosts; nil: there are none
	brakeStates    evicted.States[Name, brakeState] // of evicted keys
	pendingReports []func()                         // called when mu is unlocked, as observers may call the engine
}

// unlockAndReport unlocks mu, and calls the pending reports.
func (e *Engine) unlockAndReport() {
	reports := e.pendingReports
	e.pendingReports = nil
	e.mu.Unlock()
	for _, report := range reports {
		report()
	}
}

// notifyExtension calls f for the Extension of k, if it is an EvictionListener. The caller holds mu, and unlocks it by unlock.
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

// advanceAge advances the engine's age to the time now, and returns it in milliseconds.
func (e *Engine) advanceAge(now time.Time) int64 {
	age := e.age.Load()
	if t := now.Sub(e.startedAt).Milliseconds(); t > age {
		e.age.CompareAndSwap(age, t) // a call at the same time may have done that
		return t
	}
	return age
}

// ageDuration returns the engine's age as a duration.
func (e *Engine) ageDuration() time.Duration { return time.Duration(e.age.Load()) * time.Millisecond }

// now returns the time by the engine's own clock, for half the price of time.Now. This clock starts at the time of day at which the engine
// was made, and is never set. It serves for time differences alone.
func (e *Engine) now() time.Time { return e.startedAt.Add(time.Since(e.startedAt)) }

// engineTime converts a time of time.Now to the engine's clock.
func (e *Engine) engineTime(now time.Time) time.Time { return e.startedAt.Add(now.Sub(e.startedAt)) }

// timeOfDay returns the time of day by Setup.Wall. Without it, the time now by the engine's clock is the time of day.
func (e *Engine) timeOfDay(now time.Time) time.Time {
	if f := e.setup.Wall; f != nil {
		return f()
	}
	return now
}

// Config returns the configuration. It must not be changed.
func (e *Engine) Config() *Config { return e.config.Load() }

// SetConfig applies another configuration, also to existing keys, whose latencies and states stay. The Setup of c is ignored.
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

// keyInfo returns the labels of a key for observers.
func (e *Engine) keyInfo(name Name) observe.KeyInfo {
	name = name.shortened()
	return observe.KeyInfo{Client: e.setup.Client, Protocol: e.setup.Protocol, Host: name.Host, Route: name.Route}
}

// Key returns the key of the given name, a new one if there is none.
func (e *Engine) Key(name Name) *Key { return e.RouteKey(name, 0) }

// RouteKey is Key for a route whose hedges must not exceed a share of its own requests, besides the budget of its host; 0 sets no limit. An
// existing key keeps its share.
func (e *Engine) RouteKey(name Name, share float64) *Key {
	if k := e.Lookup(name); k != nil {
		return k
	}
	e.mu.Lock()
	defer e.unlockAndReport()
	return e.addKey(name.shortened(), share)
}

// addKey returns the key of a name, and adds it if it is missing. The name is short, see Name.short. Hedges of a new key are limited to a share of
// its requests, if share is not 0. The caller holds mu.
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
	k.lastUsed.Store(e.age.Add(1)) // or it would be the first to go
	e.keys.Store(name, k)
	e.size++
	e.evictLeastUsed()
	return k
}

// Lookup returns the key of the given name, or nil if there is none.
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

// evictLeastUsed evicts the least recently used keys if the table exceeds its bound. It evicts a sixteenth of the table at once, because the
// search for these keys is expensive. The caller holds mu.
func (e *Engine) evictLeastUsed() {
	bound := max(e.Config().MaxKeys, 1)
	if e.size <= bound {
		return
	}
	used := make(map[*Key]int64, e.size)
	for k := range e.allKeys() {
		age := k.lastUsed.Load() // may change while we sort
		used[k] = max(used[k], age)
		if k.host != nil { // a host is used when a route of it is, and stays as long
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

// evictKey evicts a key, and returns its tokens to the reserve. It keeps the state of the key's brakes, and the verdict of the host if the host
// has no other key; each for at most bound keys or hosts. The caller holds mu.
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

// ClearPushback ends all pauses after pushback, for all keys.
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

// Reset clears the latencies and the states of the keys of a host and route; "" matches any host or route. It returns the number of these
// keys.
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

// matchesName reports whether n matches other. Empty parts of n match any.
func (n Name) matchesName(other Name) bool {
	return (n.Host == "" || n.Host == other.Host) && (n.Route == "" || n.Route == other.Route)
}

func (e *Engine) allKeys() func(yield func(*Key) bool) {
	return func(yield func(*Key) bool) {
		e.keys.Range(func(_, k any) bool { return yield(k.(*Key)) })
	}
}
