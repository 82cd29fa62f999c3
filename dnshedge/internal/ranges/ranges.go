// Package ranges caches verified NSEC, NSEC3 and wildcard records of zones and synthesizes answers from them (RFC
// 8198). Package validate evaluates the records. The caller decides whether a zone is trusted.
package ranges

import (
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

const zoneEntrySize = 256 // estimated memory of an empty zoneEntry, in bytes

// A Cache holds a validate.AggressiveCache for each zone and limits their memory. Zone names are absolute and in lower
// case. It is safe for concurrent use.
type Cache struct {
	maxBytes int64 // 0: nothing is cached

	mu    sync.Mutex // guards the fields below, and those of zoneEntry
	zones map[string]*zoneEntry
	bytes int64 // estimated memory of all zones
}

// NewCache returns an empty Cache whose estimated memory is at most most bytes. If most is 0, nothing is cached.
func NewCache(most int64) *Cache { return &Cache{maxBytes: most, zones: make(map[string]*zoneEntry)} }

// A zoneEntry is the cache of one zone. The lock of the Cache guards it.
type zoneEntry struct {
	cache *validate.AggressiveCache
	used  time.Time // time of the last use
	size  int64     // estimated memory in bytes
}

// zoneCache returns the cache of a zone and records its use. If there is none, it creates one if wanted is set, and
// otherwise returns nil. It returns nil if the Cache caches nothing.
func (r *Cache) zoneCache(name string, now time.Time, wanted bool) *validate.AggressiveCache {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := r.zones[name]
	switch {
	case z == nil && !wanted || r.maxBytes <= 0:
		return nil
	case z == nil:
		z = &zoneEntry{cache: validate.NewAggressiveCache(name, r.maxBytes/4)}
		r.zones[name] = z
		r.setSize(z, zoneEntrySize+int64(len(name)))
	}
	z.used = now
	return z.cache
}

// setSize sets the estimated memory of a zone to size bytes. The caller holds mu.
func (r *Cache) setSize(z *zoneEntry, size int64) {
	r.bytes += size - z.size
	z.size = size
}

// updateSize computes the memory of a zone after records were added to its cache d. It evicts zones while the Cache
// exceeds its limit.
func (r *Cache) updateSize(name string, d *validate.AggressiveCache) {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := r.zones[name]
	if z == nil || z.cache != d {
		return // it was evicted meanwhile
	}
	r.setSize(z, zoneEntrySize+int64(len(name))+d.Bytes()) // concurrent additions: the last caller counts both
	for r.bytes > r.maxBytes && len(r.zones) > 0 {
		r.evictZone()
	}
}

// evictZone removes the least recently used of eight random zones. The caller holds mu.
func (r *Cache) evictZone() {
	const samples = 8
	n, worst := 0, ""
	for name, z := range r.zones { // map iteration starts at a random entry
		if n == 0 || z.used.Before(r.zones[worst].used) {
			worst = name
		}
		if n++; n == samples {
			break
		}
	}
	r.setSize(r.zones[worst], 0)
	delete(r.zones, worst)
}

// IsReusable reports whether an RRset can serve other questions than that of its response. NSEC and NSEC3 records that
// a zone makes for a single question cannot (RFC 4470, RFC 9824).
func (r *Cache) IsReusable(s *validate.RRset) bool { return r.maxBytes > 0 && !s.IsMinimallyCovering() }

// HasZone reports whether the Cache has an entry for a zone.
func (r *Cache) HasZone(zone string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := r.zones[zone]
	return z != nil
}

// HasSOA reports whether the SOA record of a zone is cached, without which no negative answer can be synthesized.
func (r *Cache) HasSOA(zone string, now time.Time) bool {
	d := r.zoneCache(zone, now, false)
	return d != nil && d.CanDeny(now)
}

// Bytes returns the estimated memory in bytes.
func (r *Cache) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// AddVerified caches the signed RRsets of the sections that are of use for synthesis and verify with the keys k of
// their zone.
func (r *Cache) AddVerified(w *validate.Validation, k *validate.Keys, now time.Time, sections ...[]*validate.RRset) {
	zone := strings.ToLower(k.Zone())
	d := r.zoneCache(zone, now, true)
	if d == nil {
		return
	}
	for _, sets := range sections {
		for _, s := range sets {
			if len(s.Sigs) > 0 && r.IsReusable(s) {
				d.Add(w, s, k, now)
			}
		}
	}
	r.updateSize(zone, d)
}

// AddDenial caches the NSEC and NSEC3 RRsets among sets that verify with the keys k of their zone.
func (r *Cache) AddDenial(w *validate.Validation, k *validate.Keys, now time.Time, sets []*validate.RRset) {
	var denials []*validate.RRset
	for _, s := range sets {
		if s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 {
			denials = append(denials, s)
		}
	}
	r.AddVerified(w, k, now, denials)
}

// Synthesize answers a question from the cached records of a zone. It reports false if the records do not determine the
// answer.
func (r *Cache) Synthesize(w *validate.Validation, zone, name string, qtype uint16, now time.Time) (validate.SynthesizedAnswer, bool) {
	d := r.zoneCache(zone, now, false)
	if d == nil {
		return validate.SynthesizedAnswer{}, false
	}
	return d.Synthesize(w, name, qtype, now)
}
