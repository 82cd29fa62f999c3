// Package ranges keeps what zones have proven of their names, zone by zone, to answer other questions with it (RFC 8198). What records prove is
// package validate's matter; whether a zone may be believed is the user's.
package ranges

import (
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

const zoneEntrySize = 256 // bytes that a zone takes without records

// Cache are the proofs of zones. Their names are absolute and in lower case. Several goroutines may use them at once.
type Cache struct {
	maxBytes int64 // bytes

	mu    sync.Mutex // guards the fields below, and those of zones
	zones map[string]*zoneEntry
	bytes int64
}

// NewCache returns Ranges that take so many bytes at most, by an estimate. Zero: nothing is kept.
func NewCache(most int64) *Cache { return &Cache{maxBytes: most, zones: make(map[string]*zoneEntry)} }

// A zoneEntry is what is kept of one.
type zoneEntry struct {
	cache *validate.AggressiveCache
	used  time.Time
	size  int64
}

// of returns the proofs of a zone, or nil. Those of a zone that is not known are made, if they are wanted to keep some.
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

// setSize takes how many bytes a zone takes. The caller holds the lock.
func (r *Cache) setSize(z *zoneEntry, size int64) {
	r.bytes += size - z.size
	z.size = size
}

// updateSize takes that records of a zone are kept.
func (r *Cache) updateSize(name string, d *validate.AggressiveCache) {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := r.zones[name]
	if z == nil || z.cache != d {
		return // it was dropped meanwhile
	}
	r.setSize(z, zoneEntrySize+int64(len(name))+d.Bytes()) // of two who add, the last one here knows of both
	for r.bytes > r.maxBytes && len(r.zones) > 0 {
		r.evictZone()
	}
}

// forget removes the one of a few zones that was not used for longest.
func (r *Cache) evictZone() {
	const samples = 8
	n, worst := 0, ""
	for name, z := range r.zones { // a map is read from a place taken at random
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

// IsReusable reports whether an RRset that denies something is to be kept. Some zones make each record for one question, which is of no use for another
// (RFC 4470, RFC 9824).
func (r *Cache) IsReusable(s *validate.RRset) bool { return r.maxBytes > 0 && !s.IsMinimallyCovering() }

// HasZone reports whether something is kept of a zone.
func (r *Cache) HasZone(zone string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := r.zones[zone]
	return z != nil
}

// HasSOA reports whether the zone's SOA record is kept.
func (r *Cache) HasSOA(zone string, now time.Time) bool {
	d := r.zoneCache(zone, now, false)
	return d != nil && d.CanDeny(now)
}

// Bytes returns how much memory is taken, by an estimate.
func (r *Cache) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// AddVerified keeps what w has verified, or verifies, with the keys of a zone.
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

// AddDenial keeps those of the RRsets that deny something.
func (r *Cache) AddDenial(w *validate.Validation, k *validate.Keys, now time.Time, sets []*validate.RRset) {
	var denials []*validate.RRset
	for _, s := range sets {
		if s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 {
			denials = append(denials, s)
		}
	}
	r.AddVerified(w, k, now, denials)
}

// Synthesize answers a question with what is kept of a zone. It reports false if that does not answer it.
func (r *Cache) Synthesize(w *validate.Validation, zone, name string, qtype uint16, now time.Time) (validate.SynthesizedAnswer, bool) {
	d := r.zoneCache(zone, now, false)
	if d == nil {
		return validate.SynthesizedAnswer{}, false
	}
	return d.Synthesize(w, name, qtype, now)
}
