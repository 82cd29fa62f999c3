package fleet

// slots are places for queries, and those who wait for one, in the order in which they came.
// They are guarded by Fleet.mu.
type slots struct {
	used int32
	last *waiter // whose next is the first; nil: nobody waits
}

// waiter is one who waits for a place. It is guarded by Fleet.mu; only ready is received from without.
type waiter struct {
	ready chan struct{} // closed when it has the place
	has   bool
	gone  bool
	next  *waiter
}

// free reports whether one of max places is to be had at once.
func (s *slots) free(max int32) bool { return s.used < max && s.last == nil }

// take takes a place, or returns who waits for it.
func (s *slots) take(max int32) *waiter {
	if s.free(max) {
		s.used++
		return nil
	}
	w := &waiter{ready: make(chan struct{})}
	if s.last == nil {
		w.next = w
	} else {
		w.next, s.last.next = s.last.next, w
	}
	s.last = w
	return w
}

// leave gives a place back, to the first who waits.
func (s *slots) leave() {
	for s.last != nil {
		w := s.last.next
		if w == s.last {
			s.last = nil
		} else {
			s.last.next = w.next
		}
		if !w.gone {
			w.has = true
			close(w.ready)
			return
		}
	}
	s.used--
}

// giveUp ends w's wait, also if it has just been given the place.
func (s *slots) giveUp(w *waiter) {
	if w.has {
		s.leave()
	}
	w.gone = true
}
