// Package aggressive caches verified NSEC, NSEC3 and wildcard records of zones and synthesizes answers from them (RFC
// 8198). Package validate evaluates the records. The caller decides whether a zone is trusted.
package aggressive

import (
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

const zoneEntrySize = 256 // estimated memory of a zoneEntry without cached records, in bytes

// A Cache is an aggressive cache: it answers questions from the cached NSEC, NSEC3 and wildcard records of zones (RFC
// 8198). It has one validate.AggressiveCache for each zone, and limits the memory of all of them together.
//
// Zone names are absolute and in lower case. A Cache is safe for concurrent use.
type Cache struct {
	maxBytes int64 // limit of bytes; if 0, nothing is cached

	mu    sync.Mutex            // guards the following fields, and the fields of each zoneEntry
	zones map[string]*zoneEntry // by zone name
	bytes int64                 // estimated memory of all zones, in bytes
}

// NewCache returns an empty Cache that uses about maxBytes bytes of memory at most. If maxBytes is 0, the Cache stores
// nothing.
func NewCache(maxBytes int64) *Cache {
	return &Cache{maxBytes: maxBytes, zones: make(map[string]*zoneEntry)}
}

// A zoneEntry holds the cached records of one zone. Cache.mu guards its fields.
type zoneEntry struct {
	cache *validate.AggressiveCache // the cached records
	used  time.Time                 // time of the last use; the entry with the oldest time is evicted first
	size  int64                     // estimated memory of the entry, in bytes
}

// zoneCache returns the cache of the named zone, and marks it as used at the time now.
//
// If the zone has no cache, zoneCache creates one if create is true, and otherwise returns nil. It always returns nil
// if the Cache stores nothing, because maxBytes is 0.
func (c *Cache) zoneCache(name string, now time.Time, create bool) *validate.AggressiveCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	z := c.zones[name]
	switch {
	case z == nil && !create || c.maxBytes <= 0:
		return nil
	case z == nil:
		z = &zoneEntry{cache: validate.NewAggressiveCache(name, c.maxBytes/4)}
		c.zones[name] = z
		c.setSize(z, zoneEntrySize+int64(len(name)))
	}
	z.used = now
	return z.cache
}

// setSize sets the estimated memory of the entry z to size bytes, and adjusts the total. The caller must hold Cache.mu.
func (c *Cache) setSize(z *zoneEntry, size int64) {
	c.bytes += size - z.size
	z.size = size
}

// updateSize recomputes the estimated memory of the named zone after records were added to d, the zone's cache. While
// the total exceeds maxBytes, it evicts zones.
//
// It does nothing if d was evicted after the records were added.
func (c *Cache) updateSize(name string, d *validate.AggressiveCache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	z := c.zones[name]
	if z == nil || z.cache != d {
		return // it was evicted meanwhile
	}
	c.setSize(z, zoneEntrySize+int64(len(name))+d.MemoryBytes()) // concurrent additions: the last caller counts both
	for c.bytes > c.maxBytes && len(c.zones) > 0 {
		c.evictZone()
	}
}

// evictZone evicts the least recently used of eight random zones. The caller must hold Cache.mu, and there must be at
// least one zone.
func (c *Cache) evictZone() {
	const samples = 8
	n, worst := 0, ""
	for name, z := range c.zones { // map iteration starts at a random entry
		if n == 0 || z.used.Before(c.zones[worst].used) {
			worst = name
		}
		if n++; n == samples {
			break
		}
	}
	c.setSize(c.zones[worst], 0)
	delete(c.zones, worst)
}

// IsReusable reports whether an RRset from a response can serve to answer other questions than the one that the
// response answers.
//
// It is false for minimally covering NSEC and NSEC3 records, which a server makes for a single question (RFC 4470, RFC
// 9824). It is always false if the Cache stores nothing.
func (c *Cache) IsReusable(s *validate.RRset) bool { return c.maxBytes > 0 && !s.IsMinimallyCovering() }

// HasZone reports whether the Cache has an entry for a zone. The records of the entry may have expired.
func (c *Cache) HasZone(zone string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	z := c.zones[zone]
	return z != nil
}

// HasSOA reports whether the Cache has a current SOA record of a zone. Without an SOA record, no negative answer can be
// synthesized for the zone.
func (c *Cache) HasSOA(zone string, now time.Time) bool {
	d := c.zoneCache(zone, now, false)
	return d != nil && d.HasCurrentSOA(now)
}

// MemoryBytes returns the estimated memory of the Cache, in bytes.
func (c *Cache) MemoryBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// VerifyAndAdd verifies the signed RRsets in sections with k, the keys of one zone. It caches the valid RRsets from
// which answers can be synthesized. It skips RRsets that are not reusable (see IsReusable). w limits the number of
// verifications.
func (c *Cache) VerifyAndAdd(w *validate.Validation, k *validate.Keys, now time.Time, sections ...[]*validate.RRset) {
	zone := strings.ToLower(k.Zone())
	d := c.zoneCache(zone, now, true)
	if d == nil {
		return
	}
	for _, sets := range sections {
		for _, s := range sets {
			if len(s.Sigs) > 0 && c.IsReusable(s) {
				d.Add(w, s, k, now)
			}
		}
	}
	c.updateSize(zone, d)
}

// VerifyAndAddDenial verifies the NSEC and NSEC3 RRsets in sets with k, the keys of one zone, and caches the valid
// ones. It ignores other RRsets. w limits the number of verifications.
func (c *Cache) VerifyAndAddDenial(w *validate.Validation, k *validate.Keys, now time.Time, sets []*validate.RRset) {
	var denials []*validate.RRset
	for _, s := range sets {
		if s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 {
			denials = append(denials, s)
		}
	}
	c.VerifyAndAdd(w, k, now, denials)
}

// Synthesize answers the question for name and qtype from the cached records of a zone (RFC 8198). w limits the cost of
// NSEC3 hashes.
//
// The boolean result is false if the records do not determine the answer.
func (c *Cache) Synthesize(w *validate.Validation, zone, name string, qtype uint16, now time.Time) (validate.SynthesizedAnswer, bool) {
	d := c.zoneCache(zone, now, false)
	if d == nil {
		return validate.SynthesizedAnswer{}, false
	}
	return d.Synthesize(w, name, qtype, now)
}
