package recursor

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/observe"
)

// A cache has delegations, and answers that other questions may need: addresses of servers, and alias targets. It is
// safe for concurrent use.
//
// It has only delegations as received from the parent zone, and answers as received from a server of their zone. A
// question is not queried again while its answer is cached. So data of lower rank (RFC 2181 §5.4.1) never replaces
// data of higher rank.
type cache struct {
	maxBytes int64

	mu       sync.RWMutex // guards the fields below
	entries  map[cacheKey]*cacheEntry
	zoneRefs zoneReferences
	bytes    int64 // estimated memory of entries and zoneRefs
	zones    int   // delegations in entries
}

// A cacheKey identifies a delegation (zone is set), a failure (failed is set), or an answer.
type cacheKey struct {
	name   string
	qtype  uint16
	do     bool
	zone   bool // the delegation of zone name
	failed bool // a failure: no server has answered the question
}

// cacheKeyOf returns the key of the answer to q.
func cacheKeyOf(q question) cacheKey { return cacheKey{name: q.name, qtype: q.qtype, do: q.do} }

// A cacheEntry is a delegation, an answer, or a failure, which has neither. Once it is cached, only lastUsed
// changes.
type cacheEntry struct {
	zone     *delegation
	answer   *parsedResponse
	added    time.Time    // wall clock time
	expires  time.Time    // wall clock time, because the monotonic clock may stop while the machine sleeps
	size     int64        // estimated memory in bytes, without the delegation
	lastUsed atomic.Int64 // Unix time in seconds
}

// referencedZone returns the delegation that the entry keeps in memory, or nil.
func (e *cacheEntry) referencedZone() *delegation {
	if e.answer != nil {
		return e.answer.zone
	}
	return e.zone
}

// cacheEntrySize is the estimated memory of an entry without its content, in bytes.
const cacheEntrySize = 184

// isCurrent reports whether the entry may be used. It rejects an entry from the future, which was added while the
// clock was wrong. It rejects an entry of a zone whose delegation has changed since, see chain.Zone.HasMoved.
func (e *cacheEntry) isCurrent(now time.Time) bool {
	z := e.referencedZone()
	return now.Before(e.expires) && !now.Before(e.added.Add(-maxClockSkew)) && (z == nil || !z.chain.HasMoved())
}

// lookUpEntry returns the current entry with a key, or nil, and updates lastUsed.
func (c *cache) lookUpEntry(k cacheKey, now time.Time) *cacheEntry {
	c.mu.RLock()
	e := c.entries[k]
	c.mu.RUnlock()
	if e == nil || !e.isCurrent(now) {
		return nil
	}
	if s := now.Unix(); e.lastUsed.Load() != s {
		e.lastUsed.Store(s)
	}
	return e
}

// maxClockSkew is how far in the future an entry may have been added. A question reads the clock before it looks up
// an entry, and another question may add the entry in between.
const maxClockSkew = 10 * time.Second

// lookUpDelegation returns the cached delegation of a zone, or nil.
func (c *cache) lookUpDelegation(name string, now time.Time) *delegation {
	if e := c.lookUpEntry(cacheKey{name: name, zone: true}, now); e != nil {
		return e.zone
	}
	return nil
}

// lookUpClosestDelegation returns the cached delegation of the closest zone that contains a name, or nil.
func (c *cache) lookUpClosestDelegation(name string, now time.Time) *delegation {
	for ; name != "."; name = dnsname.Parent(name) {
		if z := c.lookUpDelegation(name, now); z != nil {
			return z
		}
	}
	return nil
}

// lookUpAnswer returns a copy of the cached answer to q with the remaining TTLs, or nil.
func (c *cache) lookUpAnswer(q question, now time.Time) *parsedResponse {
	e := c.lookUpEntry(cacheKeyOf(q), now)
	if e == nil {
		return nil
	}
	r := *e.answer
	passed := max(0, r.ttl-e.expires.Sub(now)+time.Second-1)
	r.cached = true
	age := uint32(passed / time.Second)
	r.ttl -= min(r.ttl, passed)
	r.answer, r.authority = copyWithAge(r.answer, age), copyWithAge(r.authority, age)
	return &r
}

// lookUpRecords returns the cached records that answer q. They have their original TTLs and must not be changed.
//
// nxdomain means that the name does not exist. ok is false if neither an answer nor a failure is cached. A failure
// has no records.
func (c *cache) lookUpRecords(q question, now time.Time) (rrs []dns.RR, nxdomain, ok bool) {
	k := cacheKeyOf(q)
	if e := c.lookUpEntry(k, now); e != nil && e.answer.aliasTarget == "" {
		return e.answer.answer, e.answer.rcode == dns.RcodeNameError, true
	}
	k.failed = true
	return nil, false, c.lookUpEntry(k, now) != nil
}

