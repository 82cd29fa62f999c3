package nameservers

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	minHedgeDelay  = 20 * time.Millisecond  // lowest hedge delay of servers that have answered
	rttGranularity = 5 * time.Millisecond   // lower bound of the deviation (RFC 6298 §2.3)
	initialRTO     = 200 * time.Millisecond // retransmission timeout of unknown servers, unless most are slower
	maxRTO         = time.Second            // maximum retransmission timeout

	maxAttempts = 3 // queries for one question to one server over UDP (RFC 9520 §3.1)
)

// A candidate is a server that a task may query.
type candidate struct {
	*server
	zoneHealth            *zoneServerHealth // nil: not queried for the zone yet
	unansweredZonesHealth *zoneServerHealth // for zones that it has never answered for; may be nil
	addr                  netip.AddrPort
	lame                  bool    // other servers are preferred for the name, see lameRecord
	hasLameRecord         bool    // it has an entry in the lame table
	hasAnswered           bool    // server.hasAnswered when the candidate was added
	failed                bool    // not queried again for this task
	avoided               bool    // in Task.Avoid: queried after all others
	attempts              int     // queries sent over UDP
	expectedRTT           float32 // in ns

	hedgeDelay time.Duration // time after which its answer is late
	rto        time.Duration // retransmission timeout

	slow            bool          // its expected RTT exceeds the hedge delay of unknown servers
	firstHedgeDelay time.Duration // hedge delay of an unknown server
}

// addCandidates appends to old a candidate for each allowed address in all that old does not have yet.
func (f *Pool) addCandidates(t *Task, old []candidate, all []netip.AddrPort) []candidate {
	now := f.elapsed()
	f.mu.Lock()
	defer f.mu.Unlock()
	if old == nil {
		old = make([]candidate, 0, len(all))
	}
	zoneQtype := f.healthByZone.newZoneQtypeID(t.Zone, groupQtype(t.Type))
next:
	for _, at := range all {
		at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		if !f.conf.isAllowedAddress(at, t.PrivateOK) {
			continue
		}
		for i := range old {
			if old[i].addr == at {
				continue next
			}
		}
		s := f.servers.getOrCreateServer(at, now)
		c := candidate{server: s, addr: at, hasAnswered: s.hasAnswered(), avoided: slices.Contains(t.Avoid, at)}
		c.zoneHealth, c.unansweredZonesHealth = f.healthByZone.all[healthKey{at, zoneQtype}], f.healthByZone.all[healthKey{at, unansweredZones}]
		c.hasLameRecord, c.lame = f.lame.lookUpLame(lameKey{t.Zone, at}, t.Name, now)
		unknownRTT := f.firstRTTs.median
		c.firstHedgeDelay = f.firstRTTs.hedgeDelay
		if c.hasAnswered {
			c.expectedRTT = s.expectedRTT(now, unknownRTT)
			c.hedgeDelay = rtt.Estimate[float32]{SRTT: c.expectedRTT, RTTVAR: s.rtt.RTTVAR}.UpperBound(float32(rttGranularity), minHedgeDelay)
			c.rto = min(2*c.hedgeDelay, maxRTO)
			c.slow = c.expectedRTT > float32(f.firstRTTs.hedgeDelay)
		} else {
			c.expectedRTT = float32(unknownRTT) * (0.8 + 0.4*rand.Float32())
			if s.slots.used > 0 {
				c.expectedRTT = max(c.expectedRTT, float32(now-s.lastQuery)) // its first answer takes at least this long
			}
			c.hedgeDelay, c.rto = f.firstRTTs.hedgeDelay, max(initialRTO, f.firstRTTs.hedgeDelay)
		}
		old = append(old, c)
	}
	return old
}

// selectServer returns the candidate to query next. It is nil if every candidate has failed or was queried
// maxAttempts times. Each is queried once before one is queried again, except candidates that are unlikely to
// answer. The caller holds mu.
func (f *Pool) selectServer(all []candidate, now time.Duration) *candidate {
	var best *candidate
	var bestRank candidateRank
	for i := range all {
		if c := &all[i]; !c.failed && c.attempts < maxAttempts {
			if r := f.rankCandidate(c, now); best == nil || r.isBetterThan(bestRank) {
				best, bestRank = c, r
			}
		}
	}
	return best
}

// selectHedgeServer returns the candidate for a hedge, or nil. Only candidates of the likeliest available
// serverClass qualify.
//
// It prefers candidates that the task has not queried, and among these a server that has never answered. Otherwise
// it returns a reliable server that the task has queried once, because that query was probably lost.
func (f *Pool) selectHedgeServer(all []candidate) *candidate {
	now := f.elapsed()
	f.mu.Lock()
	defer f.mu.Unlock()
	least := classFull
	for i := range all {
		if c := &all[i]; !c.failed {
			least = min(least, f.rankCandidate(c, now).class)
		}
	}
	var best *candidate
	var bestRank candidateRank
	for i := range all {
		c := &all[i]
		r := f.rankCandidate(c, now)
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

// candidateRank orders candidates by preference. The fields are compared in their order. A lower value is better.
type candidateRank struct {
	round          int // number of queries to the server; plus 1 if it is unlikely to answer, plus 2 if it is avoided
	class          serverClass
	answeredBefore bool // set only for hedges: servers that have never answered come first
	expectedRTT    float32
	rttvar         float32
}

// serverClass is the likelihood that a server answers. A lower value is likelier.
type serverClass int

const (
	classUsual serverClass = iota
	classBackedOff
	classLame
	classFull // no slot of the server is free
)

// isBetterThan reports whether a candidate of rank r is preferred to one of rank o.
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

// rankCandidate returns the rank of c for the next query. The caller holds mu.
func (f *Pool) rankCandidate(c *candidate, now time.Duration) candidateRank {
	r := candidateRank{round: c.attempts, expectedRTT: c.expectedRTT, rttvar: c.rtt.RTTVAR}
	switch {
	case !c.slots.isFree(f.maxPerServer):
		r.class = classFull
	case c.lame:
		r.class = classLame
	case c.isBackedOff(now) || now < f.families[familyIndex(c.addr)].avoidUntil:
		r.class = classBackedOff
	}
	if r.class > classUsual {
		r.round++
	}
	if c.avoided {
		r.round += 2
	}
	return r
}

// isBackedOff reports whether the server is in backoff for all zones, for this zone, or for all zones that it has
// never answered for.
func (c *candidate) isBackedOff(now time.Duration) bool {
	hasAnsweredZone := c.zoneHealth != nil && c.zoneHealth.hasAnswered
	return now < c.avoidUntil || c.zoneHealth != nil && now < c.zoneHealth.avoidUntil || !hasAnsweredZone && c.unansweredZonesHealth != nil && now < c.unansweredZonesHealth.avoidUntil
}

// findCandidate returns the candidate with an address. There must be one.
func findCandidate(all []candidate, addr netip.AddrPort) *candidate {
	return &all[slices.IndexFunc(all, func(c candidate) bool { return c.addr == addr })]
}
