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

// A cache has delegations, and answers that several questions need: of server names and alias targets. It is safe for
// concurrent use.
//
// A delegation is as its parent sent it, and an answer as a server of its zone sent it. Data of other servers is not
// cached. A cached question is not asked again. So data of lower rank (RFC 2181 §5.4.1) never replaces data of higher
// rank.
type cache struct {
	maxBytes int64 // bytes

	mu       sync.RWMutex // guards the fields below
	entries  map[cacheKey]*cacheEntry
	zoneRefs zoneReferences
	bytes    int64 // of both
	zones    int
}

// A cacheKey identifies a delegation or a question.
type cacheKey struct {
	name   string
	qtype  uint16
	do     bool
	zone   bool // name is a zone
	failed bool // no server has answered the question
}

// cacheKeyOf returns the key of the answer to q.
func cacheKeyOf(q question) cacheKey { return cacheKey{name: q.name, qtype: q.qtype, do: q.do} }

// A cacheEntry is a delegation, an answer, or neither for a failure. Only lastUsed changes once it is cached.
type cacheEntry struct {
	zone     *delegation
	answer   *parsedResponse
	added    time.Time    // by wall clock, without monotonic time
	expires  time.Time    // by wall clock, which continues while the machine sleeps
	size     int64        // without that of zones
	lastUsed atomic.Int64 // in seconds
}

// referencedZone returns the zone that the entry refers to, or nil.
func (e *cacheEntry) referencedZone() *delegation {
	if e.answer != nil {
		return e.answer.zone
	}
	return e.zone
}

// cacheEntrySize is the size of an entry without its content.
const cacheEntrySize = 184

// isCurrent reports whether the entry may be used. An entry from the future was added while the clock was wrong. An entry
// of a moved zone is outdated.
func (e *cacheEntry) isCurrent(now time.Time) bool {
	z := e.referencedZone()
	return now.Before(e.expires) && !now.Before(e.added.Add(-maxClockSkew)) && (z == nil || !z.chain.HasMoved())
}

// lookUpEntry returns a current entry, or nil.
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

// maxClockSkew is how much later than a question's start an entry for it may have been added.
const maxClockSkew = 10 * time.Second

// lookUpDelegation returns the cached delegation of a zone, or nil.
func (c *cache) lookUpDelegation(name string, now time.Time) *delegation {
	if e := c.lookUpEntry(cacheKey{name: name, zone: true}, now); e != nil {
		return e.zone
	}
	return nil
}

// lookUpClosestDelegation returns the cached delegation closest to a name, or nil.
func (c *cache) lookUpClosestDelegation(name string, now time.Time) *delegation {
	for ; name != "."; name = dnsname.Parent(name) {
		if z := c.lookUpDelegation(name, now); z != nil {
			return z
		}
	}
	return nil
}

// lookUpAnswer returns a copy of the cached answer with the remaining TTLs, or nil.
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

// lookUpRecords returns the cached records that answer q, and whether the name does not exist. ok is false if neither an
// answer nor a failure is cached. The records have their original TTLs and must not be changed.
func (c *cache) lookUpRecords(q question, now time.Time) (rrs []dns.RR, gone, ok bool) {
	k := cacheKeyOf(q)
	if e := c.lookUpEntry(k, now); e != nil && e.answer.aliasTarget == "" {
		return e.answer.answer, e.answer.rcode == dns.RcodeNameError, true
	}
	k.failed = true
	return nil, false, c.lookUpEntry(k, now) != nil
}

// copyWithAge returns copies of records with TTLs lowered by age seconds.
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

func (c *cache) addDelegation(z *delegation, now time.Time) {
	if now.Before(z.expires) && !z.chain.HasMoved() {
		c.insertEntry(cacheKey{name: z.zone, zone: true}, &cacheEntry{zone: z, expires: z.expires, size: cacheEntrySize}, now)
	}
}

// addAnswer caches a copy of the answer to q.
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

// dropEntry removes an entry that turned out to be wrong.
func (c *cache) dropEntry(k cacheKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(k)
}

// failureTTL is how long a failed server name lookup is not repeated (RFC 9520 §3.2).
const failureTTL = 5 * time.Second

// addFailure caches that no server has answered q.
func (c *cache) addFailure(q question, now time.Time) {
	k := cacheKeyOf(q)
	k.failed = true
	c.insertEntry(k, &cacheEntry{expires: now.Add(failureTTL), size: int64(cacheEntrySize + len(q.name))}, now)
}

// addConfirmedReferral caches for a while that the parent has confirmed the servers of a zone.
func (c *cache) addConfirmedReferral(zone string, now time.Time) {
	c.insertEntry(cacheKey{name: zone, failed: true}, &cacheEntry{expires: now.Add(failureTTL), size: int64(cacheEntrySize + len(zone))}, now)
}

// isReferralConfirmed reports whether addConfirmedReferral has been called a short time ago.
func (c *cache) isReferralConfirmed(zone string, now time.Time) bool {
	return c.lookUpEntry(cacheKey{name: zone, failed: true}, now) != nil
}

// insertEntry caches an entry, unless it is too large. It evicts entries that were not used for longer.
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

// evictEntry removes, of a few random entries, the least recently used.
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

// fillStats sets the statistics of the cache.
func (c *cache) fillStats(s *observe.RecursorStats) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s.Zones, s.RRsets, s.Bytes = c.zones, len(c.entries)-c.zones, c.bytes
}
