package nameservers

import (
	"hash/maphash"
	"net/netip"
	"time"
)

// zoneServerHealth is the health of one server for one zone and one qtypeGroup. Pool.mu guards it.
//
// A zone may list servers that do not serve it, and many servers drop queries about zones that they do not serve. So
// an unresponsive server is avoided for that zone only.
//
// A server that is unresponsive for several zones is avoided for all zones that it has never answered for. If it has
// answered for the unresponsive zones before, it is avoided for all zones.
type zoneServerHealth struct {
	backoffState
	lastAnswer  time.Duration // since Pool.epoch
	lastQuery   time.Duration // since Pool.epoch
	hasAnswered bool
}

// recordUnansweredQuery counts an unanswered query. It starts a backoff at backoffThreshold queries, or at once if
// the server has never answered for the zone.
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

// A zoneQtypeID identifies a zone and a qtypeGroup. It is a hash of the zone name, with the group in its lowest two
// bits.
type zoneQtypeID uint64

// zoneHash returns the upper 32 bits of the hash of the zone name.
func (t zoneQtypeID) zoneHash() uint32 { return uint32(t >> 32) }

// unansweredZones stands for all zones that a server has never answered for. Its health counts zones in place of
// queries.
const unansweredZones = zoneQtypeID(groupCount)

// healthTable has the zoneServerHealth of at most max keys. A missing entry counts as a server that was not queried
// yet. Pool.mu guards all.
type healthTable struct {
	seed maphash.Seed
	max  int
	all  map[healthKey]*zoneServerHealth
}

// newZoneQtypeID returns the ID of a zone and a qtypeGroup. The random seed of the hash prevents deliberate
// collisions.
func (t *healthTable) newZoneQtypeID(zone string, k qtypeGroup) zoneQtypeID {
	return zoneQtypeID(maphash.String(t.seed, zone))&^3 | zoneQtypeID(k)
}

// getOrCreateHealth returns the health with a key, which it adds if there is none, and sets its lastQuery to now.
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

// removeUnansweredZones resets and removes the unansweredZones health of a server, because the server has answered.
func (t *healthTable) removeUnansweredZones(addr netip.AddrPort) {
	k := healthKey{addr, unansweredZones}
	if s := t.all[k]; s != nil {
		*s = zoneServerHealth{} // candidates may point to it
		delete(t.all, k)
	}
}
