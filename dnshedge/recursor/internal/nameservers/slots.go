package nameservers

// slots limits queries in flight, with a queue of waiting queries. Pool.mu guards it.
type slots struct {
	used int32
	last *waiter // its next is the first; nil: the queue is empty
}

// A waiter is a queued query. Pool.mu guards it; other goroutines only receive from ready.
type waiter struct {
	ready    chan struct{} // closed when the slot is granted
	granted  bool
	canceled bool
	next     *waiter
}

// isFree reports whether one of max slots is available at once.
func (s *slots) isFree(max int32) bool { return s.used < max && s.last == nil }

// acquireOrEnqueue acquires a slot, or returns a waiter for it.
func (s *slots) acquireOrEnqueue(max int32) *waiter {
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

// releaseSlot returns a slot or passes it to the first waiter.
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

// cancelWait removes w from the queue. If w was just granted the slot, it passes it on.
func (s *slots) cancelWait(w *waiter) {
	if w.granted {
		s.releaseSlot()
	}
	w.canceled = true
}
