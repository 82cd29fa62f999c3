// Package observers passes events of calls to the observers of a program.
package observers

import "github.com/gohedge/hedge/observe"

// A Notifier passes events to observers, and recovers panics of observers. If an observer calls runtime.Goexit, the current
// goroutine ends. A nil *Notifier has no observers. A Notifier is safe for concurrent use. Its fields must not change after the
// first use.
type Notifier struct {
	Observers []observe.Observer // observers that get the events

	// OnPanic is called when the observer o has panicked with value or has called runtime.Goexit. It is called from the
	// deferred function that recovers, so debug.Stack returns the stack of the panic. It may be nil.
	OnPanic func(o observe.Observer, value any)
}

// NewNotifier returns a Notifier for the observers, or nil if there are none. The function panicked becomes the field OnPanic.
func NewNotifier(observers []observe.Observer, panicked func(o observe.Observer, value any)) *Notifier {
	if len(observers) == 0 {
		return nil
	}
	return &Notifier{observers, panicked}
}

// Notify calls f for each observer. It recovers panics of f, because it may run in the goroutine of a timer, where a panic
// would end the process. It does nothing if w is nil.
func (w *Notifier) Notify(f func(observe.Observer)) {
	if w == nil {
		return
	}
	for _, o := range w.Observers {
		w.notifyObserver(o, f)
	}
}

// notifyObserver calls f for the observer o, and recovers and reports a panic.
func (w *Notifier) notifyObserver(o observe.Observer, f func(observe.Observer)) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			w.reportPanic(o, p)
		} else if !returned {
			w.reportPanic(o, "runtime.Goexit")
		}
	}()
	f(o)
	returned = true
}

// reportPanic calls OnPanic for a panic of the observer o with the given value. It does nothing if OnPanic is nil.
func (w *Notifier) reportPanic(o observe.Observer, value any) {
	if w.OnPanic != nil {
		w.OnPanic(o, value)
	}
}
