// Package observers passes events to observers.
package observers

import "github.com/gohedge/hedge/observe"

// A Notifier passes events to observers. It recovers their panics. If an observer calls runtime.Goexit, the goroutine ends. A nil Notifier
// does nothing. A Notifier is safe for concurrent use; its fields must not change after the first use.
type Notifier struct {
	Observers []observe.Observer

	// OnPanic is called when an observer panics or calls runtime.Goexit. It runs in the deferred function that recovers, so the stack is
	// that of the panic. It may be nil.
	OnPanic func(o observe.Observer, value any)
}

// NewNotifier returns a Notifier for the observers, or nil if there are none. The function panicked becomes OnPanic.
func NewNotifier(observers []observe.Observer, panicked func(o observe.Observer, value any)) *Notifier {
	if len(observers) == 0 {
		return nil
	}
	return &Notifier{observers, panicked}
}

// Notify calls f for each observer. It recovers panics, because f may run in the goroutine of a timer, where a panic would end the process.
func (w *Notifier) Notify(f func(observe.Observer)) {
	if w == nil {
		return
	}
	for _, o := range w.Observers {
		w.notifyOne(o, f)
	}
}

func (w *Notifier) notifyOne(o observe.Observer, f func(observe.Observer)) {
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

func (w *Notifier) reportPanic(o observe.Observer, value any) {
	if w.OnPanic != nil {
		w.OnPanic(o, value)
	}
}
