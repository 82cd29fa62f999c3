// Package shelf remembers what rests on calls, within a bound.
package shelf

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A Shelf remembers things by key. Where room is needed, those go first that rest on the fewest
// calls, and one that is an hour older counts as if half as many: strangers who want something forgotten have to
// make about as many calls as it rests on. The zero value is empty. It is guarded by whoever has it.
type Shelf[K comparable, V any] struct {
	all map[K]kept[V]
}

type kept[V any] struct {
	value V
	calls int64
	worth float64 // the logarithm of the calls, and one for each hour at which it came
}

// Put remembers v, which rests on so many calls, at the given time, and so many things at most.
func (s *Shelf[K, V]) Put(key K, v V, calls int64, at time.Duration, most int) {
	if s.all == nil {
		s.all = make(map[K]kept[V])
	}
	s.all[key] = kept[V]{v, calls, math.Log2(1+float64(calls)) + at.Hours()}
	if most = max(most, 1); len(s.all) > most {
		s.trim(most - most/16)
	}
}

// trim leaves so many.
func (s *Shelf[K, V]) trim(left int) {
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

// Take returns what is remembered and the calls that it rests on, and forgets it.
func (s *Shelf[K, V]) Take(key K) (v V, calls int64, ok bool) {
	k, ok := s.all[key]
	delete(s.all, key)
	return k.value, k.calls, ok
}

// Len returns how many things are remembered.
func (s *Shelf[K, V]) Len() int { return len(s.all) }

// Each calls f for all, with the calls that they rest on, and forgets those for which it returns false.
func (s *Shelf[K, V]) Each(f func(key K, v *V, calls int64) bool) {
	for key, k := range s.all {
		if f(key, &k.value, k.calls) {
			s.all[key] = k
		} else {
			delete(s.all, key)
		}
	}
}
