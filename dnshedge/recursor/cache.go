package recursor

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/observe"
)

// A cache holds delegations, and answers that further questions may need: addresses of servers, and targets of aliases.
// It is safe for concurrent use.
//
// Delegations come only from the parent zone, and answers only from a server of their zone. A question is not sent
// again while its answer is cached. Therefore data of lower rank (RFC 2181 §5.4.1) never replaces data of higher rank.
type cache struct {
	maxBytes int64 // limit of bytes

	mu       sync.RWMutex // guards the following fields
	entries  map[cacheKey]*cacheEntry
	zoneRefs zoneReferences
	bytes    int64 // estimated memory of entries and zoneRefs, in bytes
	zones    int   // number of delegations in entries
}

// A cacheKey identifies a cached delegation by the name of its zone. It identifies a cached answer or failure by the
// name, type and DO bit of its question.
type cacheKey struct {
	name      string
	qtype     uint16
	do        bool // the question has the DO bit
	zone      bool // the entry is the delegation of the zone name
	isFailure bool // the entry is a failure: no server has answered the question
	isGlue    bool // the entry holds the addresses of the server name that the parent zone has, see lookUpGlueAtParent
}

// answerCacheKey returns the key under which the answer to q is cached.
func answerCacheKey(q question) cacheKey { return cacheKey{name: q.name, qtype: q.qtype, do: q.do} }

// A cacheEntry is a cached delegation, answer, or failure. Either zone or answer is set, or neither in a failure. Once
// the entry is in the cache, only lastUsed may change.
type cacheEntry struct {
	zone     *delegation
	answer   *parsedResponse
	added    time.Time    // wall clock time
	expires  time.Time    // wall clock time, because the monotonic clock may stop while the machine sleeps
	size     int64        // estimated memory in bytes, without the delegation
	lastUsed atomic.Int64 // Unix time in seconds; the entry with the lowest value is evicted first
}

// referencedZone returns the delegation that the entry refers to, and therefore keeps in memory. It returns nil if
// there is none.
func (e *cacheEntry) referencedZone() *delegation {
	if e.answer != nil {
		return zoneDelegation(e.answer.Zone)
	}
	return e.zone
}

// cacheEntrySize is the estimated memory of an entry without its content, in bytes.
const cacheEntrySize = 184

// isCurrent reports whether the entry may be used at the time now. It is false if the entry has expired, or if its zone
// has been delegated to other servers since the entry's referral (see chain.Zone.IsRedelegated).
//
// It is also false if the entry was added in the future, because the clock was set back.
func (e *cacheEntry) isCurrent(now time.Time) bool {
	z := e.referencedZone()
	return now.Before(e.expires) && !now.Before(e.added.Add(-maxClockSkew)) && (z == nil || !z.chain.IsRedelegated())
}

// lookUpEntry returns the entry with the key k, and records its use. It returns nil if there is no entry, or if it may
// not be used at the time now.
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

// maxClockSkew is the maximum time by which an entry may have been added in the future. A question reads the clock
// before it looks up an entry, and another question may add the entry in between.
const maxClockSkew = 10 * time.Second

// lookUpDelegation returns the cached delegation of the zone with this name. It returns nil if there is none, or if it
// has expired at the time now.
func (c *cache) lookUpDelegation(name string, now time.Time) *delegation {
	if e := c.lookUpEntry(cacheKey{name: name, zone: true}, now); e != nil {
		return e.zone
	}
	return nil
}

// lookUpClosestDelegation returns the cached delegation of the name, or of its closest ancestor. It returns nil if
// there is none. The root is not considered.
func (c *cache) lookUpClosestDelegation(name string, now time.Time) *delegation {
	for ; name != "."; name = dnsname.Parent(name) {
		if z := c.lookUpDelegation(name, now); z != nil {
			return z
		}
	}
	return nil
}

