package nameservers

import (
	"hash/maphash"
	"net/netip"
	"time"
)

// zoneServerHealth is the state of a server for one kind of question in one zone. Pool.mu guards it.
//
// Anybody can name foreign servers for a zone, and many servers drop questions about zones that they do not have. So a
// server that is silent about one zone is avoided for that zone. One that is silent about several zones is avoided for all
// zones that it has not answered for. If it has answered for the silent zones before, it is avoided for all.
type zoneServerHealth struct {
	backoffState
	lastAnswer  time.Duration
	lastQuery   time.Duration
	hasAnswered bool
}

// recordMiss counts a missing answer.
func (s *zoneServerHealth) recordUnansweredQuery(now time.Duration) {
	s.unansweredCount = min(s.unansweredCount+1, backoffThreshold)
	if s.unansweredCount == backoffThreshold || !s.hasAnswered {
		s.startBackoff(now)
	}
}

// A healthKey identifies a zoneServerHealth.
type healthKey struct {
	addr      netip.AddrPort
	zoneQtype zoneQtypeID
}

// A zoneQtypeID identifies a zone and a kind of question.
type zoneQtypeID uint64

// zoneHash identifies the zone alone.
func (t zoneQtypeID) zoneHash() uint32 { return uint32(t >> 32) }

// unansweredZones is the topic of all zones that a server has not answered for. Its health counts zones in place of queries.
const unansweredZones = zoneQtypeID(groupCount)

// healthTable has the health by server and topic. Pool.mu guards all. A removed entry counts as not asked yet.
type healthTable struct {
	seed maphash.Seed
	max  int
	all  map[healthKey]*zoneServerHealth
}

// newZoneQtypeID returns the ID of a zone and a kind. The random seed prevents deliberate collisions.
func (t *healthTable) newZoneQtypeID(zone string, k qtypeGroup) zoneQtypeID {
	return zoneQtypeID(maphash.String(t.seed, zone))&^3 | zoneQtypeID(k)
}

// getOrCreateHealth returns the health of a key for a further query. It adds a missing one.
func (t *healthTable) getOrCreateHealth(k healthKey, now time.Duration) *zoneServerHealth {
	s := t.all[k]
	if s == nil {
		if len(t.all) >= t.max {
			evictOldest(t.all, func(s *zoneServerHealth) (time.Duration, bool) { return s.lastQuery, true })
		}
		s = new(zoneServerHealth)
		t.all[k] = s
	}
	s.lastQuery = now
	return s
}

// removeUnansweredZones removes the health for otherZones, because the server has answered.
func (t *healthTable) removeUnansweredZones(addr netip.AddrPort) {
	k := healthKey{addr, unansweredZones}
	if s := t.all[k]; s != nil {
		*s = zoneServerHealth{} // candidates may point to it
		delete(t.all, k)
	}
}
