// Package policy decides when a call is hedged, how often, and whether it may
// be: the learned delays, the budget and the brakes, per key.
//
// The rule in short: hedge the slowest tenth of calls; if the hedge is
// slow too, hedge the slowest tenth of those again. Count what callers really
// waited, and take the earliest first delay whose whole cost fits the budget.
// Every request pays a share of a hedge. If most calls are slow, stop: that is
// an outage, not a tail. If hedges never win, spend a tenth.
//
// Package race does the racing; adapters for HTTP, gRPC and DNS bring the two
// together. The hot path reads two atomics and takes one lock, the key's own.
package policy

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/label"
	"github.com/gohedge/hedge/observe"
)

// A Name names a key: a host, and what is asked of it where that matters. Names come from outside. The
// engine keeps them as [label.Short] returns them.
type Name struct{ Host, Route string }

func (n Name) short() Name { return Name{label.Short(n.Host), label.Short(n.Route)} }

// An Engine is a bounded table of keys under one configuration. It is safe for concurrent use.
//
// Keys come and go, at the will of whoever chooses their names, and tokens are conserved: all
// keys together hedge no more than the share of their calls and one burst, see
// [budget.SharedReserve]. What holds the hedges of a key back is remembered when the key is forgotten,
// and so is the verdict of its host's audit, of as many keys and hosts as the table holds.
//
// A key remembers the engine's age when it was last used, by which the least
// recently used are found. The age grows with the clock, in milliseconds, and by one with
// each key that is made. It never falls, though the clock may be set back.
type Engine struct {
	setup  Setup     // never changes
	born   time.Time // never changes
	bubble bool      // born in a bubble of testing/synctest; never changes

	age    atomic.Int64
	config atomic.Pointer[Config]           // stored by SetConfig with mu held, as limit is
	limit  atomic.Pointer[budget.RateLimit] // nil: there is none
	keys   sync.Map                         // Name to *Key; stored and deleted with mu held

	mu       sync.Mutex                        // guards the fields below; locked before a key's and an audit's
	size     int                               // of keys
	reserves budget.Reserves                   // what keys begin with
	audits   map[string]*hostAudit             // by host
	holds    evictedStates[Name, brakeState]   // of keys that were forgotten
	judged   evictedStates[string, *hostAudit] // with a verdict, of hosts whose keys were forgotten
	untold   []func()                          // what observers are told when mu is unlocked: they may call the engine
}

// unlock unlocks mu, and tells what is to be told.
func (e *Engine) unlock() {
	untold := e.untold
	e.untold = nil
	e.mu.Unlock()
	for _, tell := range untold {
		tell()
	}
}

// note tells the Extension of k by f, if it is EvictionListener. The caller holds mu, and unlocks it by unlock.
func (e *Engine) note(k *Key, f func(EvictionListener) func()) {
	if n, ok := k.Extension.Load().(EvictionListener); ok {
		if tell := f(n); tell != nil {
			e.untold = append(e.untold, tell)
		}
	}
}

// New returns an Engine without keys.
func New(c Config) *Engine {
	e := &Engine{born: time.Now(), setup: c.Setup, reserves: budget.NewReserves(c.sizing())}
	e.bubble = e.born == e.born.Round(0)
	e.config.Store(&c)
	e.limit.Store(budget.NewRateLimit(c.MaxPerSecond))
	return e
}

// aged returns the engine's age.
func (e *Engine) aged(now time.Time) int64 {
	age := e.age.Load()
	if t := now.Sub(e.born).Milliseconds(); t > age {
		e.age.CompareAndSwap(age, t) // a call at the same time may have done that
		return t
	}
	return age
}

// runs returns the engine's age.
func (e *Engine) runs() time.Duration { return time.Duration(e.age.Load()) * time.Millisecond }

// now returns the time by the engine's own clock, for half the price of time.Now: the time
// of day goes on from when the engine was made, whoever sets the clock. Time differences are
// all that is made of it.
func (e *Engine) now() time.Time { return e.born.Add(time.Since(e.born)) }

// clock returns the given time by the engine's clock.
func (e *Engine) clock(now time.Time) time.Time { return e.born.Add(now.Sub(e.born)) }

// wall returns the time of day at which a call begins; now by the engine's clock, if there is no other one.
func (e *Engine) wall(now time.Time) time.Time {
	if f := e.setup.Wall; f != nil {
		return f()
	}
	return now
}

// Config returns the configuration. It must not be changed.
func (e *Engine) Config() *Config { return e.config.Load() }

// SetConfig puts another configuration in force, for the keys that exist as
// well. What they learned is kept. The Setup stays; c's is ignored.
func (e *Engine) SetConfig(c Config, now time.Time) {
	e.mu.Lock()
	defer e.unlock()
	old := e.Config()
	c.Setup = e.setup
	e.config.Store(&c)
	if c.MaxPerSecond != old.MaxPerSecond {
		e.limit.Store(budget.NewRateLimit(c.MaxPerSecond))
	}
	e.evict()
	for k := range e.all() {
		k.reconfigure(now)
	}
}

// info returns what observers are told of a key.
func (e *Engine) info(name Name) observe.KeyInfo {
	name = name.short()
	return observe.KeyInfo{Client: e.setup.Client, Protocol: e.setup.Protocol, Host: name.Host, Route: name.Route}
}

// Key returns the key of the given name, a new one if there is none.
func (e *Engine) Key(name Name) *Key { return e.RouteKey(name, 0) }