// lookUpAnswer returns a copy of the cached answer to q, with the remaining TTLs. It returns nil if no answer is
// cached.
func (c *cache) lookUpAnswer(q question, now time.Time) *parsedResponse {
	e := c.lookUpEntry(answerCacheKey(q), now)
	if e == nil {
		return nil
	}
	r := *e.answer
	passed := max(0, r.ttl-e.expires.Sub(now)+time.Second-1)
	r.cached = true
	age := uint32(passed / time.Second)
	r.ttl -= min(r.ttl, passed)
	r.Answer, r.Authority = copyWithAge(r.Answer, age), copyWithAge(r.Authority, age)
	return &r
}

// lookUpRecords returns the cached records that answer q, with their original TTLs. The caller must not change them.
// nxdomain is true if the name does not exist.
//
// ok is false if the cache has neither an answer nor a failure for q. A failure has no records.
func (c *cache) lookUpRecords(q question, now time.Time) (rrs []dns.RR, nxdomain, ok bool) {
	k := answerCacheKey(q)
	if e := c.lookUpEntry(k, now); e != nil && e.answer.aliasTarget == "" {
		return e.answer.Answer, e.answer.Rcode == dns.RcodeNameError, true
	}
	k.isFailure = true
	return nil, false, c.lookUpEntry(k, now) != nil
}

// copyWithAge returns copies of records whose TTLs are lowered by age, in seconds. It returns nil if there are no
// records.
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

// addDelegation caches the delegation z. It does not cache z if z has expired at the time now, or if the zone has been
// delegated to other servers since the referral of z (see chain.Zone.IsRedelegated).
//
// It returns z, even if z is not cached: the lookup that has received the referral continues with it.
func (c *cache) addDelegation(z *delegation, now time.Time) *delegation {
	if now.Before(z.expires) && !z.chain.IsRedelegated() {
		c.insertEntry(cacheKey{name: z.zone, zone: true}, &cacheEntry{zone: z, expires: z.expires, size: cacheEntrySize}, now)
	}
	return z
}

// addAnswer caches a copy of r as the answer to q. If r is not validated yet, the entry expires as soon as any of its
// signatures does.
func (c *cache) addAnswer(q question, r *parsedResponse, now time.Time) {
	if r.ttl <= 0 {
		return
	}
	kept := *r
	kept.Answer, kept.Authority = copyWithAge(r.Answer, 0), copyWithAge(r.Authority, 0)
	if kept.Status == validate.Unchecked { // any of its signatures may be verified later
		kept.ttl = min(kept.ttl, limitTTLsBySignatures(now, minLifetime, kept.Answer, kept.Authority))
	}
	size := int64(cacheEntrySize+len(q.name)) + estimateRecordMemory(kept.Answer, kept.Authority)
	if kept.Status != validate.Unchecked || !q.do {
		kept.Zone = nil // not needed after validation, and possibly large
	}
	kept.cnameHint = nil
	c.insertEntry(answerCacheKey(q), &cacheEntry{answer: &kept, expires: now.Add(kept.ttl), size: size}, now)
}

// removeEntry removes the entry with the key k, if there is one. It is called when the cached data has turned out to be
// wrong.
func (c *cache) removeEntry(k cacheKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeEntryLocked(k)
}

// failureTTL is the time for which a failure is cached (RFC 9520 §3.2).
const failureTTL = 5 * time.Second

// addFailure caches the fact that no server has answered q (RFC 9520). The entry expires failureTTL after now.
func (c *cache) addFailure(q question, now time.Time) {
	k := answerCacheKey(q)
	k.isFailure = true
	c.insertEntry(k, &cacheEntry{expires: now.Add(failureTTL), size: int64(cacheEntrySize + len(q.name))}, now)
}

