// Package engine decides when a call is hedged, how often, and whether it may
// be: the learned delays, the budget and the brakes, per key.
//
// The rule in one breath: hedge the slowest tenth of calls; if the hedge is
// slow too, hedge the slowest tenth of those again. Count what callers really
// waited, and take the earliest first delay whose whole cost fits the budget.
// Every request pays a share of a hedge. If most calls are slow, stop: that is
// an outage, not a tail. If hedges never win, spend a tenth.
//
// Package race does the racing; adapters for HTTP, gRPC and DNS bring the two
// together. The hot path reads two atomics and takes one lock, the key's own.
package engine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Config says what an Engine may do. Adapters start from [Default] or from a Config of their own.
type Config struct {
	Percentile   float64            // never hedge before this quantile, in [0, 1)
	MaxHedges    int                // per call
	Share        float64            // hedges per request
	EstimatedRPS float64            // sizes the burst until the rate is measured
	Burst        time.Duration      // how long the budget of that rate may be saved up
	MinDelay     time.Duration      // before the first hedge, and between two
	MaxDelay     time.Duration      // no hedge is due later; 0: no limit
	InitialDelay time.Duration      // before anything is learned; 0: do not hedge then
	MaxPerSecond float64            // hedges of all keys per second; 0: no limit
	MaxKeys      int                // keys remembered; the least recently used go first
	Shared       *Bucket            // pays for all keys; nil: each key has its own
	PerHost      bool               // keys of one host share its bucket, whatever their route
	Observer     Observer           // is told what happens; nil: nobody is
	Changed      func(Name, Change) // is told of changes of state, see [ChangeEvery]; nil: nobody is
	Shadow       bool               // learn, decide and count, but start no hedge
}

// Default returns the settings that HTTP and gRPC start from: hedge the slowest
// tenth of calls, with two hedges per call at most, for ten hedges per hundred requests.
func Default() Config {
	return Config{
		Percentile:   0.90,
		MaxHedges:    2,
		Share:        0.10,
		EstimatedRPS: 100,
		Burst:        2 * time.Second,
		MinDelay:     time.Millisecond,
		MaxKeys:      4096,
	}
}

// burst returns how many hedges may be saved up at the given rate.
func (c *Config) burst(rps float64) float64 {
	return c.Burst.Seconds() * c.Share * max(c.EstimatedRPS, rps)
}

func (c *Config) cold() *Plan {
	if c.InitialDelay <= 0 || c.MaxHedges == 0 {
		return nil
	}
	p := EveryDelay(c.InitialDelay, c.MaxHedges)
	p.Delays = c.clamp(p.Delays)
	return p
}

// A Name names a key: a host, and what is asked of it where that matters.
type Name struct{ Host, Route string }

// An Engine is a bounded table of keys under one configuration. It is safe for concurrent use.
type Engine struct {
	config  atomic.Pointer[Config]
	ceiling atomic.Pointer[ceiling]
	keys    sync.Map // Name to *Key
	mu      sync.Mutex
	size    int // of keys; guarded by mu

	observer Observer
	changed  func(Name, Change)
	shadow   bool
}

// New returns an Engine without keys.
func New(c Config) *Engine {
	e := &Engine{observer: c.Observer, changed: c.Changed, shadow: c.Shadow}
	e.config.Store(&c)
	e.ceiling.Store(newCeiling(c.MaxPerSecond))
	return e
}

// Config returns the configuration. It must not be changed.
func (e *Engine) Config() *Config { return e.config.Load() }

// SetConfig puts another configuration in force, for the keys that exist as
// well. What they learned is kept. Shared, PerHost, Observer, Changed
// and Shadow cannot be changed; c's are ignored.
func (e *Engine) SetConfig(c Config, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.Config()
	c.Shared, c.PerHost, c.Observer, c.Changed, c.Shadow = old.Shared, old.PerHost, old.Observer, old.Changed, old.Shadow
	e.config.Store(&c)
	if c.MaxPerSecond != old.MaxPerSecond {
		e.ceiling.Store(newCeiling(c.MaxPerSecond))
	}
	e.evict()
	for k := range e.all() {
		k.reconfigure(now)
	}
}

// Key returns the key of the given name, a new one if there is none.
func (e *Engine) Key(name Name) *Key { return e.RouteKey(name, 0) }

// RouteKey is Key for a route whose hedges must not exceed a share of its own
// requests, beside what its host allows; 0 sets no such limit. A key that exists
// keeps the share that it was made with.
func (e *Engine) RouteKey(name Name, share float64) *Key {
	if k, ok := e.keys.Load(name); ok {
		return k.(*Key)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.make(name, share)
}

// make returns the key of the given name. The caller holds mu.
func (e *Engine) make(name Name, share float64) *Key {
	if k, ok := e.keys.Load(name); ok {
		return k.(*Key)
	}
	var host *Bucket
	if e.Config().PerHost && name.Route != "" {
		host = e.make(Name{Host: name.Host}, 0).bucket
	}
	k := newKey(e, name, host, share)
	k.used.Store(time.Now().UnixNano()) // or it would be the first to go
	e.keys.Store(name, k)
	e.size++
	e.evict()
	return k
}

// Lookup returns the key of the given name, or nil if there is none.
func (e *Engine) Lookup(name Name) *Key {
	if k, ok := e.keys.Load(name); ok {
		return k.(*Key)
	}
	return nil
}

// evict brings the table below its bound, and a sixteenth below, so that the
// cost of finding the least recently used is shared by many. The caller holds mu.
func (e *Engine) evict() {
	bound := max(e.Config().MaxKeys, 1)
	if e.size <= bound {
		return
	}
	keys := slices.Collect(e.all())
	type aged struct {
		*Key
		used int64
	}
	byAge := make([]aged, len(keys))
	for i, k := range keys {
		byAge[i] = aged{k, k.used.Load()} // may change while we sort
	}
	slices.SortFunc(byAge, func(a, b aged) int { return cmp.Compare(a.used, b.used) })
	for _, k := range byAge[:len(byAge)-(bound-bound/16)] {
		e.keys.Delete(k.Name)
		e.size--
	}
}

func (e *Engine) all() func(yield func(*Key) bool) {
	return func(yield func(*Key) bool) {
		e.keys.Range(func(_, k any) bool { return yield(k.(*Key)) })
	}
}

// Views returns what every key knows, by name.
func (e *Engine) Views() []View {
	var all []View
	for k := range e.all() {
		all = append(all, k.View())
	}
	slices.SortFunc(all, func(a, b View) int {
		return cmp.Or(cmp.Compare(a.Name.Host, b.Name.Host), cmp.Compare(a.Name.Route, b.Name.Route))
	})
	return all
}
