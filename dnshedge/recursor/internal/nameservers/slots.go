package nameservers

// slots are places for queries, and those who wait for one, in the order in which they came.
// They are guarded by Fleet.mu.
type slots struct {
	used int32
	last *waiter // whose next is the first; nil: nobody waits
}

// waiter is one who waits for a place. It is guarded by Fleet.mu; only ready is received from without.
type waiter struct {
	ready    chan struct{} // closed when it has the place
	granted  bool
	canceled bool
	next     *waiter
}

// isFree reports whether one of max places is to be had at once.
func (s *slots) isFree(max int32) bool { return s.used < max && s.last == nil }

// take takes a place, or returns who waits for it.
func (s *slots) acquireOrWait(max int32) *waiter {
	if s.isFree(max) {
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

// releaseSlot gives a place back, to the first who waits.
func (s *slots) releaseSlot() {
	for s.last != nil {
		w := s.last.next
		if w == s.last {
			s.last = nil
		} else {
			s.last.next = w.next
		}
		if !w.canceled {
			w.granted = true
			close(w.ready)
			return
		}
	}
	s.used--
}

// giveUp ends w's wait, also if it has just been given the place.
func (s *slots) cancelWait(w *waiter) {
	if w.granted {
		s.releaseSlot()
	}
	w.canceled = true
}
