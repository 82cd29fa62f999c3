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

const rangeSize = 256 // bytes that a zone takes without records

// Ranges are the proofs of zones. Their names are absolute and in lower case. Several goroutines may use them at once.
type Ranges struct {
	most int64 // bytes

	mu    sync.Mutex // guards the fields below, and those of zones
	zones map[string]*zone
	bytes int64
}

// New returns Ranges that take so many bytes at most, by an estimate. Zero: nothing is kept.
func New(most int64) *Ranges { return &Ranges{most: most, zones: make(map[string]*zone)} }

// A zone is what is kept of one.
type zone struct {
	denials *validate.Denials
	used    time.Time
	size    int64
}

// of returns the proofs of a zone, or nil. Those of a zone that is not known are made, if they are wanted to keep some.
func (r *Ranges) of(name string, now time.Time, wanted bool) *validate.Denials {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := r.zones[name]
	switch {
	case z == nil && !wanted || r.most <= 0:
		return nil
	case z == nil:
		z = &zone{denials: validate.NewDenials(name, r.most/4)}
		r.zones[name] = z
		r.resize(z, rangeSize+int64(len(name)))
	}
	z.used = now
	return z.denials
}

// resize takes how many bytes a zone takes. The caller holds the lock.
func (r *Ranges) resize(z *zone, size int64) {
	r.bytes += size - z.size
	z.size = size
}

// added takes that records of a zone are kept.
func (r *Ranges) added(name string, d *validate.Denials) {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := r.zones[name]
	if z == nil || z.denials != d {
		return // it was dropped meanwhile
	}
	r.resize(z, rangeSize+int64(len(name))+d.Bytes()) // of two who add, the last one here knows of both
	for r.bytes > r.most && len(r.zones) > 0 {
		r.forget()
	}
}

// forget removes the one of a few zones that was not used for longest.
func (r *Ranges) forget() {
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
	r.resize(r.zones[worst], 0)
	delete(r.zones, worst)
}

// Wants reports whether an RRset that denies something is to be kept. Some zones make each record for one question, which is of no use for another
// (RFC 4470, RFC 9824).
func (r *Ranges) Wants(s *validate.RRset) bool { return r.most > 0 && !s.IsMinimal() }

// Has reports whether something is kept of a zone.
func (r *Ranges) Has(zone string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := r.zones[zone]
	return z != nil
}

// HasSOA reports whether the zone's SOA record is kept.
func (r *Ranges) HasSOA(zone string, now time.Time) bool {
	d := r.of(zone, now, false)
	return d != nil && d.Opens(now)
}

// Bytes returns how much memory is taken, by an estimate.
func (r *Ranges) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// Learn keeps what w has verified, or verifies, with the keys of a zone.
func (r *Ranges) Learn(w *validate.Work, k *validate.Keys, now time.Time, sections ...[]*validate.RRset) {
	zone := strings.ToLower(k.Zone())
	d := r.of(zone, now, true)
	if d == nil {
		return
	}
	for _, sets := range sections {
		for _, s := range sets {
			if len(s.Sigs) > 0 && r.Wants(s) {
				d.Add(w, s, k, now)
			}
		}
	}
	r.added(zone, d)
}

// LearnDenial keeps those of the RRsets that deny something.
func (r *Ranges) LearnDenial(w *validate.Work, k *validate.Keys, now time.Time, sets []*validate.RRset) {
	var denials []*validate.RRset
	for _, s := range sets {
		if s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 {
			denials = append(denials, s)
		}
	}
	r.Learn(w, k, now, denials)
}

// Answer answers a question with what is kept of a zone. It reports false if that does not answer it.
func (r *Ranges) Answer(w *validate.Work, zone, name string, qtype uint16, now time.Time) (validate.Known, bool) {
	d := r.of(zone, now, false)
	if d == nil {
		return validate.Known{}, false
	}
	return d.Answer(w, name, qtype, now)
}
