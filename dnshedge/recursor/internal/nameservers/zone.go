package nameservers

import (
	"math"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// lameTime is how long other servers are preferred to a lame server.
const lameTime = 15 * time.Minute

// zoneState is the state of a zone in use or in backoff. Pool.mu guards all fields but name.
type zoneState struct {
	name           string
	slots          slots
	users          int           // tasks and queries in flight
	outageReported time.Duration // earliest time of the next timeout that counts for an outage, since Pool.epoch
	backoffs       [groupCount]zoneBackoff
}

// qtypeGroup is a group of query types. Many servers drop the queries of one group: AAAA (RFC 4074 §4.1), or types
// that they do not know.
type qtypeGroup int

const (
	groupA qtypeGroup = iota
	groupAAAA
	groupOther
	groupCount
)

// groupQtype returns the group of a query type.
func groupQtype(qtype uint16) qtypeGroup {
	switch qtype {
	case dns.TypeA:
		return groupA
	case dns.TypeAAAA:
		return groupAAAA
	}
	return groupOther
}

// zoneBackoff is the backoff of a zone for one qtypeGroup.
type zoneBackoff struct {
	avoidUntil   time.Duration // the zone is not queried until then, since Pool.epoch
	name         string        // the last unanswered name; "": the servers have answered since
	unansweredAt time.Duration // when name was recorded
}

const (
	zoneBackoffTime    = 5 * time.Second // backoff of a zone whose servers are all unresponsive (RFC 9520 §3.2)
	unansweredNameTime = time.Minute     // how long an unanswered name counts
)

// recordUnansweredName records that no server has answered for a name. If none has ever answered (answeredBefore is
// false), the backoff starts at once. Otherwise it starts with the second name, because a working server may drop
// the queries for one name.
func (r *zoneBackoff) recordUnansweredName(name string, answeredBefore bool, now time.Duration) {
	if !answeredBefore || r.name != "" && r.name != name && now-r.unansweredAt < unansweredNameTime {
		r.avoidUntil = now + zoneBackoffTime
	}
	r.name, r.unansweredAt = name, now
}

// isIdle reports whether the state of an unused zone can be dropped: no backoff is running, and no name is
// unanswered within unansweredNameTime.
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

// acquireZone returns the state of a zone, which it adds if there is none, and counts one user more. The caller must
// call releaseZone.
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

// releaseZone ends the use of a zone by one user. It drops the state of an unused and idle zone.
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

// lameTable has the lameRecord of servers with rejected responses. Pool.mu guards it.
type lameTable struct {
	max int
	all map[lameKey]lameRecord
}

// lameRecord counts the names that a server of a zone has failed for. A single name may fail for a reason of its
// own. So the server is lame after several names in a row. These are two names that it refuses or does not sign, or
// four that it cannot answer.
type lameRecord struct {
	avoidUntil  time.Duration           // other servers are preferred for the zone until then, since Pool.epoch; 0: it is not lame
	lastFailure time.Duration           // time of the last failure
	answered    bool                    // it has answered since the last failure
	failed      [maxFailures - 1]string // consecutive names with ErrFailed
	refused     string                  // last name with ErrLame or ErrUnsigned; other servers are preferred for it
	refusedAt   time.Duration           // when refused was recorded
}

// maxFailures is the number of failed names after which a server is lame.
const maxFailures = 4

// lookUpLame returns whether there is a record of a server and zone, and whether the server is lame for a name.
func (t *lameTable) lookUpLame(k lameKey, name string, now time.Duration) (hasRecord, lame bool) {
	if len(t.all) == 0 {
		return false, false
	}
	m, ok := t.all[k]
	return ok, ok && m.isLameFor(name, now)
}

// isLameFor reports whether other servers are preferred for a name.
func (m *lameRecord) isLameFor(name string, now time.Duration) bool {
	return now < m.avoidUntil || m.refused == name && now-m.refusedAt < lameTime
}

// recordResponse records err, the result of Task.CheckResponse for a name, and reports whether the server is lame
// for the name. Errors without a later effect are not recorded.
func (t *lameTable) recordResponse(k lameKey, name string, err error, now time.Duration) bool {
	m := t.all[k]
	if now-m.lastFailure >= lameTime {
		m = lameRecord{}
	}
	switch err {
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

// recordRefusal records a response with ErrLame or ErrUnsigned for a name. After a second name, the server is lame
// for the zone.
func (m *lameRecord) recordRefusal(name string, now time.Duration) {
	if m.refused != "" && m.refused != name && !m.answered {
		m.avoidUntil = now + lameTime
	}
	m.refused, m.refusedAt, m.lastFailure, m.answered = name, now, now, false
}

// recordFailure records a response with ErrFailed for a name. After maxFailures names, the server is lame for the
// zone.
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

// storeRecord stores a record. It evicts an old record if the table is full.
func (t *lameTable) storeRecord(k lameKey, m lameRecord) {
	if _, ok := t.all[k]; !ok && len(t.all) >= t.max {
		evictOldest(t.all, func(m lameRecord) (time.Duration, bool) { return m.lastFailure, true })
	}
	t.all[k] = m
}

// evictionSamples is the largest number of table entries that evictOldest compares.
const evictionSamples = 8

// evictOldest compares a few random entries of a table and removes the entry with the earliest time. when returns
// the time of an entry. It reports false for an entry that must stay.
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
