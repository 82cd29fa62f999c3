// Package watch passes events to observers.
package observers

import "github.com/gohedge/hedge/observe"

// A Notifier passes events to observers. A panic of an observer does not leave it; that an
// observer ends its goroutine cannot be prevented. A nil Watcher does nothing. It is safe for
// concurrent use; its fields must not be changed after first use.
type Notifier struct {
	Observers []observe.Observer

	// OnPanic is told of a panic, and of a goroutine that was ended. It is called while the
	// panic is recovered, so that the stack is still that of the panic. Nil: nobody is told.
	OnPanic func(o observe.Observer, value any)
}

// NewNotifier returns a Watcher, or nil if there are no observers.
func NewNotifier(observers []observe.Observer, panicked func(o observe.Observer, value any)) *Notifier {
	if len(observers) == 0 {
		return nil
	}
	return &Notifier{observers, panicked}
}

// Notify calls f for each observer. A panic must not leave it: f may run in a
// goroutine of a timer, where a panic ends the process.
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
