package nameservers

import (
	"hash/maphash"
	"net/netip"
	"time"
)

// zoneServerHealth is how a server does with one zone's questions of one kind. It is guarded by Fleet.mu.
//
// Anybody can have a zone and name anybody's servers for it, of which many drop questions about zones that they do not have. So silence about one
// zone makes a server rest for that zone. When it is silent about several, it rests for all those that it has not answered for; and for
// all, if it has answered for these.
type zoneServerHealth struct {
	silence
	lastAnswer  time.Duration // when the last answer came
	lastQuery   time.Duration // when the last query was sent
	hasAnswered bool          // an answer has come
}

// recordMiss takes that no answer has come.
func (s *zoneServerHealth) recordMiss(now time.Duration) {
	s.silentCount = min(s.silentCount+1, maxSilence)
	if s.silentCount == maxSilence || !s.hasAnswered {
		s.backOff(now)
	}
}

// healthKey is a server, and a zone with a kind of questions.
type healthKey struct {
	addr  netip.AddrPort
	topic topicID
}

// topicID stands for a zone and a kind of questions.
type topicID uint64

// zoneID stands for the zone alone.
func (t topicID) zoneID() uint32 { return uint32(t >> 32) }

// otherZones stands for all zones that a server has not answered for. Its standing is about zones, and not queries.
const otherZones = topicID(kindCount)

// healthTable is the table of them, which is guarded by Fleet.mu, but for the seed. What is forgotten counts as not asked yet.
type healthTable struct {
	seed maphash.Seed
	max  int
	all  map[healthKey]*zoneServerHealth
}

// newTopicID returns what stands for a zone and a kind. Two zones have the same by chance only, which nobody can bring about.
func (t *healthTable) newTopicID(zone string, k topicKind) topicID {
	return topicID(maphash.String(t.seed, zone))&^3 | topicID(k)
}

// useHealth returns the standing with a key for one more query.
func (t *healthTable) useHealth(k healthKey, now time.Duration) *zoneServerHealth {
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

// clearOtherZones ends what silence about several zones has led to, as the server has answered.
func (t *healthTable) clearOtherZones(addr netip.AddrPort) {
	k := healthKey{addr, otherZones}
	if s := t.all[k]; s != nil {
		*s = zoneServerHealth{} // candidates may refer to it
		delete(t.all, k)
	}
}
