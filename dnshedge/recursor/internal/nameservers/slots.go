package nameservers

// slots is a semaphore that limits queries in flight. Waiting queries get slots in the order of their arrival. The
// methods get the number of slots as max. Pool.mu guards it.
type slots struct {
	used int32
	last *waiter // end of the circular queue: last.next is the first waiter; nil: the queue is empty
}

// A waiter is a query in the queue of a semaphore. Pool.mu guards it. Other goroutines only receive from ready.
type waiter struct {
	ready    chan struct{} // closed when the slot is granted
	granted  bool
	canceled bool
	next     *waiter
}

// isFree reports whether a slot is free and no query waits for it.
func (s *slots) isFree(max int32) bool { return s.used < max && s.last == nil }

// acquireOrEnqueue acquires a slot and returns nil. If none is free, it adds a waiter to the queue and returns it.
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

// releaseSlot grants a slot to the first waiter that is not canceled, or frees the slot.
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

// cancelWait cancels the wait of w. If w was granted a slot already, cancelWait releases it.
func (s *slots) cancelWait(w *waiter) {
	if w.granted {
		s.releaseSlot()
	}
	w.canceled = true
}
