package nameservers

import (
	"math"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

const lameTime = 15 * time.Minute // lameTime is how long other servers are preferred to a lame server.

// zoneState is the state of a zone in use or in backoff. Pool.mu guards it, except its name.
type zoneState struct {
	name           string
	slots          slots
	users          int           // tasks and queries in flight
	outageReported time.Duration // when the next miss may count for an outage, since Pool.epoch
	backoffs       [groupCount]zoneBackoff
}

// qtypeGroup is a kind of question. Many servers drop queries of one kind: of unknown types, or AAAA (RFC 4074 §4.1).
type qtypeGroup int

const (
	groupA qtypeGroup = iota
	groupAAAA
	groupOther
	groupCount
)

func groupQtype(qtype uint16) qtypeGroup {
	switch qtype {
	case dns.TypeA:
		return groupA
	case dns.TypeAAAA:
		return groupAAAA
	}
	return groupOther
}

// zoneBackoff is the backoff of a zone for one kind of question.
type zoneBackoff struct {
	avoidUntil   time.Duration // until when the zone is not asked, since Pool.epoch
	name         string        // the last name without an answer; "": the servers have answered since
	unansweredAt time.Duration // when that was
}

const (
	zoneBackoffTime    = 5 * time.Second // of a zone whose servers are all silent (RFC 9520 §3.2)
	unansweredNameTime = time.Minute     // how long a silent name counts
)

// recordUnansweredName records that all servers were silent about a name. If a server has answered before (met), backoff begins
// with the second name, because a working server may drop one.
func (r *zoneBackoff) recordUnansweredName(name string, met bool, now time.Duration) {
	if !met || r.name != "" && r.name != name && now-r.unansweredAt < unansweredNameTime {
		r.avoidUntil = now + zoneBackoffTime
	}
	r.name, r.unansweredAt = name, now
}

// isIdle reports whether an unused zone has no state worth keeping.
func (z *zoneState) isIdle(now time.Duration) bool {
	for i := range z.backoffs {
		if r := &z.backoffs[i]; r.avoidUntil > now || r.name != "" && now-r.unansweredAt < unansweredNameTime {
			return false
		}
	}
	return true
}

// zoneTable has the zones in use or in backoff. Pool.mu guards it.
type zoneTable struct {
	max int
	all map[string]*zoneState
}

// acquireZone returns the state of a zone, which it makes if there is none, and counts one user more. The user calls releaseZone.
func (t *zoneTable) acquireZone(name string) *zoneState {
	z := t.all[name]
	if z == nil {
		if len(t.all) >= t.max {
			evictOldest(t.all, func(z *zoneState) (time.Duration, bool) {
				return max(z.backoffs[groupA].unansweredAt, z.backoffs[groupAAAA].unansweredAt, z.backoffs[groupOther].unansweredAt), z.users == 0
			})
		}
		z = &zoneState{name: name}
		t.all[name] = z
	}
	z.users++
	return z
}

// releaseZone ends one use of a zone.
func (t *zoneTable) releaseZone(z *zoneState, now time.Duration) {
	if z.users--; z.users == 0 && z.isIdle(now) && t.all[z.name] == z {
		delete(t.all, z.name)
	}
}

// A lameKey identifies a server of a zone.
type lameKey struct {
	zone string
	addr netip.AddrPort
}

// lameTable has the lame servers. Pool.mu guards it.
type lameTable struct {
	max int
	all map[lameKey]lameRecord
}

// lameRecord counts the failures of a server in a zone. A single name may fail for its own reason. The server is lame
// after several names without an answer in between: two that it does not serve or sign, or four that it fails for.
type lameRecord struct {
	avoidUntil  time.Duration           // until when other servers are preferred, since Pool.epoch; 0: it is asked
	lastFailure time.Duration           // of the last failure
	answered    bool                    // since the last failure
	failed      [maxFailures - 1]string // consecutive names that it failed for
	refused     string                  // last name that it does not serve or sign; others are preferred for it
	refusedAt   time.Duration           // when that was
}

// maxFailures is the number of failed names after which a server is lame.
const maxFailures = 4

// lookUpLame looks up the entry of a server and zone. marked reports whether there is one, even if it concerns other names; lame reports whether it
// holds for the name at the time now.
func (t *lameTable) lookUpLame(k lameKey, name string, now time.Duration) (marked, lame bool) {
	if len(t.all) == 0 {
		return false, false
	}
	m, ok := t.all[k]
	return ok, ok && m.isLameFor(name, now)
}

func (m *lameRecord) isLameFor(name string, now time.Duration) bool {
	return now < m.avoidUntil || m.refused == name && now-m.refusedAt < lameTime
}

// recordResponse records a result of Task.Judge for a name, and reports whether the server is lame for it.
func (t *lameTable) recordResponse(k lameKey, name string, said error, now time.Duration) bool {
	m := t.all[k]
	if now-m.lastFailure >= lameTime {
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

// recordRefusal counts a name that the server does not serve or sign.
func (m *lameRecord) recordRefusal(name string, now time.Duration) {
	if m.refused != "" && m.refused != name && !m.answered {
		m.avoidUntil = now + lameTime
	}
	m.refused, m.refusedAt, m.lastFailure, m.answered = name, now, now, false
}

// recordFailure counts a name that the server failed for.
func (m *lameRecord) recordFailure(name string, now time.Duration) {
	m.lastFailure, m.answered = now, false
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
		evictOldest(t.all, func(m lameRecord) (time.Duration, bool) { return m.lastFailure, true })
	}
	t.all[k] = m
}

// evictionSamples is the number of table entries compared to find one to evict.
const evictionSamples = 8

// evictOldest removes, of a few entries of a table, the one with the earliest time. Entries for which when reports false
// stay.
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