// RouteKey is Key for a route whose hedges must not exceed a share of its own
// requests, beside what its host allows; 0 sets no such limit. A key that exists
// keeps the share that it was made with.
func (e *Engine) RouteKey(name Name, share float64) *Key {
	if k := e.Lookup(name); k != nil {
		return k
	}
	e.mu.Lock()
	defer e.unlock()
	return e.make(name.short(), share)
}

// make returns the key of the given name, which is short. The caller holds mu.
func (e *Engine) make(name Name, share float64) *Key {
	if k, ok := e.keys.Load(name); ok {
		return k.(*Key)
	}
	var host *Key
	if e.setup.PerHost && name.Route != "" {
		host = e.make(Name{Host: name.Host}, 0)
	}
	k := newKey(e, name, host, share)
	if h, calls, ok := e.holds.Take(name); ok {
		k.brakes.brakeState, k.earlier = h, calls
	}
	k.audit = e.auditOf(name.Host)
	k.used.Store(e.age.Add(1)) // or it would be the first to go
	e.keys.Store(name, k)
	e.size++
	e.evict()
	return k
}

// A hostAudit is the audit that the keys of a host share. Guarded by Engine.mu.
type hostAudit struct {
	*audit.Audit
	keys  int
	calls int64 // of the keys that were forgotten
}

// auditOf returns the audit of a host for one more key, nil if hosts are not audited. The caller holds mu.
func (e *Engine) auditOf(host string) *audit.Audit {
	if !e.setup.Audit || e.setup.Shadow {
		return nil
	}
	a := e.audits[host]
	if a == nil {
		if e.audits == nil {
			e.audits = make(map[string]*hostAudit)
		}
		if a, _, _ = e.judged.Take(host); a == nil {
			a = &hostAudit{Audit: audit.New(host)}
		}
		e.audits[host] = a
	}
	a.keys++
	return a.Audit
}

// Lookup returns the key of the given name, or nil if there is none.
func (e *Engine) Lookup(name Name) *Key {
	if k, ok := e.keys.Load(name); ok {
		return k.(*Key)
	}
	if short := name.short(); short != name {
		if k, ok := e.keys.Load(short); ok {
			return k.(*Key)
		}
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
	used := make(map[*Key]int64, e.size)
	for k := range e.all() {
		age := k.used.Load() // may change while we sort
		used[k] = max(used[k], age)
		if k.host != nil { // a host is used when a route of it is, and stays as long
			used[k.host] = max(used[k.host], age)
		}
	}
	keys := slices.SortedFunc(e.all(), func(a, b *Key) int {
		return cmp.Or(cmp.Compare(used[a], used[b]), -cmp.Compare(len(a.Name.Route), len(b.Name.Route)))
	})
	for _, k := range keys[:len(keys)-(bound-bound/16)] {
		e.forget(k, bound)
	}
}

// forget takes a key out of the table. What it has saved up goes back to the reserve, and what holds its hedges
// back, and the verdict if it was the last key of its host, are remembered, of so many keys and hosts. The caller holds mu.
func (e *Engine) forget(k *Key, bound int) {
	e.keys.Delete(k.Name)
	k.evicted.Store(true)
	e.note(k, EvictionListener.Forget)
	e.size--
	k.account.Close()
	at, calls := e.runs(), k.requests()
	if h := k.copyBrakeState(); h.isNotable() {
		e.holds.Put(k.Name, h, k.earlier+calls, at, bound)
	}
	a := e.audits[k.Name.Host]
	if a == nil {
		return
	}
	a.calls += calls
	if a.keys--; a.keys > 0 {
		return
	}
	delete(e.audits, k.Name.Host)
	if a.Verdict() != observe.AuditTrying {
		e.judged.Put(k.Name.Host, a, a.calls, at, bound)
	}
}

// Resume makes all keys forget that servers asked for less.
func (e *Engine) Resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k := range e.all() {
		k.resume()
	}
	e.holds.Each(func(_ Name, h *brakeState, _ int64) bool {
		h.clearPushback()
		return h.isNotable()
	})
}

// Reset makes the keys of a host and route forget what they learned; of any host, or
// any route, if that is "". It returns how many keys there are.
func (e *Engine) Reset(host, route string) (keys int) {
	want := Name{host, route}.short()
	e.mu.Lock()
	defer e.unlock()
	e.holds.Each(func(n Name, _ *brakeState, _ int64) bool { return !want.covers(n) })
	e.judged.Each(func(host string, _ **hostAudit, _ int64) bool { return !want.covers(Name{Host: host}) })
	for k := range e.all() {
		if want.covers(k.Name) {
			k.reset()
			e.note(k, EvictionListener.Reset)
			if k.audit != nil && route == "" {
				k.audit.Reset()
			}
			keys++
		}
	}
	return keys
}

// covers reports whether other is n, of which empty parts stand for any.
func (n Name) covers(other Name) bool {
	return (n.Host == "" || n.Host == other.Host) && (n.Route == "" || n.Route == other.Route)
}

func (e *Engine) all() func(yield func(*Key) bool) {
	return func(yield func(*Key) bool) {
		e.keys.Range(func(_, k any) bool { return yield(k.(*Key)) })
	}
}

// Snapshots returns what every key knows, by name.
func (e *Engine) Snapshots() []Snapshot {
	var all []Snapshot
	for k := range e.all() {
		all = append(all, k.Snapshot())
	}
	slices.SortFunc(all, func(a, b Snapshot) int {
		return cmp.Or(cmp.Compare(a.Name.Host, b.Name.Host), cmp.Compare(a.Name.Route, b.Name.Route))
	})
	return all
}
