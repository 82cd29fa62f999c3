// Package observers passes events to observers.
package observers

import "github.com/gohedge/hedge/observe"

// A Notifier passes events to observers. It recovers panics of observers. If an observer calls runtime.Goexit, the goroutine ends. A
// nil Notifier does nothing. A Notifier is safe for concurrent use; its fields must not be changed after first use.
type Notifier struct {
	Observers []observe.Observer

	// OnPanic is called when an observer panics or calls runtime.Goexit. It runs during the recovery, so the stack is that of the
	// panic. It may be nil.
	OnPanic func(o observe.Observer, value any)
}

// NewNotifier returns a Notifier, or nil if there are no observers.
func NewNotifier(observers []observe.Observer, panicked func(o observe.Observer, value any)) *Notifier {
	if len(observers) == 0 {
		return nil
	}
	return &Notifier{observers, panicked}
}

// Notify calls f for each observer. It recovers panics, because f may run in a goroutine of a timer, where a panic ends the process.
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
