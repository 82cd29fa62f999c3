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

// cache is what is known of zones and of names that several questions need: those of servers,
// and targets of aliases. It is safe for concurrent use.
//
// A zone is here as its parent said, and a name as a server of its zone answered. Nothing is
// here by hearsay, and nothing is asked that is here, and so what has a lower rank (RFC 2181
// §5.4.1) never replaces what has a higher one.
type cache struct {
	maxBytes int64 // bytes

	mu       sync.RWMutex // guards the fields below
	entries  map[cacheKey]*cacheEntry
	zoneRefs zoneReferences
	bytes    int64 // of both
	zones    int
}

// cacheKey is what an entry is about: a zone, or a question.
type cacheKey struct {
	name   string
	qtype  uint16
	do     bool
	zone   bool // name is a zone's
	failed bool // no server has answered the question
}

// cacheKeyOf returns what an answer to q is about.
func cacheKeyOf(q question) cacheKey { return cacheKey{name: q.name, qtype: q.qtype, do: q.do} }

// cacheEntry is a zone, what is known about a question, or nothing if nobody has answered it. It is not
// changed once it is in the cache, but for used.
type cacheEntry struct {
	zone     *delegation
	reply    *parsedResponse
	added    time.Time    // when it was added
	expires  time.Time    // both by the time of day, which goes on while the machine sleeps: without a monotonic clock
	size     int64        // without that of zones
	lastUsed atomic.Int64 // when it was, in seconds
}

// about returns the zone that an entry refers to, or nil.
func (e *cacheEntry) referencedZone() *delegation {
	if e.reply != nil {
		return e.reply.zone
	}
	return e.zone
}

// cacheEntrySize is what an entry takes besides what it holds: the map, the key, itself.
const cacheEntrySize = 184

// isCurrent reports whether an entry is still to be used. None is from the future: then the clock was wrong when it was added. None
// refers to a zone that is served elsewhere.
func (e *cacheEntry) isCurrent(now time.Time) bool {
	z := e.referencedZone()
	return now.Before(e.expires) && !now.Before(e.added.Add(-maxClockSkew)) && (z == nil || !z.chain.HasMoved())
}

// lookUpEntry returns an entry that is to be used, or nil.
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

// maxClockSkew is how much later than a question an entry may be that it finds: it has asked for the time before.
const maxClockSkew = 10 * time.Second

// zone returns the zone with that name whose servers are known, or nil.
func (c *cache) lookUpZone(name string, now time.Time) *delegation {
	if e := c.lookUpEntry(cacheKey{name: name, zone: true}, now); e != nil {
		return e.zone
	}
	return nil
}

// closestZone returns the zone nearest to a name whose servers are known, or nil.
func (c *cache) closestZone(name string, now time.Time) *delegation {
	for ; name != "."; name = dnsname.Parent(name) {
		if z := c.lookUpZone(name, now); z != nil {
			return z
		}
	}
	return nil
}

// lookUpReply returns what is known about a question, with the TTLs that are left, or nil. It is
// the caller's.
func (c *cache) lookUpReply(q question, now time.Time) *parsedResponse {
	e := c.lookUpEntry(cacheKeyOf(q), now)
	if e == nil {
		return nil
	}
	r := *e.reply
	passed := max(0, r.ttl-e.expires.Sub(now)+time.Second-1)
	r.cached = true
	age := uint32(passed / time.Second)
	r.ttl -= min(r.ttl, passed)
	r.answer, r.authority = copyWithAge(r.answer, age), copyWithAge(r.authority, age)
	return &r
}

// lookUpRecords returns the records that are known to answer q, and whether the name is known not to exist. It is not ok if
// nothing is known, not even that nobody has answered. The records must not be changed, and have the TTLs that they came with.
func (c *cache) lookUpRecords(q question, now time.Time) (rrs []dns.RR, gone, ok bool) {
	k := cacheKeyOf(q)
	if e := c.lookUpEntry(k, now); e != nil && e.reply.aliasTarget == "" {
		return e.reply.answer, e.reply.rcode == dns.RcodeNameError, true
	}
	k.failed = true
	return nil, false, c.lookUpEntry(k, now) != nil
}

// copyWithAge returns copies of records that have been kept for some seconds.
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

func (c *cache) addZone(z *delegation, now time.Time) {
	if now.Before(z.expires) && !z.chain.HasMoved() {
		c.insertEntry(cacheKey{name: z.zone, zone: true}, &cacheEntry{zone: z, expires: z.expires, size: cacheEntrySize}, now)
	}
}

// addReply keeps what r says about q. It copies the records.
func (c *cache) addReply(q question, r *parsedResponse, now time.Time) {
	if r.ttl <= 0 {
		return
	}
	kept := *r
	kept.answer, kept.authority = copyWithAge(r.answer, 0), copyWithAge(r.authority, 0)
	if kept.status == validate.Unchecked { // it may be verified later, by whichever signature
		kept.ttl = min(kept.ttl, limitTTLsBySignatures(now, chooseShortest, kept.answer, kept.authority))
	}
	size := int64(cacheEntrySize+len(q.name)) + memoryOfRecords(kept.answer, kept.authority)
	if kept.status != validate.Unchecked || !q.do {
		kept.zone = nil // it is not needed any more, and may be large
	}
	c.insertEntry(cacheKeyOf(q), &cacheEntry{reply: &kept, expires: now.Add(kept.ttl), size: size}, now)
}

// drop forgets an entry that turned out to be wrong.
func (c *cache) dropEntry(k cacheKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(k)
}

// failureTTL is how long a server's name is not looked up again that no server has answered for
// (RFC 9520 §3.2).
const failureTTL = 5 * time.Second

// addFailure keeps that no server has answered q.
func (c *cache) addFailure(q question, now time.Time) {
	k := cacheKeyOf(q)
	k.failed = true
	c.insertEntry(k, &cacheEntry{expires: now.Add(failureTTL), size: int64(cacheEntrySize + len(q.name))}, now)
}

// addStays keeps for a while that the parent of a zone was asked again where the zone is served, and stays reports that.

func (c *cache) addConfirmedReferral(zone string, now time.Time) {
	c.insertEntry(cacheKey{name: zone, failed: true}, &cacheEntry{expires: now.Add(failureTTL), size: int64(cacheEntrySize + len(zone))}, now)
}

func (c *cache) isReferralConfirmed(zone string, now time.Time) bool {
	return c.lookUpEntry(cacheKey{name: zone, failed: true}, now) != nil
}

// add keeps an entry, unless it would take much of the memory. What was not used for longer makes room for it.
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

// evict removes the one of a few entries, taken at random, that was not used for longest.
func (c *cache) evictEntry(now time.Time) {
	const sample = 8
	var worst cacheKey
	var used int64
	n := 0
	for k, e := range c.entries { // a map is read from a place taken at random
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

// fillStats sets what Stats says of the cache.
func (c *cache) fillStats(s *observe.RecursorStats) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s.Zones, s.RRsets, s.Bytes = c.zones, len(c.entries)-c.zones, c.bytes
}
