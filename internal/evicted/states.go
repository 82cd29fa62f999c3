// Package evicted keeps the learned state of keys that are evicted from a bounded table.
package evicted

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// States is a bounded table of the states of evicted keys. The zero value is an empty table. It is not safe for concurrent use.
//
// A full table deletes the states that were learned from the fewest calls. Each hour of age halves the number of calls that counts. So to
// displace a state, an attacker needs about as many calls as the state was learned from.
type States[K comparable, V any] struct {
	all map[K]state[V]
}

type state[V any] struct {
	value V
	calls int64
	worth float64 // log2 of the number of calls, plus the time of Put in hours
}

// Put stores v, which was learned from the given number of calls. If the table has more than limit states then, it deletes some. The
// argument at is the time of any monotonic clock.
func (s *States[K, V]) Put(key K, v V, calls int64, at time.Duration, limit int) {
	if s.all == nil {
		s.all = make(map[K]state[V])
	}
	s.all[key] = state[V]{v, calls, math.Log2(1+float64(calls)) + at.Hours()}
	if limit = max(limit, 1); len(s.all) > limit {
		s.trim(limit - limit/16)
	}
}

// trim deletes the states with the smallest worth until the given number of states is left.
func (s *States[K, V]) trim(left int) {
	type entry struct {
		key   K
		worth float64
	}
	all := make([]entry, 0, len(s.all))
	for key, v := range s.all {
		all = append(all, entry{key, v.worth})
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.worth, b.worth) })
	for _, e := range all[:len(all)-left] {
		delete(s.all, e.key)
	}
}

// Take removes the state of a key and returns it with the number of calls from which it was learned. ok is false if there is none.
func (s *States[K, V]) Take(key K) (v V, calls int64, ok bool) {
	k, ok := s.all[key]
	delete(s.all, key)
	return k.value, k.calls, ok
}

func (s *States[K, V]) Len() int { return len(s.all) }

// Each calls f for each state, with the number of calls from which it was learned. If f returns true, Each stores the changes that f made
// to v. If f returns false, it deletes the state.
func (s *States[K, V]) Each(f func(key K, v *V, calls int64) bool) {
	for key, k := range s.all {
		if f(key, &k.value, k.calls) {
			s.all[key] = k
		} else {
			delete(s.all, key)
		}
	}
}
