package serviceconfig

import (
	"maps"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
)

// A Live is a config in force. It is safe for concurrent use.
type Live struct {
	*Config        // nil: nothing is said
	Source  string // who says so, for people

	Methods sync.Map // for the adapter, which keeps what holds for methods while the config is in force
	Kept    atomic.Int64

	throttles *throttles // nil: there are none
}

// Throttles reports whether there are buckets.
func (l *Live) Throttles() bool { return l.throttles != nil }

// Throttle returns the bucket of the target of cc, nil if there is none.
func (l *Live) Throttle(cc *grpc.ClientConn) *Throttle {
	if l.throttles == nil {
		return nil
	}
	target := ""
	if cc != nil {
		target = cc.Target()
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
	spelt sync.Map // canonical targets by others that were met
	met   atomic.Int64
}

// pages do not change.
type pages struct {
	all      *Live
	byTarget map[string]*Live // by canonical target
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

// set puts c in force for a canonical target; with nothing said if it is nil. It reports whether that changes something.
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

// Of returns what is in force for calls over cc, which may be nil.
func (b *Book) Of(cc *grpc.ClientConn) *Live {
	p := b.pages.Load()
	if p.byTarget == nil || cc == nil {
		return p.all
	}
	return p.of(b.canonical(cc))
}

func (b *Book) canonical(cc *grpc.ClientConn) string {
	target := cc.Target()
	canonical, ok := b.spelt.Load(target)
	if !ok {
		canonical = cc.CanonicalTarget()
		if b.met.Add(1)%maxTargets == 0 {
			b.spelt.Clear() // what is in use comes back
		}
		b.spelt.Store(target, canonical)
	}
	return canonical.(string)
}

// OfTarget is Of for a target by its name.
func (b *Book) OfTarget(target string) *Live {
	if canonical, ok := b.spelt.Load(target); ok {
		target = canonical.(string)
	}
	return b.pages.Load().of(target)
}

func (p *pages) of(canonical string) *Live {
	if l := p.byTarget[canonical]; l != nil {
		return l
	}
	return p.all
}