// addGlue caches the address records in rrs, which the servers of the parent zone have for the server name in q. Without
// records, it caches for failureTTL that they have none.
func (c *cache) addGlue(q question, rrs []dns.RR, now time.Time) {
	ttl := failureTTL
	if len(rrs) > 0 {
		ttl = maxTTL
	}
	for _, rr := range rrs {
		ttl = min(ttl, time.Duration(effectiveTTL(rr))*time.Second)
	}
	k := answerCacheKey(q)
	k.isGlue = true
	e := &cacheEntry{answer: new(parsedResponse), expires: now.Add(ttl), size: int64(cacheEntrySize+len(q.name)) + estimateRecordMemory(rrs)}
	e.answer.Answer = copyWithAge(rrs, 0)
	c.insertEntry(k, e, now)
}

// lookUpGlue returns the records that addGlue has cached for q. They must not be changed. ok is false if there is no
// entry.
func (c *cache) lookUpGlue(q question, now time.Time) (rrs []dns.RR, ok bool) {
	k := answerCacheKey(q)
	k.isGlue = true
	e := c.lookUpEntry(k, now)
	if e == nil {
		return nil, false
	}
	return e.answer.Answer, true
}

// addConfirmedReferral records that the parent zone still delegates the zone to the servers that have failed. Until
// failureTTL has passed, isReferralConfirmed returns true, so that the parent zone is not queried for newer servers
// again.
func (c *cache) addConfirmedReferral(zone string, now time.Time) {
	c.insertEntry(cacheKey{name: zone, isFailure: true}, &cacheEntry{expires: now.Add(failureTTL), size: int64(cacheEntrySize + len(zone))}, now)
}

// isReferralConfirmed reports whether addConfirmedReferral was called for the zone within failureTTL. A query to the
// parent zone for newer servers is then useless.
func (c *cache) isReferralConfirmed(zone string, now time.Time) bool {
	return c.lookUpEntry(cacheKey{name: zone, isFailure: true}, now) != nil
}

// insertEntry caches the entry e under the key k, unless it is too large. While the cache exceeds its memory limit, it
// evicts other entries. now is the present time.
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
	c.removeEntryLocked(k)
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

// evictEntry removes the least recently used of eight random entries. Entries that are not current count as never used.
// The caller must hold mu.
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
	c.removeEntryLocked(worst)
}

// removeEntryLocked removes the entry with the key k from the cache, if there is one. The caller must hold mu.
func (c *cache) removeEntryLocked(k cacheKey) {
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

// fillStats sets the statistics of the cache in s: Zones, RRsets and Bytes.
func (c *cache) fillStats(s *observe.RecursorStats) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s.Zones, s.RRsets, s.Bytes = c.zones, len(c.entries)-c.zones, c.bytes
}

// A zoneReferences measures the memory of all delegations that cache entries keep alive, directly or through a child
// zone. It counts the references to each delegation, so that the memory of a delegation counts only once. cache.mu
// guards it.
type zoneReferences map[*chain.Zone]*zoneReference

// A zoneReference holds the memory of one delegation, and the number of references that keep it alive.
type zoneReference struct {
	size int64 // estimated memory, in bytes
	refs int   // number of references from cache entries and child zones
}

// zoneReferenceSize is the estimated memory of a zoneReference and its map entry, in bytes.
const zoneReferenceSize = 64

// addReference records that one more cache entry refers to the delegation z, which also keeps its parent zones alive.
// It returns the memory that this adds, in bytes. It is 0 if z is nil or already has references.
func (r zoneReferences) addReference(z *delegation) (added int64) {
	for z != nil {
		if old := r[z.chain]; old != nil {
			old.refs++
			return added
		}
		kept := &zoneReference{size: z.memorySize() + zoneReferenceSize, refs: 1}
		r[z.chain] = kept
		added += kept.size
		z = z.parentDelegation()
	}
	return added
}

// removeReference records that one cache entry fewer refers to the delegation z. It returns the memory of z and its
// parent zones that this frees, in bytes. It is 0 if z is nil or still has references.
func (r zoneReferences) removeReference(z *delegation) (freed int64) {
	for z != nil {
		kept := r[z.chain]
		if kept.refs--; kept.refs > 0 {
			return freed
		}
		delete(r, z.chain)
		freed += kept.size
		z = z.parentDelegation()
	}
	return freed
}
