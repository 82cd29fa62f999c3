package nameservers

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	minHedgeDelay  = 20 * time.Millisecond  // before which no server that was met is late
	rttGranularity = 5 * time.Millisecond   // by which the times of any server deviate (RFC 6298 §2.3)
	initialRTO     = 200 * time.Millisecond // of a server that was never met, unless most take longer
	maxRTO         = time.Second            // before another server, or the same, is asked

	maxAttempts = 3 // of a question at a server, over UDP (RFC 9520 §3.1)
)

// candidate is one of the servers that a task may ask.
type candidate struct {
	*server
	zoneHealth       *zoneServerHealth // nil: it was not asked yet
	otherZonesHealth *zoneServerHealth // for zones that it has not answered for; may be nil
	addr             netip.AddrPort
	lame             bool    // it was found to be lame not long ago
	hasLameRecord    bool    // there is something that speaks against it in the zone
	hasAnswered      bool    // an answer has come from it before
	failed           bool    // it is not asked again for this task
	avoided          bool    // it is asked after all others
	attempts         int     // queries over UDP
	expectedRTT      float32 // the time in ns that an answer is expected to take

	hedgeDelay time.Duration // after which an answer is late
	rto        time.Duration // after which none is awaited before another server is asked

	slow            bool          // its answers take twice as long as is usual, at least
	firstHedgeDelay time.Duration // what late would be if it had never been met
}

// addCandidates returns those of the addresses that may be asked and are not among the old ones.
func (f *Pool) addCandidates(t *Task, old []candidate, all []netip.AddrPort) []candidate {
	now := f.elapsed()
	f.mu.Lock()
	defer f.mu.Unlock()
	if old == nil {
		old = make([]candidate, 0, len(all))
	}
	about := f.healthByZone.newTopicID(t.Zone, kindOfType(t.Type))
next:
	for _, at := range all {
		at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		if !f.conf.isAllowedAddress(at, t.AnyAddress) {
			continue
		}
		for i := range old {
			if old[i].addr == at {
				continue next
			}
		}
		s := f.servers.lookUpServer(at, now)
		c := candidate{server: s, addr: at, hasAnswered: s.hasAnswered(), avoided: slices.Contains(t.Avoid, at)}
		c.zoneHealth, c.otherZonesHealth = f.healthByZone.all[healthKey{at, about}], f.healthByZone.all[healthKey{at, otherZones}]
		c.hasLameRecord, c.lame = f.lame.lookUpLame(lameKey{t.Zone, at}, t.Name, now)
		prior := f.firstRTTs.median
		c.firstHedgeDelay = f.firstRTTs.hedgeDelay
		if c.hasAnswered {
			c.expectedRTT = s.expectedRTT(now, prior)
			c.hedgeDelay = rtt.Estimate[float32]{SRTT: c.expectedRTT, RTTVAR: s.rtt.RTTVAR}.Bound(float32(rttGranularity), minHedgeDelay)
			c.rto = min(2*c.hedgeDelay, maxRTO)
			c.slow = c.expectedRTT > float32(f.firstRTTs.hedgeDelay)
		} else {
			c.expectedRTT = float32(prior) * (0.8 + 0.4*rand.Float32())
			if s.slots.used > 0 {
				c.expectedRTT = max(c.expectedRTT, float32(now-s.lastQuery)) // it is being met, and takes longer than that
			}
			c.hedgeDelay, c.rto = f.firstRTTs.hedgeDelay, max(initialRTO, f.firstRTTs.hedgeDelay)
		}
		old = append(old, c)
	}
	return old
}

// selectServer returns the server to ask next, or nil if all that may be asked have been asked often enough. All have their turn before
// one is asked again, but for those that are not likely to answer. The caller holds mu.
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

// selectHedgeServer returns the server to ask because another one is late, or nil: one that was not asked yet
// and is as likely to answer as any, if possible one that was never met. If there is none, it is
// one that was asked once and has always answered: the query was probably lost.
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
		r.met = c.hasAnswered
		switch {
		case c.failed || r.class > least || r.class == classFull:
		case c.attempts > 1 || c.attempts == 1 && (!c.hasAnswered || c.zoneHealth != nil && c.zoneHealth.silentCount > 0):
		case best == nil || r.isBetterThan(bestRank):
			best, bestRank = c, r
		}
	}
	return best
}

// rank is how good a choice a candidate is; less is better.
type candidateRank struct {
	round       int // how often it was asked; one more if it is not likely to answer, and two if it has answered in vain
	class       serverClass
	met         bool // of a hedge
	expectedRTT float32
	rttvar      float32
}

// serverClass is how likely a server is to answer. Less is more.
type serverClass int

const (
	classUsual serverClass = iota
	classBackedOff
	classLame
	classFull // all its places are taken
)

func (r candidateRank) isBetterThan(o candidateRank) bool {
	switch {
	case r.round != o.round:
		return r.round < o.round
	case r.class != o.class:
		return r.class < o.class
	case r.met != o.met:
		return o.met
	case r.expectedRTT != o.expectedRTT:
		return r.expectedRTT < o.expectedRTT
	}
	return r.rttvar < o.rttvar
}

// rankCandidate returns c's rank. The caller holds mu.
func (f *Pool) rankCandidate(c *candidate, now time.Duration) candidateRank {
	r := candidateRank{round: c.attempts, expectedRTT: c.expectedRTT, rttvar: c.rtt.RTTVAR}
	switch {
	case !c.slots.isFree(f.perServer):
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

// rests reports whether c is not asked first because it was silent.
func (c *candidate) isBackedOff(now time.Duration) bool {
	known := c.zoneHealth != nil && c.zoneHealth.hasAnswered
	return now < c.avoidUntil || c.zoneHealth != nil && now < c.zoneHealth.avoidUntil || !known && c.otherZonesHealth != nil && now < c.otherZonesHealth.avoidUntil
}

// findCandidate returns the candidate with an address. There is one: candidates stay.
func findCandidate(all []candidate, addr netip.AddrPort) *candidate {
	return &all[slices.IndexFunc(all, func(c candidate) bool { return c.addr == addr })]
}
