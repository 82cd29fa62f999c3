package steering

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
