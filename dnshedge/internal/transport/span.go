package transport

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A Span is a context that can be embedded in another struct, which saves a dozen allocations per query. It ends once:
// by End, with its parent or at its deadline. The zero Span must begin before use, and must end. It must not be copied.
type Span struct {
	parent       context.Context
	end          time.Time   // zero: it has no deadline of its own
	timer        *time.Timer // nil: it has no deadline of its own
	stopWatching func() bool // from the parent; nil if that is a Span, or never ends

	mu       sync.Mutex // guards the fields below
	err      error      // nil: it has not ended
	cause    error
	done     chan struct{} // nil: nobody has asked for it
	watchers []watcher
	room     [2]watcher // what watchers has at first
}

var _ context.Context = (*Span)(nil)

// A watcher is notified when a Span ends, with the Span locked. It must not block.
type watcher interface{ endWith(err, cause error) }

// Begin begins the Span. It ends with its parent, or when the time is up: zero means
// that there is no deadline but the parent's.
func (s *Span) Begin(parent context.Context, timeout time.Duration) {
	s.parent = parent
	s.watchers = s.room[:0]
	if timeout > 0 {
		end := time.Now().Add(timeout)
		if at, ok := parent.Deadline(); !ok || end.Before(at) {
			s.end = end
			s.timer = time.AfterFunc(timeout, s.endAtDeadline)
		}
	}
	if p, ok := parent.(*Span); ok {
		p.addWatcher(s)
	} else if parent.Done() != nil {
		s.stopWatching = context.AfterFunc(parent, func() { s.endWith(parent.Err(), context.Cause(parent)) })
	}
}

func (s *Span) endAtDeadline() { s.endWith(context.DeadlineExceeded, context.DeadlineExceeded) }

// End ends the Span, unless it has ended. It has been cancelled for the given cause.
func (s *Span) End(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	s.endWith(context.Canceled, cause)
	if p, ok := s.parent.(*Span); ok {
		p.removeWatcher(s)
	} else if s.stopWatching != nil {
		s.stopWatching()
	}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// Cancel is End without a cause.
func (s *Span) Cancel() { s.End(nil) }

func (s *Span) endWith(err, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err, s.cause = err, cause
	if s.done != nil {
		close(s.done)
	}
	for _, w := range s.watchers {
		w.endWith(err, cause)
	}
	s.watchers = nil
}

// addWatcher adds a watcher, or tells it at once.
func (s *Span) addWatcher(w watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		w.endWith(s.err, s.cause)
		return
	}
	s.watchers = append(s.watchers, w)
}

// removeWatcher removes a watcher, and reports whether it was there. It is not notified any more.
func (s *Span) removeWatcher(w watcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.watchers, w)
	if i >= 0 {
		s.watchers = slices.Delete(s.watchers, i, i+1)
	}
	return i >= 0
}

// Deadline returns when the Span ends at the latest.
func (s *Span) Deadline() (time.Time, bool) {
	if s.timer != nil {
		return s.end, true
	}
	return s.parent.Deadline()
}

// Done returns a channel that is closed when the Span ends.
func (s *Span) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		s.done = make(chan struct{})
		if s.err != nil {
			close(s.done)
		}
	}
	return s.done
}

// Err returns nil while the Span has not ended.
func (s *Span) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Value returns the parent's value.
func (s *Span) Value(key any) any { return s.parent.Value(key) }

// AfterFunc implements the method that package context uses in place of a goroutine, see context.AfterFunc.
func (s *Span) AfterFunc(f func()) (stop func() bool) {
	w := &afterFunc{f}
	s.addWatcher(w)
	return func() bool { return s.removeWatcher(w) }
}

type afterFunc struct{ f func() }

func (a *afterFunc) endWith(error, error) { go a.f() }

// causeOf is context.Cause, also for a Span.
func causeOf(ctx context.Context) error {
	s, ok := ctx.(*Span)
	if !ok {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}
