package fleet

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	minLate = 20 * time.Millisecond  // before which no server that was met is late
	grain   = 5 * time.Millisecond   // by which the times of any server deviate (RFC 6298 §2.3)
	coldRTO = 200 * time.Millisecond // of a server that was never met, unless most take longer
	maxRTO  = time.Second            // before another server, or the same, is asked

	maxTries = 3 // of a question at a server, over UDP (RFC 9520 §3.1)
)

// candidate is one of the servers that a task may ask.
type candidate struct {
	*server
	stand  *standing // nil: it was not asked yet
	wide   *standing // for zones that it has not answered for; may be nil
	addr   netip.AddrPort
	lame   bool    // it was found to be lame not long ago
	marked bool    // there is something that speaks against it in the zone
	met    bool    // an answer has come from it before
	failed bool    // it is not asked again for this task
	avoid  bool    // it is asked after all others
	tries  int     // queries over UDP
	expect float32 // the time in ns that an answer is expected to take

	late time.Duration // after which an answer is late
	rto  time.Duration // after which none is awaited before another server is asked

	slow    bool          // its answers take twice as long as is usual, at least
	strange time.Duration // what late would be if it had never been met
}

// candidates returns those of the addresses that may be asked and are not among the old ones.
func (f *Fleet) candidates(t *Task, old []candidate, all []netip.AddrPort) []candidate {
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if old == nil {
		old = make([]candidate, 0, len(all))
	}
	about := f.stands.topicOf(t.Zone, kindOf(t.Type))
next:
	for _, at := range all {
		at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		if !f.conf.allows(at, t.Any) {
			continue
		}
		for i := range old {
			if old[i].addr == at {
				continue next
			}
		}
		s := f.servers.lookUp(at, now)
		c := candidate{server: s, addr: at, met: s.met(), avoid: slices.Contains(t.Avoid, at)}
		c.stand, c.wide = f.stands.all[standingKey{at, about}], f.stands.all[standingKey{at, unknown}]
		c.marked, c.lame = f.lame.has(lameKey{t.Zone, at}, t.Name, now)
		prior := f.first.median
		c.strange = f.first.late
		if c.met {
			c.expect = s.expect(now, prior)
			c.late = rtt.Estimate[float32]{SRTT: c.expect, RTTVAR: s.rtt.RTTVAR}.Bound(float32(grain), minLate)
			c.rto = min(2*c.late, maxRTO)
			c.slow = c.expect > float32(f.first.late)
		} else {
			c.expect = float32(prior) * (0.8 + 0.4*rand.Float32())
			if s.slots.used > 0 {
				c.expect = max(c.expect, float32(now-s.asked)) // it is being met, and takes longer than that
			}
			c.late, c.rto = f.first.late, max(coldRTO, f.first.late)
		}
		old = append(old, c)
	}
	return old
}

// best returns the server to ask next, or nil if all that may be asked have been asked often enough. All have their turn before
// one is asked again, but for those that are not likely to answer. The caller holds mu.
func (f *Fleet) best(all []candidate, now time.Duration) *candidate {
	var best *candidate
	var bestRank rank
	for i := range all {
		if c := &all[i]; !c.failed && c.tries < maxTries {
			if r := f.rank(c, now); best == nil || r.less(bestRank) {
				best, bestRank = c, r
			}
		}
	}
	return best
}

// chooseHedge returns the server to ask because another one is late, or nil: one that was not asked yet
// and is as likely to answer as any, if possible one that was never met. If there is none, it is
// one that was asked once and has always answered: the query was probably lost.
func (f *Fleet) chooseHedge(all []candidate) *candidate {
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	least := full
	for i := range all {
		if c := &all[i]; !c.failed {
			least = min(least, f.rank(c, now).class)
		}
	}
	var best *candidate
	var bestRank rank
	for i := range all {
		c := &all[i]
		r := f.rank(c, now)
		r.met = c.met
		switch {
		case c.failed || r.class > least || r.class == full:
		case c.tries > 1 || c.tries == 1 && (!c.met || c.stand != nil && c.stand.silent > 0):
		case best == nil || r.less(bestRank):
			best, bestRank = c, r
		}
	}
	return best
}

// rank is how good a choice a candidate is; less is better.
type rank struct {
	turn   int // how often it was asked; one more if it is not likely to answer, and two if it has answered in vain
	class  class
	met    bool // of a hedge
	expect float32
	rttvar float32
}

// class is how likely a server is to answer. Less is more.
type class int

const (
	usual class = iota
	resting
	lame
	full // all its places are taken
)

func (r rank) less(o rank) bool {
	switch {
	case r.turn != o.turn:
		return r.turn < o.turn
	case r.class != o.class:
		return r.class < o.class
	case r.met != o.met:
		return o.met
	case r.expect != o.expect:
		return r.expect < o.expect
	}
	return r.rttvar < o.rttvar
}

// rank returns c's rank. The caller holds mu.
func (f *Fleet) rank(c *candidate, now time.Duration) rank {
	r := rank{turn: c.tries, expect: c.expect, rttvar: c.rtt.RTTVAR}
	switch {
	case !c.slots.free(f.perServer):
		r.class = full
	case c.lame:
		r.class = lame
	case c.rests(now) || now < f.families[familyOf(c.addr)].until:
		r.class = resting
	}
	if r.class > usual {
		r.turn++
	}
	if c.avoid {
		r.turn += 2
	}
	return r
}

// rests reports whether c is not asked first because it was silent.
func (c *candidate) rests(now time.Duration) bool {
	known := c.stand != nil && c.stand.known
	return now < c.until || c.stand != nil && now < c.stand.until || !known && c.wide != nil && now < c.wide.until
}

// candidateOf returns the candidate with an address. There is one: candidates stay.
func candidateOf(all []candidate, addr netip.AddrPort) *candidate {
	return &all[slices.IndexFunc(all, func(c candidate) bool { return c.addr == addr })]
}
