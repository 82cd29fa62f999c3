package dnshedge

import (
	"container/list"
	"sync"
)

// A line is those who wait, in the order in which they came. It is safe for concurrent use.
type line struct {
	max int

	mu  sync.Mutex // guards all
	all list.List  // of cancellers
}

// A canceller is somebody who waits, and can be told not to.
type canceller interface{ Cancel() }

type cancelFunc func()

func (f cancelFunc) Cancel() { f() }

// enter adds somebody at the end. If the line is too long then, the first leaves it,
// and is cancelled.
func (l *line) enter(c canceller) *list.Element {
	l.mu.Lock()
	me := l.all.PushBack(c)
	var first canceller
	if l.all.Len() > l.max {
		first = l.all.Remove(l.all.Front()).(canceller)
	}
	l.mu.Unlock()
	if first != nil {
		first.Cancel()
	}
	return me
}

// leave takes somebody out, and reports whether that had happened before.
func (l *line) leave(me *list.Element) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.all.Len()
	l.all.Remove(me)
	return l.all.Len() == before
}
