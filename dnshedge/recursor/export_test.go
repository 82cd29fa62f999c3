package recursor

import (
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/special"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// For tests in package recursor_test.
var Unique = removeDuplicates

// Expiries returns when what a Resolver keeps expires.
func Expiries(r *Resolver) (all []time.Time) {
	c, err := r.setUpOnce()
	if err != nil {
		panic(err)
	}
	c.cache.mu.RLock()
	defer c.cache.mu.RUnlock()
	for _, e := range c.cache.entries {
		all = append(all, e.expires)
		if e.zone != nil {
			all = append(all, e.zone.expires)
		}
	}
	return all
}

// Read reads a response of a zone's server, as it comes from the wire, and returns how many of
// its records are believed.
func Read(b []byte, zone, name string, typ uint16) (believed int) {
	m, err := wire.ParseMsg(b)
	if err != nil {
		return 0
	}
	r := readResponse(m, newEmptyDelegation(zone), question{name: name, qtype: typ, do: true}, true, time.Now())
	if r.referral != nil {
		return len(r.referral.names)
	}
	return len(r.answer) + len(r.authority)
}

// WithoutSpecialNames runs f while names that mean something on one machine only are names as others.
func WithoutSpecialNames(f func()) {
	defer func() { findSpecialUseZone = special.FindZone }()
	findSpecialUseZone = func([]byte, bool) *special.Zone { return nil }
	f()
}

// FakeLegacy has a Resolver take signatures of algorithms that no library verifies any more for right, once all else fits.
func FakeLegacy(r *Resolver) {
	adjustPolicy = func(p *validate.Policy) { p.FakeLegacy = true }
	defer func() { adjustPolicy = nil }()
	if _, err := r.setUpOnce(); err != nil {
		panic(err)
	}
}

// PanicInSetup has the first use of a Resolver panic.
func PanicInSetup(r *Resolver) {
	adjustPolicy = func(*validate.Policy) { panic("in setup") }
	defer func() {
		adjustPolicy = nil
		_ = recover()
	}()
	_, _ = r.setUpOnce()
}

// WithoutProofs has a Resolver ask servers what it could tell by proofs of other answers.
func WithoutProofs(r *Resolver) {
	disableAggressiveUse = true
	defer func() { disableAggressiveUse = false }()
	if _, err := r.setUpOnce(); err != nil {
		panic(err)
	}
}

// Proofs returns what is kept of what the parents of zones say of their keys, as text.
func Proofs(r *Resolver) map[string][]string {
	all := make(map[string][]string)
	for k, e := range r.core.cache.entries {
		if k.zone {
			all[k.name] = nil
			for _, rr := range e.zone.chain.DSEvidence {
				all[k.name] = append(all[k.name], dns.TypeToString[rr.Header().Rrtype]+" "+dns.TypeToString[coveredType(rr)])
			}
			slices.Sort(all[k.name])
		}
	}
	return all
}

// Held returns how many bytes the zones take that what is kept refers to, each once.
func Held(r *Resolver) (n int64) {
	c, err := r.setUpOnce()
	if err != nil {
		panic(err)
	}
	c.cache.mu.RLock()
	defer c.cache.mu.RUnlock()
	seen := make(map[*chain.Zone]bool)
	for _, e := range c.cache.entries {
		for z := e.referencedZone(); z != nil && !seen[z.chain]; z = z.parentDelegation() {
			seen[z.chain] = true
			n += z.memorySize()
		}
	}
	return n
}

// CacheBytes returns what the cache counts, and may take at most.
func CacheBytes(r *Resolver) (counted, most int64) {
	c := r.core.cache
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.bytes, c.maxBytes
}

// Knows reports whether it is known where a zone is served, if the clock shows that time.
func Knows(r *Resolver, zone string, at time.Time) bool {
	return r.core.cache.lookUpDelegation(zone, at) != nil
}

// Crowded adds so many zones that are known for an hour to a cache of that many bytes, at one time, and then as many others at another one. It returns how many
// of the last half of these are known.
func Crowded(most int64, n int, before, after time.Time) (known int) {
	c := &cache{maxBytes: most}
	name := func(i int) string { return fmt.Sprint("z", i, ".") }
	for i := range 2 * n {
		now := before
		if i >= n {
			now = after
		}
		z := newEmptyDelegation(name(i))
		z.expires = now.Add(time.Hour)
		c.addDelegation(z, now)
	}
	for i := 3 * n / 2; i < 2*n; i++ {
		if c.lookUpDelegation(name(i), after) != nil {
			known++
		}
	}
	return known
}

// PackProof is packRecords for tests.
var PackProof = packRecords
