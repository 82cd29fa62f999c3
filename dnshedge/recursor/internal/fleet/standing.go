package fleet

import (
	"hash/maphash"
	"net/netip"
	"time"
)

// standing is how a server does with one zone's questions of one kind. It is guarded by Fleet.mu.
//
// Anybody can have a zone and name anybody's servers for it, of which many drop questions about zones that they do not have. So silence about one
// zone makes a server rest for that zone. When it is silent about several, it rests for all those that it has not answered for; and for
// all, if it has answered for these.
type standing struct {
	silence
	seen  time.Duration // when the last answer came
	asked time.Duration // when the last query was sent
	known bool          // an answer has come
}

// miss takes that no answer has come.
func (s *standing) miss(now time.Duration) {
	s.silent = min(s.silent+1, maxSilence)
	if s.silent == maxSilence || !s.known {
		s.rest(now)
	}
}

// standingKey is a server, and a zone with a kind of questions.
type standingKey struct {
	addr  netip.AddrPort
	about topic
}

// topic stands for a zone and a kind of questions.
type topic uint64

// zone stands for the zone alone.
func (t topic) zone() uint32 { return uint32(t >> 32) }

// unknown stands for all zones that a server has not answered for. Its standing is about zones, and not queries.
const unknown = topic(kinds)

// standings is the table of them, which is guarded by Fleet.mu, but for the seed. What is forgotten counts as not asked yet.
type standings struct {
	seed maphash.Seed
	max  int
	all  map[standingKey]*standing
}

// topicOf returns what stands for a zone and a kind. Two zones have the same by chance only, which nobody can bring about.
func (t *standings) topicOf(zone string, k kind) topic {
	return topic(maphash.String(t.seed, zone))&^3 | topic(k)
}

// use returns the standing with a key for one more query.
func (t *standings) use(k standingKey, now time.Duration) *standing {
	s := t.all[k]
	if s == nil {
		if len(t.all) >= t.max {
			forget(t.all, func(s *standing) (time.Duration, bool) { return s.asked, true })
		}
		s = new(standing)
		t.all[k] = s
	}
	s.asked = now
	return s
}

// wake ends what silence about several zones has led to, as the server has answered.
func (t *standings) wake(addr netip.AddrPort) {
	k := standingKey{addr, unknown}
	if s := t.all[k]; s != nil {
		*s = standing{} // candidates may refer to it
		delete(t.all, k)
	}
}
