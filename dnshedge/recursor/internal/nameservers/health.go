package nameservers

import (
	"hash/maphash"
	"net/netip"
	"time"
)

// zoneServerHealth is the health of one server for one zone and one qtypeGroup. Pool.mu guards it.
//
// A zone may list servers that do not serve it. Many servers drop queries about zones that they do not serve. Therefore
// an unresponsive server is first avoided only for that zone.
//
// A server that is unresponsive for several zones is avoided for all zones for which it has never answered. If it has
// answered for the unresponsive zones before, it is avoided for all zones.
type zoneServerHealth struct {
	backoffState
	lastAnswer  time.Duration // since Pool.epoch
	lastQuery   time.Duration // since Pool.epoch
	hasAnswered bool          // the server has answered a query about the zone
}

// recordUnansweredQuery counts an unanswered query. It starts a backoff after backoffThreshold consecutive queries. If
// the server has never answered for the zone, the backoff starts after the first query.
func (s *zoneServerHealth) recordUnansweredQuery(now time.Duration) {
	s.unansweredCount = min(s.unansweredCount+1, backoffThreshold)
	if s.unansweredCount == backoffThreshold || !s.hasAnswered {
		s.startBackoff(now)
	}
}

// A healthKey identifies a zoneServerHealth in a healthTable, by server address, zone and qtypeGroup.
type healthKey struct {
	addr      netip.AddrPort
	zoneQtype zoneQtypeID
}

// A zoneQtypeID identifies a zone and a qtypeGroup. It is a hash of the zone's name, except that its lowest two bits
// are the qtypeGroup.
type zoneQtypeID uint64

// zoneHash returns the upper 32 bits of the hash of the zone's name. It identifies the zone, without the qtypeGroup.
func (t zoneQtypeID) zoneHash() uint32 { return uint32(t >> 32) }

// unansweredZones is a zoneQtypeID that stands for all zones for which a server has never answered. Its
// zoneServerHealth counts unanswered zones instead of queries.
const unansweredZones = zoneQtypeID(groupCount)

// healthTable holds the health of servers for zones, in at most max entries. A missing entry means that the server was
// not queried for the zone recently. Pool.mu guards the table and its entries.
type healthTable struct {
	seed maphash.Seed
	max  int
	all  map[healthKey]*zoneServerHealth
}

// newZoneQtypeID returns the ID of a zone and a qtypeGroup. The hash has a random seed, so that nobody can choose zone
// names with equal IDs.
func (t *healthTable) newZoneQtypeID(zone string, k qtypeGroup) zoneQtypeID {
	return zoneQtypeID(maphash.String(t.seed, zone))&^3 | zoneQtypeID(k)
}

// getOrCreateHealth returns the entry with the key k, and sets its lastQuery to now. If there is no entry, it adds one,
// and evicts an old entry if the table is full.
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

// removeUnansweredZones ends the backoff of a server for the zones for which it has never answered, and forgets the
// unanswered zones. addr is the address of the server. It must be called when the server has answered.
func (t *healthTable) removeUnansweredZones(addr netip.AddrPort) {
	k := healthKey{addr, unansweredZones}
	if s := t.all[k]; s != nil {
		*s = zoneServerHealth{} // candidates may point to it
		delete(t.all, k)
	}
}
