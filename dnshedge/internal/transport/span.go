package transport

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A Span is a context.Context that can be embedded in another struct, which saves a dozen allocations for each query.
// It ends by End, with its parent, or at its deadline.
//
// Begin must be called before use, and End or Cancel afterwards. A Span must not be copied.
type Span struct {
	parent       context.Context
	end          time.Time   // the Span's own deadline; zero: none
	timer        *time.Timer // ends the Span at its deadline; nil: no deadline of its own
	stopWatching func() bool // stops context.AfterFunc of the parent; nil if the parent is a Span or never ends

	mu            sync.Mutex // guards the fields below
	err           error      // nil: the Span has not ended
	cause         error
	done          chan struct{} // nil: Done was not called
	watchers      []watcher
	watcherBuffer [2]watcher // initial memory of watchers
}

var _ context.Context = (*Span)(nil)

// A watcher is notified by endWith when a Span ends. endWith is called with the Span locked and must not block.
type watcher interface{ endWith(err, cause error) }

// Begin starts the Span. It ends with its parent, or after the timeout; 0 means no deadline but the parent's.
func (s *Span) Begin(parent context.Context, timeout time.Duration) {
	s.parent = parent
	s.watchers = s.watcherBuffer[:0]
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

// endAtDeadline ends the Span with context.DeadlineExceeded.
func (s *Span) endAtDeadline() { s.endWith(context.DeadlineExceeded, context.DeadlineExceeded) }

// End cancels the Span with the given cause, unless it has ended, and releases its timer. A nil cause is
// context.Canceled.
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

// Cancel is End with the cause context.Canceled.
func (s *Span) Cancel() { s.End(nil) }

// endWith ends the Span and notifies the watchers. Only the first call has an effect.
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

// addWatcher adds a watcher. If the Span has ended, it notifies the watcher at once.
func (s *Span) addWatcher(w watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		w.endWith(s.err, s.cause)
		return
	}
	s.watchers = append(s.watchers, w)
}

// removeWatcher removes a watcher, so that it is not notified. It reports false if the watcher was not found, for
// example because the Span has ended.
func (s *Span) removeWatcher(w watcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.watchers, w)
	if i >= 0 {
		s.watchers = slices.Delete(s.watchers, i, i+1)
	}
	return i >= 0
}

// Deadline implements context.Context.
func (s *Span) Deadline() (time.Time, bool) {
	if s.timer != nil {
		return s.end, true
	}
	return s.parent.Deadline()
}

// Done implements context.Context.
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

// Err implements context.Context.
func (s *Span) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Value implements context.Context. A Span has no values of its own.
func (s *Span) Value(key any) any { return s.parent.Value(key) }

// AfterFunc implements the method that context.AfterFunc uses, so that it needs no goroutine that waits.
func (s *Span) AfterFunc(f func()) (stop func() bool) {
	w := &afterFunc{f}
	s.addWatcher(w)
	return func() bool { return s.removeWatcher(w) }
}

// An afterFunc is a watcher that calls f in a goroutine of its own.
type afterFunc struct{ f func() }

func (a *afterFunc) endWith(error, error) { go a.f() }

// causeOf returns the cause of the end of ctx. context.Cause does not know the cause of a Span.
func causeOf(ctx context.Context) error {
	s, ok := ctx.(*Span)
	if !ok {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}
