// Package ranges caches the verified denials and wildcards of zones and synthesizes answers from them (RFC 8198). Package
// validate evaluates the records; the caller decides whether a zone is trusted.
package ranges

import (
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

const zoneEntrySize = 256 // zoneEntrySize is the size of a zone without records, in bytes.

// A Cache has a validate.AggressiveCache for each zone. Zone names are absolute and in lower case. It is safe for
// concurrent use.
type Cache struct {
	maxBytes int64

	mu    sync.Mutex // guards the fields below, and those of zoneEntry
	zones map[string]*zoneEntry
	bytes int64
}

// NewCache returns a Cache with a limit of its estimated memory. Zero: nothing is cached.
func NewCache(most int64) *Cache { return &Cache{maxBytes: most, zones: make(map[string]*zoneEntry)} }

type zoneEntry struct {
	cache *validate.AggressiveCache
	used  time.Time
	size  int64
}

// zoneCache returns the cache of a zone, or nil. If wanted is set, it creates a missing one.
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

// setSize sets the size of a zone. The caller holds mu.
func (r *Cache) setSize(z *zoneEntry, size int64) {
	r.bytes += size - z.size
	z.size = size
}

// updateSize accounts for records added to a zone and evicts zones if there are too many bytes.
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

// evictZone removes, of a few zones, the least recently used.
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

// IsReusable reports whether an RRset is of use for other questions. Some zones make each NSEC or NSEC3 record for one
// question (RFC 4470, RFC 9824).
func (r *Cache) IsReusable(s *validate.RRset) bool { return r.maxBytes > 0 && !s.IsMinimallyCovering() }

// HasZone reports whether records of a zone are cached.
func (r *Cache) HasZone(zone string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := r.zones[zone]
	return z != nil
}

// HasSOA reports whether the SOA record of the zone is cached.
func (r *Cache) HasSOA(zone string, now time.Time) bool {
	d := r.zoneCache(zone, now, false)
	return d != nil && d.CanDeny(now)
}

// Bytes returns the estimated memory.
func (r *Cache) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// AddVerified caches the RRsets that verify with the keys of a zone.
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

// AddDenial caches the NSEC and NSEC3 RRsets among sets.
func (r *Cache) AddDenial(w *validate.Validation, k *validate.Keys, now time.Time, sets []*validate.RRset) {
	var denials []*validate.RRset
	for _, s := range sets {
		if s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 {
			denials = append(denials, s)
		}
	}
	r.AddVerified(w, k, now, denials)
}

// Synthesize answers a question from the cached records of a zone. It reports false if they do not answer it.
func (r *Cache) Synthesize(w *validate.Validation, zone, name string, qtype uint16, now time.Time) (validate.SynthesizedAnswer, bool) {
	d := r.zoneCache(zone, now, false)
	if d == nil {
		return validate.SynthesizedAnswer{}, false
	}
	return d.Synthesize(w, name, qtype, now)
}
