// Package evicted keeps the learned state of keys that are evicted from a bounded table.
package evicted

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// States is a bounded table of the states of evicted keys. When it is full, it deletes the states that were learned from the fewest
// calls. A state that is an hour older counts as if it was learned from half as many. So an attacker needs as many calls to delete a
// state as it was learned from. The zero value is empty. It is not safe for concurrent use.
type States[K comparable, V any] struct {
	all map[K]state[V]
}

type state[V any] struct {
	value V
	calls int64
	worth float64 // the binary logarithm of the calls, plus the hours at which it was put
}

// Put stores v, which was learned from the given number of calls, and keeps at most limit states. The time is any that rises.
func (s *States[K, V]) Put(key K, v V, calls int64, at time.Duration, limit int) {
	if s.all == nil {
		s.all = make(map[K]state[V])
	}
	s.all[key] = state[V]{v, calls, math.Log2(1+float64(calls)) + at.Hours()}
	if limit = max(limit, 1); len(s.all) > limit {
		s.trim(limit - limit/16)
	}
}

// trim deletes the states of least worth until the given number remain.
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

// Take removes a state and returns it with the number of calls that it was learned from.
func (s *States[K, V]) Take(key K) (v V, calls int64, ok bool) {
	k, ok := s.all[key]
	delete(s.all, key)
	return k.value, k.calls, ok
}

// Len returns the number of states.
func (s *States[K, V]) Len() int { return len(s.all) }

// Each calls f for all states, with the number of calls that each was learned from. It deletes the states for which f returns false.
func (s *States[K, V]) Each(f func(key K, v *V, calls int64) bool) {
	for key, k := range s.all {
		if f(key, &k.value, k.calls) {
			s.all[key] = k
		} else {
			delete(s.all, key)
		}
	}
}
