package group

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// zones are those that a server is silent about, as a resolver is about one whose own servers are dead. They are no evidence against
// the server, and what does not help them is not taken from the others. The zero value is ready. It is safe for concurrent use.
type zones struct {
	known atomic.Int32 // entries; stored under mu

	mu      sync.Mutex // guards the fields below
	entries [maxZones]zone
	next    int // of entries, which the next zone takes
}

const (
	maxZones       = 32 // that are known at a time; another one takes the place of the one that came first
	namesToSilence = 3  // different names in a row of a zone, without an answer
)

// zoneRest is how long a server is silent about a zone after the last question that it did not answer. Then it is asked again, even if
// others answer.
const zoneRest = 10 * time.Second

// zone is a domain of which questions were not answered.
type zone struct {
	name     string                 // as wire.Query.Zone; empty: there is none
	missed   [namesToSilence]string // different names in a row, in wire format
	misses   int                    // of missed
	since    time.Time              // when misses became namesToSilence
	last     time.Time              // when there was a miss
	answered time.Time              // the last time; zero: not since it is known
}

// find returns the entry of a zone, or nil. The caller holds mu.
func (z *zones) find(name string) *zone {
	for i := range z.entries {
		if e := &z.entries[i]; e.name == name {
			return e
		}
	}
	return nil
}

// miss counts a question, sent then, that has no answer. It returns since when the server has been silent about its zone; zero: it is not.
func (z *zones) miss(q *wire.Query, sent, now time.Time) time.Time {
	name := q.Zone()
	z.mu.Lock()
	defer z.mu.Unlock()
	e := z.find(name)
	if e == nil {
		e = &z.entries[z.next]
		z.next = (z.next + 1) % maxZones
		*e = zone{name: name}
		z.known.Store(min(z.known.Load()+1, maxZones))
	}
	e.last = now
	if e.misses < namesToSilence && !e.answered.After(sent) &&
		!slices.ContainsFunc(e.missed[:e.misses], func(n string) bool { return strings.EqualFold(n, q.Name) }) {
		e.missed[e.misses] = q.Name
		if e.misses++; e.misses == namesToSilence {
			e.since = now
		}
	}
	return e.since
}

// answer is called when a question was answered.
func (z *zones) answer(q *wire.Query) {
	if z.known.Load() == 0 {
		return
	}
	name := q.Zone()
	z.mu.Lock()
	defer z.mu.Unlock()
	if e := z.find(name); e != nil {
		e.misses, e.since, e.answered = 0, time.Time{}, time.Now()
	}
}

// silent reports whether the server is silent about q's zone.
func (z *zones) silent(q *wire.Query) bool {
	if z.known.Load() == 0 {
		return false
	}
	name := q.Zone()
	z.mu.Lock()
	defer z.mu.Unlock()
	e := z.find(name)
	return e != nil && e.misses == namesToSilence && time.Since(e.last) < zoneRest
}
