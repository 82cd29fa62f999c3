// Package watch passes events to observers.
package watch

import "github.com/gohedge/hedge/observe"

// A Watcher passes events to observers. A panic of an observer does not leave it; that an
// observer ends its goroutine cannot be prevented. A nil Watcher does nothing. It is safe for
// concurrent use; its fields must not be changed after first use.
type Watcher struct {
	Observers []observe.Observer

	// Panicked is told of a panic, and of a goroutine that was ended. It is called while the
	// panic is recovered, so that the stack is still that of the panic. Nil: nobody is told.
	Panicked func(o observe.Observer, value any)
}

// New returns a Watcher, or nil if there are no observers.
func New(observers []observe.Observer, panicked func(o observe.Observer, value any)) *Watcher {
	if len(observers) == 0 {
		return nil
	}
	return &Watcher{observers, panicked}
}

// Tell calls f for each observer. A panic must not leave it: f may run in a
// goroutine of a timer, where a panic ends the process.
func (w *Watcher) Tell(f func(observe.Observer)) {
	if w == nil {
		return
	}
	for _, o := range w.Observers {
		w.tell(o, f)
	}
}

func (w *Watcher) tell(o observe.Observer, f func(observe.Observer)) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			w.panicked(o, p)
		} else if !returned {
			w.panicked(o, "runtime.Goexit")
		}
	}()
	f(o)
	returned = true
}

func (w *Watcher) panicked(o observe.Observer, value any) {
	if w.Panicked != nil {
		w.Panicked(o, value)
	}
}
