package dnshedge

import (
	"container/list"
	"context"
	"sync"
)

// A line is those who wait, in the order in which they came. It is safe for concurrent use.
type line struct {
	max int

	mu  sync.Mutex // guards all
	all list.List  // of context.CancelFunc
}

// enter adds somebody at the end. If the line is too long then, the first leaves it,
// and is cancelled.
func (l *line) enter(cancel context.CancelFunc) *list.Element {
	l.mu.Lock()
	me := l.all.PushBack(cancel)
	var first context.CancelFunc
	if l.all.Len() > l.max {
		first = l.all.Remove(l.all.Front()).(context.CancelFunc)
	}
	l.mu.Unlock()
	if first != nil {
		first()
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
