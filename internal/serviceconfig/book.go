package serviceconfig

import (
	"maps"
	"sync"
	"sync/atomic"
)

// A Live is a config in force. It is safe for concurrent use.
type Live struct {
	*Config        // nil: nothing is said
	Source  string // who says so, for people

	Methods MethodCache // of the interceptor's rules, which hold while the config is in force

	throttles *throttles // nil: there are none
}

// Throttles reports whether there are buckets.
func (l *Live) Throttles() bool { return l.throttles != nil }

// Throttle returns the bucket of the target with a name of package grpctarget, nil if there is none.
func (l *Live) Throttle(target string) *Throttle {
	if l.throttles == nil {
		return nil
	}
	return l.throttles.of(target)
}

// live returns c in force in place of old. Buckets on the same terms stay as they are.
func live(c *Config, source string, old *Live) *Live {
	l := &Live{Config: c, Source: source}
	if c == nil || c.Throttling == nil {
		return l
	}
	if old != nil && old.throttles != nil && old.throttles.terms == *c.Throttling {
		l.throttles = old.throttles
	} else {
		l.throttles = &throttles{terms: *c.Throttling}
	}
	return l
}

// A Book holds the configs that are in force: one for all targets, and those of targets whose resolvers send
// one, which count more. It is safe for concurrent use after Set.
type Book struct {
	mu    sync.Mutex // held by who changes pages
	pages atomic.Pointer[pages]
}

// pages do not change.
type pages struct {
	all      *Live
	byTarget map[string]*Live // by names of package grpctarget
}

// Set puts c, which may be nil, in force for targets whose resolvers send none, and reports whether that changes something.
func (b *Book) Set(c *Config, source string) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.pages.Load()
	if old == nil {
		b.pages.Store(&pages{all: live(c, source, nil)})
		return true
	}
	if old.all.Config.Equal(c) {
		return false
	}
	b.pages.Store(&pages{live(c, source, old.all), old.byTarget})
	return true
}

// set puts c in force for the target with a name of package grpctarget. It reports whether that changes something.
func (b *Book) set(target string, c *Config) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.pages.Load()
	before, found := old.byTarget[target]
	if found && before.Config.Equal(c) {
		return false
	}
	to := maps.Clone(old.byTarget)
	if to == nil {
		to = make(map[string]*Live)
	}
	if !found {
		makeRoom(to)
	}
	to[target] = live(c, "the resolver", before)
	b.pages.Store(&pages{old.all, to})
	return true
}

// All returns what is in force for targets whose resolvers send nothing.
func (b *Book) All() *Live { return b.pages.Load().all }

// Of returns the config in force for calls to the target with a name of package grpctarget.
func (b *Book) Of(target string) *Live {
	p := b.pages.Load()
	if l := p.byTarget[target]; l != nil {
		return l
	}
	return p.all
}
