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

// silentZones records the DNS domains about which one server is silent: it leaves questions about their names
// unanswered. A resolver does so if the authoritative servers of a domain are dead. Questions about these domains must
// not count against the resolver, and must not take time from other servers.
//
// An unanswered question does not show which domain is dead. So it counts as a miss for each domain that contains its
// name, and an answer resets each of these domains. The server is silent about a domain after misses for
// minSilentChildren different children in a row.
//
// The zero value is ready. It is safe for concurrent use.
type silentZones struct {
	zoneCount atomic.Int32 // length of byHash, to be read without mu; stored under mu

	mu       sync.Mutex              // guards the fields below
	seed     maphash.Seed            // seed of the domain hashes
	byHash   map[uint64]*suspectZone // all recorded domains by the hash of their name; nil before the first miss
	suspects []*suspectZone          // domains with fewer than minSilentChildren misses
	silent   []*suspectZone          // domains with minSilentChildren misses
}

const (
	// maxZones is the maximum length of the list of suspect domains, and of the list of silent domains. In a full list, a
	// new domain replaces a random one. Both lists together take less than 500 KiB for each server.
	maxZones          = 1024
	minSilentChildren = 3 // number of different children of a domain that must be missed in a row before the domain is silent
	minZoneLabels     = 2 // least number of labels of a recorded domain; shorter domains have many servers and contain most names
)

// zoneSilenceLifetime is the time after which the silence about a domain expires, counted from the last unanswered
// question.
const zoneSilenceLifetime = 10 * time.Second

// A suspectZone is a DNS domain with unanswered questions, as recorded by silentZones. silentZones.mu guards it.
type suspectZone struct {
	hash           uint64                    // hash of the domain's name; the key in silentZones.byHash
	listIndex      int                       // index in silentZones.silent if isSilent is true, or else in silentZones.suspects
	missedChildren [minSilentChildren]uint64 // hashes of the children with an unanswered question since the last answer; elements 0 to misses-1 are in use
	misses         int                       // number of used elements of missedChildren
	silentSince    time.Time                 // time at which misses reached minSilentChildren; zero: not reached
	lastMiss       time.Time                 // time at which the last unanswered question was recorded
	lastAnswer     time.Time                 // time of the last answered question; zero: none since the domain was recorded
}

// isSilent reports whether the domain counts as silent: questions about minSilentChildren different children of it had
// no response in a row. It does not check zoneSilenceLifetime.
func (z *suspectZone) isSilent() bool { return z.misses == minSilentChildren }

// An enclosingDomain is a domain that contains a question's name, or that name itself. It also identifies the child of
// that domain that contains the name. For the name a.b.example.com and the domain example.com, the child is
// b.example.com.
type enclosingDomain struct {
	domain uint64 // hash of the domain's name
	child  uint64 // hash of the name of the child that contains the question's name; domain if the domain is that name
	isName bool   // the domain is the question's name, and the name has more than minZoneLabels labels
}

// enclosingDomains yields the domains that contain the name of q, largest domain first, down to the name itself. The
// first one has minZoneLabels labels. It yields nothing for a name with fewer labels. The caller must hold mu.
func (z *silentZones) enclosingDomains(q *wire.Query) iter.Seq[enclosingDomain] {
	return func(yield func(enclosingDomain) bool) {
		var buf [wire.MaxName]byte
		name := wire.AppendLower(buf[:0], q.Name)
		var labels [wire.MaxName / 2]uint8 // offset of each label
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

// zoneList returns the list that holds s: z.silent if the server is known to be silent about the zone of s, or else
// z.suspects. The caller must hold mu.
func (z *silentZones) zoneList(s *suspectZone) *[]*suspectZone {
	if s.isSilent() {
		return &z.silent
	}
	return &z.suspects
}

// addZone adds zone to byHash, and to the list of silent or of suspect domains, as its misses demand. If that list is
// full, it removes a random element first. The caller must hold mu.
func (z *silentZones) addZone(zone *suspectZone) {
	in := z.zoneList(zone)
	if len(*in) == maxZones {
		z.removeZone((*in)[rand.IntN(maxZones)])
	}
	zone.listIndex = len(*in)
	*in = append(*in, zone)
	z.byHash[zone.hash] = zone
	z.zoneCount.Store(int32(len(z.byHash)))
}

// removeZone removes zone from byHash and from the list that holds it. The caller must hold mu.
func (z *silentZones) removeZone(zone *suspectZone) {
	in := z.zoneList(zone)
	end := len(*in) - 1
	last := (*in)[end]
	(*in)[zone.listIndex], (*in)[end] = last, nil
	last.listIndex = zone.listIndex
	*in = (*in)[:end]
	delete(z.byHash, zone.hash)
	z.zoneCount.Store(int32(len(z.byHash)))
}

// setMisses sets the number of misses of zone. It moves zone between the lists of suspect and of silent domains if the
// number reaches, or falls below, minSilentChildren. The caller must hold mu.
func (z *silentZones) setMisses(zone *suspectZone, misses int) {
	if (misses == minSilentChildren) == zone.isSilent() {
		zone.misses = misses
		return
	}
	z.removeZone(zone)
	zone.misses = misses
	z.addZone(zone)
}

// recordMiss records that the question q has no response. q was sent at the time sent, and now is the present time.
//
// It returns the time since which the server has been silent about a domain that contains the name of q. If there are
// several such domains, the earliest time counts. It returns zero if the server is silent about none of them.
func (z *silentZones) recordMiss(q *wire.Query, sent, now time.Time) (since time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.byHash == nil {
		z.byHash, z.seed = make(map[uint64]*suspectZone), maphash.MakeSeed()
	}
	for l := range z.enclosingDomains(q) {
		one := z.byHash[l.domain]
		if one == nil {
			if l.isName || !since.IsZero() { // its parent is recorded, or a domain that contains it is silent
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

// recordAnswer records that the server has answered q. This ends the silence about all domains that contain the name of
// q.
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
		if one.misses == 0 && now.Sub(one.lastAnswer) >= zoneSilenceLifetime { // no query waits that long, so no miss from before the answer can follow
			z.removeZone(one)
			continue
		}
		z.setMisses(one, 0)
		one.silentSince, one.lastAnswer = time.Time{}, now
	}
}

// isSilent reports whether the server is silent about any domain that contains the name of q, and has been so within
// zoneSilenceLifetime.
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
