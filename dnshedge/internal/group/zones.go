package group

import (
	"hash/maphash"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// silentZones records the domains about which a server is silent. A resolver leaves questions about a domain unanswered
// if the domain's authoritative servers are dead. These questions must not count against the resolver, and must not
// take time from other servers. The zero value is ready. It is safe for concurrent use.
//
// Silence does not show where a zone begins. So an unanswered question counts for each domain that contains its name,
// and an answer resets each of these domains. The server is silent about a domain after unanswered questions below
// minSilentChildren of its children in a row.
type silentZones struct {
	zoneCount atomic.Int32 // length of byHash; stored under mu

	mu       sync.Mutex // guards the fields below
	seed     maphash.Seed
	byHash   map[uint64]*suspectZone // nil before first use
	suspects []*suspectZone          // domains with fewer than minSilentChildren misses
	silent   []*suspectZone          // the other domains
}

const (
	// maxZones is the maximum number of suspect domains, and of silent domains. A new domain replaces a random one.
	// Together they take less than 500 KiB for each server.
	maxZones          = 1024
	minSilentChildren = 3 // different children of a domain with unanswered questions, in a row, that make it silent
	minZoneLabels     = 2 // least labels of a recorded domain; domains above have many servers and contain most names
)

// zoneSilenceLifetime is the time after the last unanswered question for which a server counts as silent about a
// domain.
const zoneSilenceLifetime = 10 * time.Second

// A suspectZone is a domain with unanswered questions.
type suspectZone struct {
	hash           uint64                    // of the domain's name
	index          int                       // position in silentZones.suspects or silentZones.silent
	missedChildren [minSilentChildren]uint64 // hashes of the different children that were missed in a row
	misses         int                       // number of missedChildren
	silentSince    time.Time                 // time at which misses reached minSilentChildren
	lastMiss       time.Time                 // time of the last unanswered question
	lastAnswer     time.Time                 // time of the last answer; zero: none since the domain was recorded
}

// isSilent reports whether the number of misses has reached minSilentChildren.
func (z *suspectZone) isSilent() bool { return z.misses == minSilentChildren }

// An enclosingDomain is a domain that contains a name, or the name itself.
type enclosingDomain struct {
	domain uint64 // hash of the domain
	child  uint64 // hash of the domain's child that contains the name; domain if the domain is the name
	isName bool   // the domain is the name, and it has a parent with minZoneLabels labels or more
}

// enclosingDomains yields the domains that contain q's name, from minZoneLabels labels to the name itself. The caller
// holds mu.
func (z *silentZones) enclosingDomains(q *wire.Query) iter.Seq[enclosingDomain] {
	return func(yield func(enclosingDomain) bool) {
		var buf [wire.MaxName]byte
		name := wire.AppendLower(buf[:0], q.Name)
		var labels [wire.MaxName / 2]uint8 // where each begins
		n := 0
		for at := 0; at < len(name)-1; at += 1 + int(name[at]) {
			labels[n] = uint8(at)
			n++
		}
		hash := func(i int) uint64 { return maphash.Bytes(z.seed, name[labels[i]:]) }
		if n < minZoneLabels {
			return
		}
		one := enclosingDomain{domain: hash(n - minZoneLabels)}
		for i := n - minZoneLabels; i >= 0; i-- {
			one.child, one.isName = one.domain, i == 0 && n > minZoneLabels
			if i > 0 {
				one.child = hash(i - 1)
			}
			if !yield(one) {
				return
			}
			one.domain = one.child
		}
	}
}

// zoneList returns the list that contains a domain: suspects or silent. The caller holds mu.
func (z *silentZones) zoneList(one *suspectZone) *[]*suspectZone {
	if one.isSilent() {
		return &z.silent
	}
	return &z.suspects
}

// addZone adds a domain to its list. If the list is full, it removes a random one first. The caller holds mu.
func (z *silentZones) addZone(one *suspectZone) {
	in := z.zoneList(one)
	if len(*in) == maxZones {
		z.removeZone((*in)[rand.IntN(maxZones)])
	}
	one.index = len(*in)
	*in = append(*in, one)
	z.byHash[one.hash] = one
	z.zoneCount.Store(int32(len(z.byHash)))
}

// removeZone removes a domain from its list. The caller holds mu.
func (z *silentZones) removeZone(one *suspectZone) {
	in := z.zoneList(one)
	end := len(*in) - 1
	last := (*in)[end]
	(*in)[one.index], (*in)[end] = last, nil
	last.index = one.index
	*in = (*in)[:end]
	delete(z.byHash, one.hash)
	z.zoneCount.Store(int32(len(z.byHash)))
}

// setMisses sets the number of misses of a domain and moves it to the right list. The caller holds mu.
func (z *silentZones) setMisses(one *suspectZone, misses int) {
	if (misses == minSilentChildren) == one.isSilent() {
		one.misses = misses
		return
	}
	z.removeZone(one)
	one.misses = misses
	z.addZone(one)
}

// recordMiss records that a question, sent at the given time, had no answer. It returns the time since which the server
// has been silent about a domain that contains the name, the earliest of several. It returns zero if the server is
// silent about none.
func (z *silentZones) recordMiss(q *wire.Query, sent, now time.Time) (since time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.byHash == nil {
		z.byHash, z.seed = make(map[uint64]*suspectZone), maphash.MakeSeed()
	}
	for l := range z.enclosingDomains(q) {
		one := z.byHash[l.domain]
		if one == nil {
			if l.isName || !since.IsZero() { // nothing is to be found out
				continue
			}
			one = &suspectZone{hash: l.domain}
			z.addZone(one)
		}
		one.lastMiss = now
		if !one.isSilent() && !one.lastAnswer.After(sent) && !slices.Contains(one.missedChildren[:one.misses], l.child) {
			one.missedChildren[one.misses] = l.child
			z.setMisses(one, one.misses+1)
			if one.isSilent() {
				one.silentSince = now
			}
		}
		if one.isSilent() && (since.IsZero() || one.silentSince.Before(since)) {
			since = one.silentSince
		}
	}
	return since
}

// recordAnswer records that a question was answered, which ends the silence about all domains that contain its name.
func (z *silentZones) recordAnswer(q *wire.Query) {
	if z.zoneCount.Load() == 0 {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	for l := range z.enclosingDomains(q) {
		one := z.byHash[l.domain]
		if one == nil {
			continue
		}
		now := time.Now()
		if one.misses == 0 && now.Sub(one.lastAnswer) >= zoneSilenceLifetime { // nobody waits for an answer that long
			z.removeZone(one)
			continue
		}
		z.setMisses(one, 0)
		one.silentSince, one.lastAnswer = time.Time{}, now
	}
}

// isSilent reports whether the server is silent about a domain that contains the name of q.
func (z *silentZones) isSilent(q *wire.Query) bool {
	if z.zoneCount.Load() == 0 {
		return false
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if len(z.silent) == 0 {
		return false
	}
	for l := range z.enclosingDomains(q) {
		if one := z.byHash[l.domain]; one != nil && one.isSilent() && time.Since(one.lastMiss) < zoneSilenceLifetime {
			return true
		}
	}
	return false
}
