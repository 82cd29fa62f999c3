package transport

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A Span is a cancellable context.Context that can be a field of another struct, which saves a dozen allocations for
// each query. It ends when End is called, when its parent ends, or at its deadline.
//
// Begin must be called before use, and End or Cancel afterwards. A Span must not be copied.
type Span struct {
	parent       context.Context // the context from which the Span is derived
	end          time.Time       // the Span's own deadline; zero: only the parent may have a deadline
	timer        *time.Timer     // ends the Span at its own deadline; nil: it has none
	stopWatching func() bool     // undoes context.AfterFunc of the parent; nil: the parent is a Span or never ends

	mu            sync.Mutex    // guards the fields below
	err           error         // result of Err; nil: the Span has not ended
	cause         error         // cause of the end; nil: the Span has not ended
	done          chan struct{} // result of Done; nil: Done was not called
	watchers      []watcher     // called when the Span ends
	watcherBuffer [2]watcher    // initial memory for watchers
}

var _ context.Context = (*Span)(nil)

// A watcher is an object that a Span informs of its end by calling endWith. err and cause are the results of Err and
// context.Cause. The Span is locked during the call, so endWith must not block or use the Span.
type watcher interface{ endWith(err, cause error) }

// Begin starts the Span, which ends with its parent, or after the timeout if that is earlier. A timeout of 0 means that
// there is none.
func (s *Span) Begin(parent context.Context, timeout time.Duration) {
	s.parent = parent
	s.watchers = s.watcherBuffer[:0]
	if timeout > 0 {
		end := time.Now().Add(timeout)
		if at, ok := parent.Deadline(); !ok || end.Before(at) {
			s.end = end
			s.timer = time.AfterFunc(timeout, func() { s.endWith(context.DeadlineExceeded, context.DeadlineExceeded) })
		}
	}
	if p, ok := parent.(*Span); ok {
		p.addWatcher(s)
	} else if parent.Done() != nil {
		s.stopWatching = context.AfterFunc(parent, func() { s.endWith(parent.Err(), context.Cause(parent)) })
	}
}

// End ends the Span with the error context.Canceled and the given cause, unless it has already ended. It also releases
// the Span's timer and detaches the Span from its parent. A nil cause means context.Canceled.
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

// Cancel ends the Span with the error and the cause context.Canceled.
func (s *Span) Cancel() { s.End(nil) }

// endWith ends the Span with the given error and cause, and calls its watchers. Further calls have no effect. It
// implements watcher, so that the end of a Span ends the Spans that are derived from it.
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

// addWatcher makes the Span call w.endWith when the Span ends. If the Span has already ended, it calls w.endWith at
// once.
func (s *Span) addWatcher(w watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		w.endWith(s.err, s.cause)
		return
	}
	s.watchers = append(s.watchers, w)
}

// removeWatcher undoes addWatcher. It returns false if w is not registered, for example because the Span has ended and
// called it.
func (s *Span) removeWatcher(w watcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.watchers, w)
	if i >= 0 {
		s.watchers = slices.Delete(s.watchers, i, i+1)
	}
	return i >= 0
}

// Deadline implements context.Context. It returns the Span's own deadline, or the parent's if the Span has none.
func (s *Span) Deadline() (time.Time, bool) {
	if s.timer != nil {
		return s.end, true
	}
	return s.parent.Deadline()
}

// Done implements context.Context. It creates the channel at the first call, because most Spans need none.
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

// Err implements context.Context. It returns nil until the Span has ended, and then context.Canceled,
// context.DeadlineExceeded, or the error of the parent.
func (s *Span) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Value implements context.Context. It returns the parent's value, because a Span has no values of its own.
func (s *Span) Value(key any) any { return s.parent.Value(key) }

// AfterFunc arranges that f is called in a goroutine of its own when the Span ends. stop undoes that; it returns false
// if f was called already or stop was called before.
//
// It is an optional method that context.AfterFunc and context.WithCancel use. Without it, they would start a goroutine
// for each context that is derived from a Span.
func (s *Span) AfterFunc(f func()) (stop func() bool) {
	w := &afterFunc{f}
	s.addWatcher(w)
	return func() bool { return s.removeWatcher(w) }
}

// An afterFunc is a watcher that calls f in a new goroutine.
type afterFunc struct{ f func() }

func (a *afterFunc) endWith(error, error) { go a.f() }

// causeOf returns the cause of the end of ctx, or nil if ctx has not ended. Unlike context.Cause, it also returns the
// cause of a Span, the context of one exchange. For a Span, context.Cause returns only ctx.Err().
func causeOf(ctx context.Context) error {
	s, ok := ctx.(*Span)
	if !ok {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}
