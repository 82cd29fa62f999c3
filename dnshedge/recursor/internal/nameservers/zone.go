package nameservers

import (
	"math"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

const lameTime = 15 * time.Minute // how long a server is not asked about a zone that it does not serve

// zone is a zone whose servers are asked, or that rests. It is guarded by Fleet.mu, but for its name.
type zoneState struct {
	name           string
	slots          slots
	users          int           // asks under way, and queries in flight
	outageReported time.Duration // when silence of its servers may tell of an outage again, since Fleet.epoch
	backoffs       [kindCount]zoneBackoff
}

// topicKind is one of those of questions that servers drop apart: many do so with what they do not know, and
// with AAAA (RFC 4074 §4.1).
type topicKind int

const (
	kindA topicKind = iota
	kindAAAA
	kindOther
	kindCount
)

func kindOfType(qtype uint16) topicKind {
	switch qtype {
	case dns.TypeA:
		return kindA
	case dns.TypeAAAA:
		return kindAAAA
	}
	return kindOther
}

// rest is what silence of all servers of a zone to questions of a kind has led to.
type zoneBackoff struct {
	avoidUntil time.Duration // when they are asked again, since Fleet.epoch
	name       string        // the last one that they were silent about; "": they have answered since, or always
	since      time.Duration // when that was
}

const (
	zoneBackoffTime = 5 * time.Second // of a zone whose servers are all silent (RFC 9520 §3.2)
	silenceMemory   = time.Minute     // how long it is remembered that servers were silent
)

// silent takes that all servers were silent about a name. If one of them was met, they rest when that is the second name: a
// server that works may drop one.
func (r *zoneBackoff) recordSilence(name string, met bool, now time.Duration) {
	if !met || r.name != "" && r.name != name && now-r.since < silenceMemory {
		r.avoidUntil = now + zoneBackoffTime
	}
	r.name, r.since = name, now
}

// isIdle reports whether nothing need be known of a zone that nobody asks.
func (z *zoneState) isIdle(now time.Duration) bool {
	for i := range z.backoffs {
		if r := &z.backoffs[i]; r.avoidUntil > now || r.name != "" && now-r.since < silenceMemory {
			return false
		}
	}
	return true
}

// zoneTable are those that are asked, or rest. They are guarded by Fleet.mu.
type zoneTable struct {
	max int
	all map[string]*zoneState
}

// use returns the zone of that name, for one more user.
func (t *zoneTable) useZone(name string) *zoneState {
	z := t.all[name]
	if z == nil {
		if len(t.all) >= t.max {
			evictOldest(t.all, func(z *zoneState) (time.Duration, bool) {
				return max(z.backoffs[kindA].since, z.backoffs[kindAAAA].since, z.backoffs[kindOther].since), z.users == 0
			})
		}
		z = &zoneState{name: name}
		t.all[name] = z
	}
	z.users++
	return z
}

// leave ends the use of a zone.
func (t *zoneTable) releaseZone(z *zoneState, now time.Duration) {
	if z.users--; z.users == 0 && z.isIdle(now) && t.all[z.name] == z {
		delete(t.all, z.name)
	}
}

// lameKey is a server that does not serve a zone that it should.
type lameKey struct {
	zone string
	addr netip.AddrPort
}

// lameTable say until when servers are not asked about zones, since Fleet.epoch. They are guarded by Fleet.mu.
type lameTable struct {
	max int
	all map[lameKey]lameRecord
}

// lameRecord is what a server has done wrong in a zone. One name may have a reason of its own, so that only several
// of them, with no answer between, speak against the server: two that it does not serve or leaves unsigned, or four that it fails for.
type lameRecord struct {
	avoidUntil time.Duration           // when it is asked first again; 0: it is asked
	since      time.Duration           // when the last failure was
	answered   bool                    // since then
	failed     [maxFailures - 1]string // names that it has failed for, one after the other
	refused    string                  // the last name that it does not serve or leaves unsigned; others are asked first about that one
	denied     time.Duration           // when that was
}

// maxFailures is how many names a server fails for before it is lame.
const maxFailures = 4

// has reports whether there is a mark, and whether the server is not to be asked about a name of the zone.
func (t *lameTable) lookUpLame(k lameKey, name string, now time.Duration) (marked, lame bool) {
	if len(t.all) == 0 {
		return false, false
	}
	m, ok := t.all[k]
	return ok, ok && m.isLameFor(name, now)
}

func (m *lameRecord) isLameFor(name string, now time.Duration) bool {
	return now < m.avoidUntil || m.refused == name && now-m.denied < lameTime
}

// note notes what a server has said of a name, as Task.Judge does, and reports whether it is lame for that name.
func (t *lameTable) recordResponse(k lameKey, name string, said error, now time.Duration) bool {
	m := t.all[k]
	if now-m.since >= lameTime {
		m = lameRecord{}
	}
	switch said {
	case nil:
		m.avoidUntil, m.answered, m.failed = 0, true, [maxFailures - 1]string{}
		if m.refused == name || m.refused == "" {
			delete(t.all, k)
			return false
		}
	case ErrLame, ErrUnsigned:
		m.recordRefusal(name, now)
	case ErrFailed:
		m.recordFailure(name, now)
	default:
		return m.isLameFor(name, now)
	}
	t.storeRecord(k, m)
	return m.isLameFor(name, now)
}

// recordRefusal takes that a server does not serve a name.
func (m *lameRecord) recordRefusal(name string, now time.Duration) {
	if m.refused != "" && m.refused != name && !m.answered {
		m.avoidUntil = now + lameTime
	}
	m.refused, m.denied, m.since, m.answered = name, now, now, false
}

// recordFailure takes that a server has failed for a name.
func (m *lameRecord) recordFailure(name string, now time.Duration) {
	m.since, m.answered = now, false
	for i, old := range m.failed {
		switch {
		case old == name:
			return
		case old == "":
			m.failed[i] = name
			return
		}
	}
	m.avoidUntil, m.failed = now+lameTime, [maxFailures - 1]string{}
}

func (t *lameTable) storeRecord(k lameKey, m lameRecord) {
	if _, ok := t.all[k]; !ok && len(t.all) >= t.max {
		evictOldest(t.all, func(m lameRecord) (time.Duration, bool) { return m.since, true })
	}
	t.all[k] = m
}

// evictionSamples is how many entries of a table are compared to find one to forget.
const evictionSamples = 8

// evictOldest removes one entry of a table: of a few, the one with the earliest time. Entries for which when
// reports false stay.
func evictOldest[K comparable, V any](table map[K]V, when func(V) (time.Duration, bool)) {
	var first K
	var earliest time.Duration = math.MaxInt64
	n := 0
	for k, v := range table {
		if t, ok := when(v); ok && t < earliest {
			first, earliest = k, t
		}
		if n++; n == evictionSamples {
			break
		}
	}
	if earliest < math.MaxInt64 {
		delete(table, first)
	}
}
