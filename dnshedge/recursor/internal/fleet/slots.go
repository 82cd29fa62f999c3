package fleet

// slots are places for queries, and those who wait for one, in the order in which they came.
// They are guarded by the mutex of the fleet.
type slots struct {
	used int32
	last *waiter // whose next is the first; nil: nobody waits
}

// waiter is one who waits for a place.
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

// give up ends w's wait, also if it has just been given the place.
func (s *slots) giveUp(w *waiter) {
	if w.has {
		s.leave()
	}
	w.gone = true
}

// queue is queries in the order in which they were added. It is guarded by the mutex of the fleet.
type queue struct {
	first, last *query
	n           int
}

func (l *queue) push(q *query) {
	q.queued = true
	q.prev, q.next = l.last, nil
	if l.last == nil {
		l.first = q
	} else {
		l.last.next = q
	}
	l.last = q
	l.n++
}

// remove takes q out if it is in the queue.
func (l *queue) remove(q *query) {
	if !q.queued {
		return
	}
	q.queued = false
	if q.prev == nil {
		l.first = q.next
	} else {
		q.prev.next = q.next
	}
	if q.next == nil {
		l.last = q.prev
	} else {
		q.next.prev = q.prev
	}
	q.prev, q.next = nil, nil
	l.n--
}
