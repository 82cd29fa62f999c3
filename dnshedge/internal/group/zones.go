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

// silentZones are the domains that a server is silent about, as a resolver is if a domain's own servers are dead. Their
// questions are no evidence against the server, and do not take time from other servers. The zero value is ready. It is
// safe for concurrent use.
//
// Silence does not show where a zone begins, so the names of questions do. A question without an answer counts for each
// domain above its name, and an answer clears each of them. The server is silent about a domain if questions below
// minSilentChildren of its children were unanswered, and none was answered since.
type silentZones struct {
	zoneCount atomic.Int32 // how many; stored under mu

	mu       sync.Mutex // guards the fields below
	seed     maphash.Seed
	byHash   map[uint64]*suspectZone // nil before first use
	suspects []*suspectZone          // with fewer misses than minSilentChildren
	silent   []*suspectZone          // the others
}

const (
	// maxZones is how many suspects are known at a time, and how many others. Another one takes the place of any: where there are more in
	// turn than that, some are known. They take less than 500 KiB for each server.
	maxZones          = 1024
	minSilentChildren = 3 // different children of a domain, in a row, without an answer
	minZoneLabels     = 2 // of a domain: those above have many servers, and most names
)

// zoneSilenceLifetime is how long a server is silent about a zone after the last question that it did not answer. Then it is asked again, even if
// others answer.
const zoneSilenceLifetime = 10 * time.Second

// suspectZone is a domain of which questions were not answered.
type suspectZone struct {
	hash           uint64
	index          int                       // position among the suspect or silent zones
	missedChildren [minSilentChildren]uint64 // hashes of different children in a row
	misses         int                       // of missed
	silentSince    time.Time                 // when misses became minSilentChildren
	lastMiss       time.Time                 // when there was a miss
	lastAnswer     time.Time                 // the last time; zero: not since it is known
}

// isSilent reports whether enough questions were not answered.
func (z *suspectZone) isSilent() bool { return z.misses == minSilentChildren }

// enclosingDomain is a domain that a name is in.
type enclosingDomain struct {
	domain uint64 // its hash
	child  uint64 // the hash of the child that the name is in; domain itself if that is the name
	isName bool   // it is the name, and has a parent that may be a zone
}

// enclosingDomains are the domains that q's name is in, the largest first. The caller holds mu.
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

// listOf returns the list that a zone is in: the suspect or the silent zones. The caller holds mu.
func (z *silentZones) listOf(one *suspectZone) *[]*suspectZone {
	if one.isSilent() {
		return &z.silent
	}
	return &z.suspects
}

// addZone adds a zone. The caller holds mu.
func (z *silentZones) addZone(one *suspectZone) {
	in := z.listOf(one)
	if len(*in) == maxZones {
		z.removeZone((*in)[rand.IntN(maxZones)])
	}
	one.index = len(*in)
	*in = append(*in, one)
	z.byHash[one.hash] = one
	z.zoneCount.Store(int32(len(z.byHash)))
}

// removeZone removes a zone. The caller holds mu.
func (z *silentZones) removeZone(one *suspectZone) {
	in := z.listOf(one)
	end := len(*in) - 1
	last := (*in)[end]
	(*in)[one.index], (*in)[end] = last, nil
	last.index = one.index
	*in = (*in)[:end]
	delete(z.byHash, one.hash)
	z.zoneCount.Store(int32(len(z.byHash)))
}

// setUnanswered sets how many misses a zone has. The caller holds mu.
func (z *silentZones) setUnanswered(one *suspectZone, misses int) {
	if (misses == minSilentChildren) == one.isSilent() {
		one.misses = misses
		return
	}
	z.removeZone(one)
	one.misses = misses
	z.addZone(one)
}

// recordMiss counts a question, sent then, that has no answer. It returns since when the server has been silent about a domain that it is in;
// zero: it is not.
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
			z.setUnanswered(one, one.misses+1)
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

// recordAnswer is called when a question was answered.
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
		z.setUnanswered(one, 0)
		one.silentSince, one.lastAnswer = time.Time{}, now
	}
}

// isSilent reports whether the server is silent about a domain that q is in.
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
