package nameservers

import (
	"hash/maphash"
	"math"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

const (
	minBackoff = 10 * time.Second // first backoff of an unresponsive server; each further backoff lasts twice as long
	maxBackoff = 5 * time.Minute  // maximum backoff of an unresponsive server

	// backoffThreshold is the number of consecutive unanswered queries about a zone after which a server is avoided for
	// the zone. If the server has never answered for the zone, one query suffices.
	//
	// It is also the number of consecutive unanswered zones after which a server is avoided for all zones.
	backoffThreshold = 2
)

// backoffState decides when an unresponsive server is avoided: during a backoff, other servers are preferred. It counts
// either the unanswered queries about one zone, or the zones about which queries were not answered. Times are durations
// since Pool.epoch.
type backoffState struct {
	avoidUntil      time.Duration // end of the backoff
	lastZone        uint32        // hash of the unanswered zone that was counted last; zero if queries are counted
	unansweredCount uint8         // consecutive unanswered queries or zones, at most backoffThreshold
	backoffs        uint8         // number of backoffs since the last answer, at most 8
}

// startBackoff starts a backoff of the server at the time now: a period in which other servers are preferred. It does
// nothing if a backoff is running. A backoff lasts minBackoff, doubled for each backoff since the last answer, but at
// most maxBackoff.
func (s *backoffState) startBackoff(now time.Duration) {
	if now >= s.avoidUntil {
		s.avoidUntil = now + min(minBackoff<<s.backoffs, maxBackoff)
		s.backoffs = min(s.backoffs+1, 8)
	}
}

// recordUnansweredZone counts a zone about which the server left a query unanswered. After backoffThreshold zones
// without an answer in between, the server is avoided for a while (backoff). zone is the hash of the zone's name. The
// same zone is not counted twice in a row.
func (s *backoffState) recordUnansweredZone(now time.Duration, zone uint32) {
	if s.unansweredCount > 0 && zone == s.lastZone {
		return
	}
	s.lastZone = zone
	if s.unansweredCount = min(s.unansweredCount+1, backoffThreshold); s.unansweredCount == backoffThreshold {
		s.startBackoff(now)
	}
}

// qtypeGroup is a group of query types. Servers that drop queries often drop only those of one group: AAAA (RFC 4074
// §4.1), or types that they do not support.
type qtypeGroup int

const (
	groupA qtypeGroup = iota
	groupAAAA
	groupOther
	groupCount // number of groups
)

// qtypeGroupOf returns the group of a query type. The health of servers is recorded by group, because a server may drop
// the queries of one group and answer all others.
func qtypeGroupOf(qtype uint16) qtypeGroup {
	switch qtype {
	case dns.TypeA:
		return groupA
	case dns.TypeAAAA:
		return groupAAAA
	}
	return groupOther
}

// zoneServerHealth is the health of one server for one zone and one qtypeGroup. Pool.mu guards it.
//
// Many servers drop queries about zones that they do not serve. An unresponsive server is therefore first avoided only
// for the zone. If it is unresponsive for several zones, it is avoided for all zones about which it has never answered.
// It is avoided for all zones only if it used to answer about those that are now unanswered.
type zoneServerHealth struct {
	backoffState
	lastAnswer  time.Duration // since Pool.epoch
	lastQuery   time.Duration // since Pool.epoch
	hasAnswered bool          // the server has answered a query about the zone
}

// recordUnansweredQuery counts a query about the zone that the server left unanswered. After backoffThreshold such
// queries in a row, the server is avoided for a while (backoff). If the server has never answered for the zone, one
// query suffices.
func (h *zoneServerHealth) recordUnansweredQuery(now time.Duration) {
	h.unansweredCount = min(h.unansweredCount+1, backoffThreshold)
	if h.unansweredCount == backoffThreshold || !h.hasAnswered {
		h.startBackoff(now)
	}
}

// A healthKey identifies a zoneServerHealth in a healthTable, by server address, zone and qtypeGroup.
type healthKey struct {
	addr      netip.AddrPort
	zoneQtype zoneQtypeID
}

// A zoneQtypeID identifies a zone and a group of query types. It is a hash of the zone's name, except that its lowest
// two bits are the qtypeGroup.
type zoneQtypeID uint64

// zoneHash returns the upper 32 bits of the hash of the zone's name. They are the same for all groups of query types.
func (t zoneQtypeID) zoneHash() uint32 { return uint32(t >> 32) }

// unansweredZones is a zoneQtypeID that stands for all zones for which a server has never answered. Its
// zoneServerHealth counts unanswered zones instead of queries.
const unansweredZones = zoneQtypeID(groupCount)

// A healthTable records, for at most max pairs of server and zone, whether the server answers queries about the zone. A
// missing entry means that the server was not queried about the zone recently. Pool.mu guards the table and its
// entries.
type healthTable struct {
	seed maphash.Seed
	max  int
	all  map[healthKey]*zoneServerHealth
}

// hashZoneQtype returns the map key for a zone and a group of query types. The hash has a random seed, so that an
// attacker cannot choose zone names with equal keys.
func (t *healthTable) hashZoneQtype(zone string, k qtypeGroup) zoneQtypeID {
	return zoneQtypeID(maphash.String(t.seed, zone))&^3 | zoneQtypeID(k)
}

// getOrCreateHealth returns the health entry with the key k, and sets its lastQuery to now. If there is no entry, it
// adds one, and evicts an old entry if the table is full.
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

// endZoneBackoffs ends the backoff of the server at addr for all zones about which it has never answered. It is called
// when the server has answered a query about any zone: the server is reachable, so missing answers had another cause.
func (t *healthTable) endZoneBackoffs(addr netip.AddrPort) {
	k := healthKey{addr, unansweredZones}
	if s := t.all[k]; s != nil {
		*s = zoneServerHealth{} // candidates may point to it
		delete(t.all, k)
	}
}

const (
	familyBackoffThreshold = 8           // consecutive unanswered zones after which the other address family is preferred
	familyBackoff          = time.Minute // time for which the other address family is preferred
)

// familyHealth counts missing answers over one address family, IPv4 or IPv6, in order to detect that this machine has
// no connectivity over the family. Pool.mu guards it.
type familyHealth struct {
	hasAnswered     bool          // a server has answered over the family
	unansweredCount int           // number of consecutive unanswered zones
	lastZone        string        // name of the unanswered zone that was counted last
	avoidUntil      time.Duration // the other family is preferred until this time, since Pool.epoch
}

// recordUnansweredZone counts a zone whose server did not answer over this address family, IPv4 or IPv6. After
// familyBackoffThreshold zones, servers of the other family are preferred for familyBackoff. The same zone is not
// counted twice in a row.
//
// hasAnsweredZone is true if the server has answered queries about the zone before. Once any server has answered over
// the family, only these servers count, because a zone may list many unresponsive servers.
func (f *familyHealth) recordUnansweredZone(now time.Duration, zone string, hasAnsweredZone bool) {
	if f.hasAnswered && !hasAnsweredZone || zone == f.lastZone {
		return
	}
	f.lastZone = zone
	if f.unansweredCount++; f.unansweredCount >= familyBackoffThreshold && now >= f.avoidUntil {
		f.avoidUntil = now + familyBackoff
	}
}

// familyIndex returns the index in Pool.families for the address family of a: 0 for IPv4, and 1 for IPv6.
func familyIndex(a netip.AddrPort) int {
	if a.Addr().Is4() {
		return 0
	}
	return 1
}

// evictionSamples is the number of table entries that evictOldest compares.
const evictionSamples = 8

// evictOldest removes an old entry from a table that is full. It compares evictionSamples random entries, and removes
// the entry with the earliest time.
//
// entryTime returns the time of an entry. Its boolean is false if the entry must not be removed.
func evictOldest[K comparable, V any](table map[K]V, entryTime func(V) (time.Duration, bool)) {
	var first K
	var earliest time.Duration = math.MaxInt64
	n := 0
	for k, v := range table {
		if t, ok := entryTime(v); ok && t < earliest {
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
