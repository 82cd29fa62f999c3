package transport

import (
	"context"
	"slices"
	"sync"
	"time"
)

// An EmbeddedContext is a cancellable context.Context that can be a field of another struct. It ends with its parent,
// at its deadline, or when End or Cancel is called. Begin must be called before use, and End or Cancel afterwards. It
// must not be copied.
type EmbeddedContext struct {
	// As a field of another struct, it saves a dozen allocations for each query.

	parent       context.Context // the context from which the context is derived
	end          time.Time       // the context's own deadline; zero: only the parent may have a deadline
	timer        *time.Timer     // ends the context at its own deadline; nil: it has none
	stopWatching func() bool     // undoes context.AfterFunc of the parent; nil: the parent is an EmbeddedContext or never ends

	mu            sync.Mutex     // guards the fields below
	err           error          // result of Err; nil: the context has not ended
	cause         error          // cause of the end; nil: the context has not ended
	done          chan struct{}  // result of Done; nil: Done was not called
	listeners     []endListener  // called when the context ends
	watcherBuffer [2]endListener // initial memory for listeners
}

var _ context.Context = (*EmbeddedContext)(nil)

// An endListener is notified when an EmbeddedContext ends. endContext gets the values that Err and contextCause return
// for that context. It is called with the context's lock held, so it must not block or call methods of the context.
type endListener interface{ endContext(err, cause error) }

// Begin starts the context, which ends with its parent, or after the timeout if that is earlier. A timeout of 0 or less
// means no timeout.
func (s *EmbeddedContext) Begin(parent context.Context, timeout time.Duration) {
	s.parent = parent
	s.listeners = s.watcherBuffer[:0]
	if timeout > 0 {
		end := time.Now().Add(timeout)
		if at, ok := parent.Deadline(); !ok || end.Before(at) {
			s.end = end
			s.timer = time.AfterFunc(timeout, func() { s.endContext(context.DeadlineExceeded, context.DeadlineExceeded) })
		}
	}
	if p, ok := parent.(*EmbeddedContext); ok {
		p.addListener(s)
	} else if parent.Done() != nil {
		s.stopWatching = context.AfterFunc(parent, func() { s.endContext(parent.Err(), context.Cause(parent)) })
	}
}

// End ends the context with the error context.Canceled and the given cause, unless it has already ended. It also
// releases the timer and the registration with the parent. A nil cause means context.Canceled.
func (s *EmbeddedContext) End(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	s.endContext(context.Canceled, cause)
	if p, ok := s.parent.(*EmbeddedContext); ok {
		p.removeListener(s)
	} else if s.stopWatching != nil {
		s.stopWatching()
	}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// Cancel ends the context with the error and the cause context.Canceled.
func (s *EmbeddedContext) Cancel() { s.End(nil) }

// endContext ends the context with the given error and cause, and calls its listeners. Further calls have no effect. It
// implements endListener, so that a derived EmbeddedContext ends with its parent.
func (s *EmbeddedContext) endContext(err, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err, s.cause = err, cause
	if s.done != nil {
		close(s.done)
	}
	for _, w := range s.listeners {
		w.endContext(err, cause)
	}
	s.listeners = nil
}

// addListener registers w: w.endContext is called when the context ends, or at once if the context has already ended.
func (s *EmbeddedContext) addListener(w endListener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		w.endContext(s.err, s.cause)
		return
	}
	s.listeners = append(s.listeners, w)
}

// removeListener removes w from the listeners that addListener has registered. It returns false if w is not registered,
// for example because the context has ended and has called w.endContext.
func (s *EmbeddedContext) removeListener(w endListener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.listeners, w)
	if i >= 0 {
		s.listeners = slices.Delete(s.listeners, i, i+1)
	}
	return i >= 0
}

// Deadline implements context.Context. It returns the end of the timeout that was passed to Begin, or the parent's
// deadline if that is earlier or there was no timeout. It returns false if there is no deadline.
func (s *EmbeddedContext) Deadline() (time.Time, bool) {
	if s.timer != nil {
		return s.end, true
	}
	return s.parent.Deadline()
}

// Done implements context.Context. The first call creates the channel, because most contexts need none.
func (s *EmbeddedContext) Done() <-chan struct{} {
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

// Err implements context.Context. It returns nil until the context has ended, and then context.Canceled,
// context.DeadlineExceeded, or the error of the parent.
func (s *EmbeddedContext) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Value implements context.Context. It returns the parent's value.
func (s *EmbeddedContext) Value(key any) any { return s.parent.Value(key) }

// AfterFunc calls f in a new goroutine when the context ends, or at once if it has already ended. stop prevents the
// call. It returns false if f was called already or stop was called before. context.AfterFunc and context.WithCancel
// use this method.
func (s *EmbeddedContext) AfterFunc(f func()) (stop func() bool) {
	// Without this method, context.WithCancel would start a goroutine for each derived context.
	listener := &afterFuncListener{f}
	s.addListener(listener)
	return func() bool { return s.removeListener(listener) }
}

// An afterFuncListener is an endListener that calls f in a new goroutine when the context ends.
type afterFuncListener struct{ f func() }

func (a *afterFuncListener) endContext(error, error) { go a.f() }

// contextCause returns the cause of the end of ctx, or nil if ctx has not ended. Unlike context.Cause, it also returns
// the cause of an EmbeddedContext, for which context.Cause returns only ctx.Err().
func contextCause(ctx context.Context) error {
	s, ok := ctx.(*EmbeddedContext)
	if !ok {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}
