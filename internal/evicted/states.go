// Package evicted keeps the learned states of keys after the keys were evicted from a bounded table.
package evicted

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// States holds the learned states of keys that were evicted, up to a limit. The zero value is empty. It must not be used
// concurrently.
//
// If there are too many states, the states that were learned from the fewest calls are deleted first. Each hour of age halves
// the number of calls that counts for a state. Therefore an attacker who wants to displace a state needs about as many calls as
// the state was learned from.
type States[K comparable, V any] struct {
	all map[K]state[V] // states by key
}

// A state is one stored state, with the data that decide when it is deleted.
type state[V any] struct {
	value    V       // the learned state
	calls    int64   // number of calls from which value was learned
	priority float64 // log2 of the number of calls, plus the time of Put in hours; states with the lowest priority are deleted first
}

// Put stores the state v of an evicted key. The argument calls is the number of calls from which v was learned. If there are
// then more than limit states, Put deletes the states with the lowest priority. The argument at is the current time of a
// monotonic clock, which makes later states more valuable.
func (s *States[K, V]) Put(key K, v V, calls int64, at time.Duration, limit int) {
	if s.all == nil {
		s.all = make(map[K]state[V])
	}
	s.all[key] = state[V]{v, calls, math.Log2(1+float64(calls)) + at.Hours()}
	if limit = max(limit, 1); len(s.all) > limit {
		s.trim(limit - limit/16)
	}
}

// trim deletes the states with the lowest priority, until only n states are left.
func (s *States[K, V]) trim(n int) {
	type entry struct {
		key   K
		worth float64
	}
	all := make([]entry, 0, len(s.all))
	for key, v := range s.all {
		all = append(all, entry{key, v.priority})
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.worth, b.worth) })
	for _, e := range all[:len(all)-n] {
		delete(s.all, e.key)
	}
}

// Take removes the state of the key, for a key that is in use again. It returns the state, and the number of calls from
// which it was learned. ok is false if there is no state.
func (s *States[K, V]) Take(key K) (v V, calls int64, ok bool) {
	k, ok := s.all[key]
	delete(s.all, key)
	return k.value, k.calls, ok
}

// Len returns the number of stored states.
func (s *States[K, V]) Len() int { return len(s.all) }

// Each calls f for every state, with the number of calls from which the state was learned. f may modify *v. If f returns false,
// the state is deleted.
func (s *States[K, V]) Each(f func(key K, v *V, calls int64) bool) {
	for key, k := range s.all {
		if f(key, &k.value, k.calls) {
			s.all[key] = k
		} else {
			delete(s.all, key)
		}
	}
}
