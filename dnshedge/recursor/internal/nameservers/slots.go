package nameservers

// slots is a semaphore that limits queries in flight. Waiting queries get slots in the order of their arrival. The
// number of slots is not stored, but passed to the methods as max. Pool.mu guards it.
type slots struct {
	used int32   // slots in use
	last *waiter // last waiter of the circular queue, whose next is the first waiter; nil if the queue is empty
}

// A waiter is an entry in the queue of a semaphore. Pool.mu guards its fields. Without the lock, a goroutine may only
// receive from ready.
type waiter struct {
	ready    chan struct{} // closed when the waiter gets a slot
	granted  bool          // the waiter got a slot
	canceled bool          // cancelWait was called
	next     *waiter
}

// isFree reports whether a slot is free and no query waits for a slot.
func (s *slots) isFree(max int32) bool { return s.used < max && s.last == nil }

// acquireOrEnqueue acquires a slot and returns nil. If no slot is free, it appends a waiter to the queue and returns
// the waiter.
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

// releaseSlot releases a slot. The first waiter that is not canceled gets the slot.
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

// cancelWait removes the waiter w from the queue. If w already has a slot, cancelWait releases the slot.
func (s *slots) cancelWait(w *waiter) {
	if w.granted {
		s.releaseSlot()
	}
	w.canceled = true
}
