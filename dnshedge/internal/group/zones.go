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

// zones are the domains that a server is silent about, as a resolver is about one whose own servers are dead. They are no evidence against
// the server, and what does not help them is not taken from the others. The zero value is ready. It is safe for concurrent use.
//
// Silence does not say where a zone begins, and so the questions do. A question without an answer counts for each domain that its name
// is below, and an answer clears each of them. The server is silent about a domain if it left questions below namesToSilence of its
// children unanswered, and answered none below it since. So a.co.example and b.co.example are two zones as soon as one of them is answered
// for, and one zone is not two because its names are long.
type zones struct {
	known atomic.Int32 // how many; stored under mu

	mu       sync.Mutex // guards the fields below
	seed     maphash.Seed
	byHash   map[uint64]*zone // nil before first use
	suspects []*zone          // with fewer misses than namesToSilence
	silences []*zone          // the others
}

const (
	// maxZones is how many suspects are known at a time, and how many others. Another one takes the place of any: where there are more in
	// turn than that, some are known. They take less than 500 KiB for each server.
	maxZones       = 1024
	namesToSilence = 3 // different children of a domain, in a row, without an answer
	leastLabels    = 2 // of a domain: those above have many servers, and most names
)

// zoneRest is how long a server is silent about a zone after the last question that it did not answer. Then it is asked again, even if
// others answer.
const zoneRest = 10 * time.Second

// zone is a domain of which questions were not answered.
type zone struct {
	hash     uint64
	at       int                    // its place among the suspects or silences
	missed   [namesToSilence]uint64 // hashes of different children in a row
	misses   int                    // of missed
	since    time.Time              // when misses became namesToSilence
	last     time.Time              // when there was a miss
	answered time.Time              // the last time; zero: not since it is known
}

// silent reports whether enough questions were not answered.
func (z *zone) silent() bool { return z.misses == namesToSilence }

// level is a domain that a name is in.
type level struct {
	domain uint64 // its hash
	child  uint64 // the hash of the child that the name is in; domain itself if that is the name
	leaf   bool   // it is the name, and has a parent that may be a zone
}

// levels are the domains that q's name is in, the largest first. The caller holds mu.
func (z *zones) levels(q *wire.Query) iter.Seq[level] {
	return func(yield func(level) bool) {
		var buf [wire.MaxName]byte
		name := wire.AppendLower(buf[:0], q.Name)
		var labels [wire.MaxName / 2]uint8 // where each begins
		n := 0
		for at := 0; at < len(name)-1; at += 1 + int(name[at]) {
			labels[n] = uint8(at)
			n++
		}
		hash := func(i int) uint64 { return maphash.Bytes(z.seed, name[labels[i]:]) }
		if n < leastLabels {
			return
		}
		one := level{domain: hash(n - leastLabels)}
		for i := n - leastLabels; i >= 0; i-- {
			one.child, one.leaf = one.domain, i == 0 && n > leastLabels
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

// list returns the suspects or the silences, which a zone is among. The caller holds mu.
func (z *zones) list(one *zone) *[]*zone {
	if one.silent() {
		return &z.silences
	}
	return &z.suspects
}

// put adds a zone. The caller holds mu.
func (z *zones) put(one *zone) {
	in := z.list(one)
	if len(*in) == maxZones {
		z.drop((*in)[rand.IntN(maxZones)])
	}
	one.at = len(*in)
	*in = append(*in, one)
	z.byHash[one.hash] = one
	z.known.Store(int32(len(z.byHash)))
}

// drop removes a zone. The caller holds mu.
func (z *zones) drop(one *zone) {
	in := z.list(one)
	end := len(*in) - 1
	last := (*in)[end]
	(*in)[one.at], (*in)[end] = last, nil
	last.at = one.at
	*in = (*in)[:end]
	delete(z.byHash, one.hash)
	z.known.Store(int32(len(z.byHash)))
}

// count sets how many misses a zone has. The caller holds mu.
func (z *zones) count(one *zone, misses int) {
	if (misses == namesToSilence) == one.silent() {
		one.misses = misses
		return
	}
	z.drop(one)
	one.misses = misses
	z.put(one)
}

// miss counts a question, sent then, that has no answer. It returns since when the server has been silent about a domain that it is in;
// zero: it is not.
func (z *zones) miss(q *wire.Query, sent, now time.Time) (since time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.byHash == nil {
		z.byHash, z.seed = make(map[uint64]*zone), maphash.MakeSeed()
	}
	for l := range z.levels(q) {
		one := z.byHash[l.domain]
		if one == nil {
			if l.leaf || !since.IsZero() { // nothing is to be found out
				continue
			}
			one = &zone{hash: l.domain}
			z.put(one)
		}
		one.last = now
		if !one.silent() && !one.answered.After(sent) && !slices.Contains(one.missed[:one.misses], l.child) {
			one.missed[one.misses] = l.child
			z.count(one, one.misses+1)
			if one.silent() {
				one.since = now
			}
		}
		if one.silent() && (since.IsZero() || one.since.Before(since)) {
			since = one.since
		}
	}
	return since
}

// answer is called when a question was answered.
func (z *zones) answer(q *wire.Query) {
	if z.known.Load() == 0 {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	for l := range z.levels(q) {
		one := z.byHash[l.domain]
		if one == nil {
			continue
		}
		now := time.Now()
		if one.misses == 0 && now.Sub(one.answered) >= zoneRest { // nobody waits for an answer that long
			z.drop(one)
			continue
		}
		z.count(one, 0)
		one.since, one.answered = time.Time{}, now
	}
}

// silent reports whether the server is silent about a domain that q is in.
func (z *zones) silent(q *wire.Query) bool {
	if z.known.Load() == 0 {
		return false
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if len(z.silences) == 0 {
		return false
	}
	for l := range z.levels(q) {
		if one := z.byHash[l.domain]; one != nil && one.silent() && time.Since(one.last) < zoneRest {
			return true
		}
	}
	return false
}
