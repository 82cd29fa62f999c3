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

// RemoveDuplicates is removeDuplicates, for tests in package recursor_test.
var RemoveDuplicates = removeDuplicates

// ExpiryTimes returns the expiry times of a Resolver's cache entries and of their delegations.
func ExpiryTimes(r *Resolver) (all []time.Time) {
	c, err := r.initOnce()
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

// CountReadRecords reads the response b of a zone's server, in wire format, and returns the number of records that
// readResponse keeps.
func CountReadRecords(b []byte, zone, name string, typ uint16) (believed int) {
	m, err := wire.ParseMsg(b)
	if err != nil {
		return 0
	}
	r := readResponse(m, newEmptyDelegation(zone), question{name: name, qtype: typ, do: true}, true, time.Now())
	if r.referral != nil {
		return len(r.referral.names)
	}
	return len(r.Answer) + len(r.Authority)
}

// WithoutSpecialNames runs f while special-use names are resolved like other names.
func WithoutSpecialNames(f func()) {
	defer func() { findSpecialUseZone = special.FindZone }()
	findSpecialUseZone = func([]byte, bool) *special.Zone { return nil }
	f()
}

// AcceptLegacyAlgorithms makes a Resolver accept signatures of algorithms that no library verifies any more, if
// everything else about them is valid.
func AcceptLegacyAlgorithms(r *Resolver) {
	adjustPolicy = func(p *validate.Policy) { p.FakeLegacy = true }
	defer func() { adjustPolicy = nil }()
	if _, err := r.initOnce(); err != nil {
		panic(err)
	}
}

// PanicInSetup makes the first use of a Resolver panic.
func PanicInSetup(r *Resolver) {
	adjustPolicy = func(*validate.Policy) { panic("in setup") }
	defer func() {
		adjustPolicy = nil
		_ = recover()
	}()
	_, _ = r.initOnce()
}

// DisableSynthesis makes a Resolver query servers in place of synthesizing answers (RFC 8198).
func DisableSynthesis(r *Resolver) {
	disableAggressiveUse = true
	defer func() { disableAggressiveUse = false }()
	if _, err := r.initOnce(); err != nil {
		panic(err)
	}
}

// DSEvidenceOf returns the DS evidence of the cached delegations by zone, as text.
func DSEvidenceOf(r *Resolver) map[string][]string {
	all := make(map[string][]string)
	for k, e := range r.core.cache.entries {
		if k.zone {
			all[k.name] = nil
			for _, rr := range e.zone.chain.DSEvidence {
				all[k.name] = append(all[k.name], dns.TypeToString[rr.Header().Rrtype]+" "+dns.TypeToString[chain.CoveredType(rr)])
			}
			slices.Sort(all[k.name])
		}
	}
	return all
}

// ZoneMemory returns the memory of the delegations that cache entries refer to, in bytes. Each counts once.
func ZoneMemory(r *Resolver) (n int64) {
	c, err := r.initOnce()
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

// CacheBytes returns the counted memory and the memory limit of the cache, in bytes.
func CacheBytes(r *Resolver) (counted, most int64) {
	c := r.core.cache
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.bytes, c.maxBytes
}

// HasDelegation reports whether the cache has a current delegation of a zone at a time.
func HasDelegation(r *Resolver, zone string, at time.Time) bool {
	return r.core.cache.lookUpDelegation(zone, at) != nil
}

// CountCachedAfterEviction adds n zones with a lifetime of an hour to a cache of most bytes at the time before, and
// n others at the time after. It returns how many of the last half of these are cached.
func CountCachedAfterEviction(most int64, n int, before, after time.Time) (known int) {
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

// PackRecords is packRecords, for tests in package recursor_test.
var PackRecords = packRecords
