package nameservers

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
	"github.com/gohedge/hedge/dnshedge/internal/special"
)

const (
	minHedgeDelay  = 20 * time.Millisecond  // minimum hedge delay of servers that have answered
	rttGranularity = 5 * time.Millisecond   // minimum of the RTT deviation (RFC 6298 §2.3)
	initialRTO     = 200 * time.Millisecond // minimum retransmission timeout of servers that have not answered
	maxRTO         = time.Second            // maximum retransmission timeout

	maxAttempts = 3 // maximum number of queries over UDP for one question to one server (RFC 9520 §3.1)
)

// A candidate is a server to which a Task may send its next query, with the properties that determine its preference
// and timeouts. Only the goroutine of the queryLoop uses it. Pool.mu guards the server and the health to which it
// points.
type candidate struct {
	*server
	index                 int               // index in queryLoop.candidates
	zoneHealth            *zoneServerHealth // health for the zone; nil if the server was not queried for the zone
	unansweredZonesHealth *zoneServerHealth // health for all zones for which the server has never answered; may be nil
	addr                  netip.AddrPort
	lame                  bool    // other servers are preferred for the name of the Task, see lameness
	hasLameRecord         bool    // the server has an entry in the lame table
	hasAnswered           bool    // the server had answered when the candidate was added
	failed                bool    // the server is not queried again for this Task
	hasSentBogus          bool    // the server is in Task.Avoid, and is queried last
	attempts              int     // queries of the Task sent over UDP
	expectedRTT           float32 // in nanoseconds

	hedgeDelay time.Duration // time after which an answer of the server is late
	rto        time.Duration // retransmission timeout

	slow            bool          // expectedRTT exceeds the hedge delay of servers that have not answered
	firstHedgeDelay time.Duration // hedge delay of servers that have not answered
}

// addCandidates returns the candidates in old, and a new candidate for each address in all. It omits addresses that old
// already has, and addresses to which the Task t may not send queries. zoneQtype identifies the zone and the group of
// query types of t.
func (p *Pool) addCandidates(t *Task, zoneQtype zoneQtypeID, old []candidate, all []netip.AddrPort) []candidate {
	now := p.elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if old == nil {
		old = make([]candidate, 0, len(all))
	}
next:
	for _, at := range all {
		at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		if !p.conf.isAllowedAddress(at, t.PrivateOK) {
			continue
		}
		for i := range old {
			if old[i].addr == at {
				continue next
			}
		}
		s := p.servers.getOrCreateServer(at, now)
		c := candidate{server: s, index: len(old), addr: at, hasAnswered: s.hasAnswered(), hasSentBogus: slices.Contains(t.Avoid, at)}
		c.zoneHealth, c.unansweredZonesHealth = p.healthByZone.all[healthKey{at, zoneQtype}], p.healthByZone.all[healthKey{at, unansweredZones}]
		if record, ok := p.lame.all[lameKey{t.Zone, at}]; ok {
			c.hasLameRecord, c.lame = true, record.isLameFor(t.Name, now)
		}
		unknownRTT := p.firstRTTs.median
		c.firstHedgeDelay = p.firstRTTs.hedgeDelay
		if c.hasAnswered {
			c.expectedRTT = s.expectedRTT(now, unknownRTT)
			c.hedgeDelay = rtt.Estimate[float32]{SRTT: c.expectedRTT, RTTVAR: s.rtt.RTTVAR}.UpperBound(float32(rttGranularity), minHedgeDelay)
			c.rto = min(2*c.hedgeDelay, maxRTO)
			c.slow = c.expectedRTT > float32(p.firstRTTs.hedgeDelay)
		} else {
			c.expectedRTT = float32(unknownRTT) * (0.8 + 0.4*rand.Float32())
			if s.slots.used > 0 {
				c.expectedRTT = max(c.expectedRTT, float32(now-s.lastQuery)) // its first answer takes at least this long
			}
			c.hedgeDelay, c.rto = p.firstRTTs.hedgeDelay, max(initialRTO, p.firstRTTs.hedgeDelay)
		}
		old = append(old, c)
	}
	return old
}

// selectServer returns the best of the candidates in all for the next query of a Task, according to their
// candidateRank. A candidate with fewer queries is preferred, unless it is in backoff, lame or without a free slot. The
// result is nil if all candidates have failed or were queried maxAttempts times. The caller must hold mu.
func (p *Pool) selectServer(all []candidate, now time.Duration) *candidate {
	var best *candidate
	var bestRank candidateRank
	for i := range all {
		if c := &all[i]; !c.failed && c.attempts < maxAttempts {
			if r := p.rankCandidate(c, now); best == nil || r.isBetterThan(bestRank) {
				best, bestRank = c, r
			}
		}
	}
	return best
}

