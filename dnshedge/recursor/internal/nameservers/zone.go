package nameservers

import (
	"net/netip"
	"time"
)

// lameTime is the time for which other servers are preferred to a lame server.
const lameTime = 15 * time.Minute

// A zoneState is the state that all questions to a zone's servers share: the number of queries in flight, and the
// backoffs. In a backoff, the zone is not queried, because its servers do not answer. The state exists while the zone
// is queried or in backoff. Pool.mu guards all fields except name.
type zoneState struct {
	name                string
	slots               semaphore     // limits the queries in flight to the zone
	users               int           // number of running Tasks and sent queries; see zoneTable.acquireZone
	ignoreTimeoutsUntil time.Duration // until this time, since Pool.epoch, no further timeout of the zone counts for an outage
	backoffs            [groupCount]zoneBackoff
}

// A zoneBackoff is a period in which a zone is not queried, because its servers do not answer queries of one
// qtypeGroup. The zero value means that no backoff is running.
type zoneBackoff struct {
	avoidUntil   time.Duration // the zone is not queried until this time, since Pool.epoch
	name         string        // last unanswered name; "" if there is none, or if a server has answered since it was recorded
	unansweredAt time.Duration // time at which name was recorded, since Pool.epoch
}

const (
	zoneBackoffTime    = 5 * time.Second // backoff of a zone whose servers are all unresponsive (RFC 9520 §3.2)
	unansweredNameTime = time.Minute     // time after which an unanswered name is ignored
)

// recordUnansweredName records that no server of the zone has answered the queries for a name at the time now. It may
// start the backoff of the zone, in which the zone is not queried.
//
// answeredBefore is true if at least one of the servers has answered before. The backoff then starts only with the
// second name, because a working server may drop the queries for a single name. Otherwise it starts at once.
func (b *zoneBackoff) recordUnansweredName(name string, answeredBefore bool, now time.Duration) {
	if !answeredBefore || b.name != "" && b.name != name && now-b.unansweredAt < unansweredNameTime {
		b.avoidUntil = now + zoneBackoffTime
	}
	b.name, b.unansweredAt = name, now
}

// isIdle reports whether the state of a zone is worthless once the zone is not queried any more, so that it can be
// removed. It is true if no backoff is running, and no name was recorded as unanswered within unansweredNameTime.
func (z *zoneState) isIdle(now time.Duration) bool {
	for i := range z.backoffs {
		if r := &z.backoffs[i]; r.avoidUntil > now || r.name != "" && now-r.unansweredAt < unansweredNameTime {
			return false
		}
	}
	return true
}

// A zoneTable holds, by name, the state of at most max zones that are queried or in backoff. Pool.mu guards it.
type zoneTable struct {
	max int
	all map[string]*zoneState
}

// acquireZone returns the state of the zone with the given name, and counts one more user of it: a Task or a query. If
// there is no state, it adds one. The caller must call releaseZone for each call.
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

// releaseZone ends one use of the zone z, which acquireZone has counted. After the last use, it removes the state of
// the zone if it is idle.
func (t *zoneTable) releaseZone(z *zoneState, now time.Duration) {
	if z.users--; z.users == 0 && z.isIdle(now) && t.all[z.name] == z {
		delete(t.all, z.name)
	}
}

// A lameKey is the map key of a lameness: a zone and the address of a server. A server can be lame for one zone and
// serve another.
type lameKey struct {
	zone string
	addr netip.AddrPort
}

// A lameTable records, for at most max pairs of zone and server, which names the server has failed to answer. A server
// is lame for a zone if the zone lists it, but it does not answer questions about the zone. Pool.mu guards the table.
type lameTable struct {
	max int
	all map[lameKey]lameness
}

// lameness records which names a server has failed to answer for a zone, in order to decide whether the server is
// lame for the zone.
//
// A single name may fail for a reason of its own. The server is therefore lame only after several names in a row: two
// that it refuses or does not sign, or maxFailures that it cannot answer.
type lameness struct {
	avoidUntil  time.Duration           // other servers are preferred for the zone until this time, since Pool.epoch; 0 if the server is not lame for the zone
	lastFailure time.Duration           // time of the last failure, since Pool.epoch
	answered    bool                    // the server has answered since the last failure
	failed      [maxFailures - 1]string // consecutive names with ErrFailed
	refused     string                  // last name with ErrLame or ErrUnsigned, for which other servers are preferred
	refusedAt   time.Duration           // time at which refused was recorded, since Pool.epoch
}

// maxFailures is the number of consecutive names with ErrFailed after which a server is lame.
const maxFailures = 4

// isLameFor reports whether queries about a name should go to other servers at the time now. This is so if the server
// is lame for the zone, or has refused the name.
func (l *lameness) isLameFor(name string, now time.Duration) bool {
	return now < l.avoidUntil || l.refused == name && now-l.refusedAt < lameTime
}

// recordResponse updates the lameness of the server and zone in k after a response for a name. err is the result of
// Task.CheckResponse for it, nil if the response was accepted. It returns true if other servers are now preferred for
// the name.
func (t *lameTable) recordResponse(k lameKey, name string, err error, now time.Duration) bool {
	m := t.all[k]
	if now-m.lastFailure >= lameTime {
		m = lameness{}
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

// recordRefusal records that the server has refused to answer for a name, or has not signed its answer: the response
// was rejected with ErrLame or ErrUnsigned. After two different names in a row, the server is lame for the zone.
func (l *lameness) recordRefusal(name string, now time.Duration) {
	if l.refused != "" && l.refused != name && !l.answered {
		l.avoidUntil = now + lameTime
	}
	l.refused, l.refusedAt, l.lastFailure, l.answered = name, now, now, false
}

// recordFailure records that the server has failed to answer a question for a name: its response was rejected with
// ErrFailed. After maxFailures different names in a row, the server is lame for the zone.
func (l *lameness) recordFailure(name string, now time.Duration) {
	l.lastFailure, l.answered = now, false
	for i, old := range l.failed {
		switch {
		case old == name:
			return
		case old == "":
			l.failed[i] = name
			return
		}
	}
	l.avoidUntil, l.failed = now+lameTime, [maxFailures - 1]string{}
}

// storeRecord stores m as the record of the server and zone in k. If the table is full, it first evicts an old record.
func (t *lameTable) storeRecord(k lameKey, m lameness) {
	if _, ok := t.all[k]; !ok && len(t.all) >= t.max {
		evictOldest(t.all, func(m lameness) (time.Duration, bool) { return m.lastFailure, true })
	}
	t.all[k] = m
}