// copyWithAge returns copies of records with TTLs lowered by age, in seconds.
func copyWithAge(rrs []dns.RR, age uint32) []dns.RR {
	if len(rrs) == 0 {
		return nil
	}
	out := make([]dns.RR, len(rrs))
	for i, rr := range rrs {
		out[i] = dns.Copy(rr)
		h := out[i].Header()
		h.Ttl -= min(h.Ttl, age)
	}
	return out
}

// addDelegation caches a delegation, unless it has expired or changed.
func (c *cache) addDelegation(z *delegation, now time.Time) {
	if now.Before(z.expires) && !z.chain.HasMoved() {
		c.insertEntry(cacheKey{name: z.zone, zone: true}, &cacheEntry{zone: z, expires: z.expires, size: cacheEntrySize}, now)
	}
}

// addAnswer caches a copy of r, the answer to q. An answer that is not validated yet expires with the first of its
// signatures.
func (c *cache) addAnswer(q question, r *parsedResponse, now time.Time) {
	if r.ttl <= 0 {
		return
	}
	kept := *r
	kept.answer, kept.authority = copyWithAge(r.answer, 0), copyWithAge(r.authority, 0)
	if kept.status == validate.Unchecked { // any of its signatures may be verified later
		kept.ttl = min(kept.ttl, limitTTLsBySignatures(now, chooseShortest, kept.answer, kept.authority))
	}
	size := int64(cacheEntrySize+len(q.name)) + estimateRecordMemory(kept.answer, kept.authority)
	if kept.status != validate.Unchecked || !q.do {
		kept.zone = nil // not needed after validation, and possibly large
	}
	c.insertEntry(cacheKeyOf(q), &cacheEntry{answer: &kept, expires: now.Add(kept.ttl), size: size}, now)
}

// dropEntry removes the entry with a key, because it has turned out to be wrong.
func (c *cache) dropEntry(k cacheKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(k)
}

// failureTTL is how long a failure is cached (RFC 9520 §3.2).
const failureTTL = 5 * time.Second

// addFailure caches for failureTTL that no server has answered q.
func (c *cache) addFailure(q question, now time.Time) {
	k := cacheKeyOf(q)
	k.failed = true
	c.insertEntry(k, &cacheEntry{expires: now.Add(failureTTL), size: int64(cacheEntrySize + len(q.name))}, now)
}

// addConfirmedReferral caches for failureTTL that the parent has confirmed the delegation of a zone.
func (c *cache) addConfirmedReferral(zone string, now time.Time) {
	c.insertEntry(cacheKey{name: zone, failed: true}, &cacheEntry{expires: now.Add(failureTTL), size: int64(cacheEntrySize + len(zone))}, now)
}

// isReferralConfirmed reports whether the parent has confirmed the delegation of a zone within failureTTL.
func (c *cache) isReferralConfirmed(zone string, now time.Time) bool {
	return c.lookUpEntry(cacheKey{name: zone, failed: true}, now) != nil
}

// insertEntry caches an entry, unless it is too large. It evicts entries until the new one fits.
func (c *cache) insertEntry(k cacheKey, e *cacheEntry, now time.Time) {
	e.lastUsed.Store(now.Unix())
	e.added, e.expires = now.Round(0), e.expires.Round(0)
	if e.size > c.maxBytes/16 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries, c.zoneRefs = make(map[cacheKey]*cacheEntry), make(zoneReferences)
	}
	c.removeLocked(k)
	more := c.zoneRefs.addReference(e.referencedZone())
	if c.bytes += more; more > c.maxBytes/4 {
		c.bytes -= c.zoneRefs.removeReference(e.referencedZone())
		return
	}
	for c.bytes+e.size > c.maxBytes && len(c.entries) > 0 {
		c.evictEntry(now)
	}
	c.entries[k] = e
	c.bytes += e.size
	if k.zone {
		c.zones++
	}
}

// evictEntry compares a few random entries and removes the least recently used.
func (c *cache) evictEntry(now time.Time) {
	const sample = 8
	var worst cacheKey
	var used int64
	n := 0
	for k, e := range c.entries { // map iteration starts at a random entry
		u := e.lastUsed.Load()
		if !e.isCurrent(now) {
			u = 0
		}
		if n == 0 || u < used {
			worst, used = k, u
		}
		if n++; n == sample {
			break
		}
	}
	c.removeLocked(worst)
}

// removeLocked removes the entry with a key, if there is one. The caller holds mu.
func (c *cache) removeLocked(k cacheKey) {
	e := c.entries[k]
	if e == nil {
		return
	}
	delete(c.entries, k)
	c.bytes -= e.size + c.zoneRefs.removeReference(e.referencedZone())
	if k.zone {
		c.zones--
	}
}

// fillStats sets the statistics of the cache in s.
func (c *cache) fillStats(s *observe.RecursorStats) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s.Zones, s.RRsets, s.Bytes = c.zones, len(c.entries)-c.zones, c.bytes
}