// selectHedgeServer returns the best of the candidates in all for a hedge, or nil if none is suitable. It considers
// only candidates of the best serverClass that occurs, and no candidate without a free slot.
//
// It prefers servers that have no query of this Task yet, and among these a server that has never answered. If there
// are none, it returns a server with one query that usually answers, because that query was probably lost.
func (p *Pool) selectHedgeServer(all []candidate) *candidate {
	now := p.elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	least := classFull
	for i := range all {
		if c := &all[i]; !c.failed {
			least = min(least, p.rankCandidate(c, now).class)
		}
	}
	var best *candidate
	var bestRank candidateRank
	for i := range all {
		c := &all[i]
		r := p.rankCandidate(c, now)
		r.answeredBefore = c.hasAnswered
		switch {
		case c.failed || r.class > least || r.class == classFull:
		case c.attempts > 1 || c.attempts == 1 && (!c.hasAnswered || c.zoneHealth != nil && c.zoneHealth.unansweredCount > 0):
		case best == nil || r.isBetterThan(bestRank):
			best, bestRank = c, r
		}
	}
	return best
}

// isReliable reports whether the server of the candidate c usually answers, so that hedges of queries to it may use the
// tokens of hedgeReserve, the part of the hedge budget that is kept for them. It must have answered the Pool before the Task
// began. It must also have answered the latest query about this zone: a server of an attacker may answer for another zone,
// and stay silent for this one.
func (p *Pool) isReliable(c *candidate) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.hasAnswered && c.zoneHealth != nil && c.zoneHealth.hasAnswered && c.zoneHealth.unansweredCount == 0
}

// A candidateRank is the preference for one candidate. Ranks are compared field by field: number of queries, likelihood
// of an answer, and expected round trip time. In each field, the lower value is preferred.
type candidateRank struct {
	round          int // number of queries to the server; increased by 1 if it is unlikely to answer, and by 2 if it is avoided
	class          serverClass
	answeredBefore bool    // set only for hedges, so that servers that have never answered are preferred
	expectedRTT    float32 // in nanoseconds
	rttvar         float32 // in nanoseconds
}

// A serverClass tells how suitable a server is for the next query: usual, in backoff, lame, or without a free slot. A lower
// value is better.
type serverClass int

const (
	classUsual     serverClass = iota
	classBackedOff             // the server or its address family is in backoff
	classLame                  // the server is lame
	classFull                  // no slot of the server is free
)

// isBetterThan reports whether a candidate with rank r is preferred to a candidate with rank o.
func (r candidateRank) isBetterThan(o candidateRank) bool {
	switch {
	case r.round != o.round:
		return r.round < o.round
	case r.class != o.class:
		return r.class < o.class
	case r.answeredBefore != o.answeredBefore:
		return o.answeredBefore
	case r.expectedRTT != o.expectedRTT:
		return r.expectedRTT < o.expectedRTT
	}
	return r.rttvar < o.rttvar
}

// rankCandidate returns the preference for the candidate c as the server of a query at the time now. The caller must
// hold mu.
func (p *Pool) rankCandidate(c *candidate, now time.Duration) candidateRank {
	r := candidateRank{round: c.attempts, expectedRTT: c.expectedRTT, rttvar: c.rtt.RTTVAR}
	switch {
	case !c.slots.hasFreeSlot(p.maxPerServer):
		r.class = classFull
	case c.lame:
		r.class = classLame
	case now < c.avoidUntil || now < p.families[familyIndex(c.addr)].avoidUntil:
		r.class = classBackedOff
	case c.zoneHealth != nil && now < c.zoneHealth.avoidUntil:
		r.class = classBackedOff
	case (c.zoneHealth == nil || !c.zoneHealth.hasAnswered) && c.unansweredZonesHealth != nil && now < c.unansweredZonesHealth.avoidUntil:
		r.class = classBackedOff
	}
	if r.class > classUsual {
		r.round++
	}
	if c.hasSentBogus {
		r.round += 2
	}
	return r
}

// isAllowedAddress reports whether queries may be sent to the server address addr. The address must be valid and its
// family enabled. Private addresses are allowed only if privateOK or c.PrivateOK is true.
func (c *Config) isAllowedAddress(addr netip.AddrPort, privateOK bool) bool {
	a := addr.Addr()
	switch {
	case !a.IsValid() || addr.Port() == 0:
		return false
	case a.Is4() && c.NoIPv4 || a.Is6() && c.NoIPv6:
		return false
	}
	return privateOK || c.PrivateOK || !isPrivateAddress(a)
}

// isPrivateAddress reports whether the address a is not a public unicast address: it is multicast or reserved, or has a
// meaning only in one network or on one machine. An address with an embedded IPv4 address (NAT64, 6to4) is private if the
// IPv4 address is private.
func isPrivateAddress(a netip.Addr) bool {
	a = special.EmbeddedIPv4(a)
	return a.IsMulticast() || reservedNetwork.Contains(a) || special.ProtocolNetwork.Contains(a) || special.IPv4CompatibleNetwork.Contains(a) ||
		special.IsPrivateAddress(a)
}

var reservedNetwork = netip.MustParsePrefix("240.0.0.0/4") // RFC 1112 §4
