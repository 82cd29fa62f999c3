package steering

import "github.com/gohedge/hedge/internal/ops"

// A Watcher polls a file for tests.
type Watcher struct{ watcher }

// NewWatcher returns a Watcher of the file at path, which it reads by the given function.
func NewWatcher(path string, read func(path string) ([]byte, error), clients ...Client) *Watcher {
	targets, err := findTargets(clients)
	if err != nil {
		panic(err)
	}
	return &Watcher{watcher{path: path, targets: targets, read: read, pause: func() bool { return true }}}
}

// Poll reads the file and applies its content if that has changed.
func (w *Watcher) Poll() { w.poll() }

// InterruptApply calls f once: when content is applied to the client with the given index, after it was checked.
func (w *Watcher) InterruptApply(client int, f func()) {
	w.targets[client] = &interruptedTarget{w.targets[client], f}
}

// An interruptedTarget calls a function before it is first changed.
type interruptedTarget struct {
	ops.Overridable
	interrupt func()
}

// ApplyOverride implements [ops.Overridable].
func (t *interruptedTarget) ApplyOverride(o *ops.Override) (*ops.Override, error) {
	if f := t.interrupt; f != nil {
		t.interrupt = nil
		f()
	}
	return t.Overridable.ApplyOverride(o)
}
