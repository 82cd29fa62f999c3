package policy

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// An evictedStates is a bounded table of what was learned of evicted keys. Where room is needed, the states that were learned from
// the fewest calls go first; a state that is an hour older counts as if learned from half as many. So strangers cannot evict a
// state with fewer calls than it was learned from. The zero value is empty. It is not safe for concurrent use.
type evictedStates[K comparable, V any] struct {
	all map[K]evictedState[V]
}

type evictedState[V any] struct {
	value V
	calls int64
	worth float64 // the binary logarithm of the calls, plus the hours at which it was put
}

// Put stores v, which was learned from so many calls, at the given time, and keeps at most so many states.
func (s *evictedStates[K, V]) Put(key K, v V, calls int64, at time.Duration, most int) {
	if s.all == nil {
		s.all = make(map[K]evictedState[V])
	}
	s.all[key] = evictedState[V]{v, calls, math.Log2(1+float64(calls)) + at.Hours()}
	if most = max(most, 1); len(s.all) > most {
		s.trim(most - most/16)
	}
}

// trim deletes the states of least worth until left remain.
func (s *evictedStates[K, V]) trim(left int) {
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
func (s *evictedStates[K, V]) Take(key K) (v V, calls int64, ok bool) {
	k, ok := s.all[key]
	delete(s.all, key)
	return k.value, k.calls, ok
}

// Each calls f for all states, with the calls that they were learned from, and deletes those for which it returns false.
func (s *evictedStates[K, V]) Each(f func(key K, v *V, calls int64) bool) {
	for key, k := range s.all {
		if f(key, &k.value, k.calls) {
			s.all[key] = k
		} else {
			delete(s.all, key)
		}
	}
}
