package steering

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gohedge/hedge/internal/ops"
)

// Watch applies the settings in a file to clients, now and whenever the content of the file changes. It reads the file each
// time that the duration every has passed. Watch blocks until ctx ends, and returns the cause of that, see [context.Cause].
// It starts no goroutine. The settings stay in force after Watch has returned.
//
// If the file cannot be used at the start, all clients are disabled, and a warning is logged. If it cannot be used later, its
// last valid content stays in force, and one warning is logged until it can be used again. A file is never applied in part, and
// either all clients get it or none.
//
// The file must be a regular file. It may be a symbolic link to a regular file, and may be replaced, as in a volume of a Kubernetes
// ConfigMap. A content is applied only if
// a second read, up to 50ms later, returns the same content. A program that writes the file should write another file, and
// rename that.
//
// Watch returns an error at once if there are no clients, if a client was not made by a constructor of package hedge, or if
// every is not positive. To have the settings before the first call, use [ReadFile] and [File.Apply] before the client is used.
func Watch(ctx context.Context, path string, every time.Duration, clients ...Client) error {
	targets, err := findTargets(clients)
	if err != nil {
		return err
	}
	if every <= 0 {
		return fmt.Errorf("steering: Watch: the interval %v is not positive", every)
	}
	w := watcher{path: path, targets: targets, read: readText, pause: func() bool { return sleep(ctx, min(every/2, maxPause)) }}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for ctx.Err() == nil {
		w.poll()
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return context.Cause(ctx)
}

// maxPause is the longest time between the two reads that must return the same content.
const maxPause = 50 * time.Millisecond

// sleep waits for the duration d, or until ctx ends. It returns true if ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// A watcher is the state of one call of Watch, which applies a file and its later changes to clients: the file, the
// clients, and the content that was applied last.
type watcher struct {
	path    string
	targets []ops.Overridable
	read    func(path string) ([]byte, error) // returns the content of the file
	pause   func() bool                       // waits between two reads that must return the same content; false: Watch must end

	applied []byte // content that was applied last; nil: none
	failed  bool   // the file cannot be used, and a warning was logged
	partial bool   // content was not applied to all clients, so that the applied content must be applied again
}

// errChanging is the error for a file whose content has changed between two reads.
var errChanging = errors.New("the content has changed while it was read")

// errEnded is the error for a file that was read once, because the context of Watch ended before the second read.
var errEnded = errors.New("the context has ended")

// poll reads the file once, and applies its settings to the clients if the content has changed. If the file cannot be
// used, it logs a warning.
func (w *watcher) poll() {
	text, err := w.readStable()
	switch {
	case err == errEnded:
		return
	case err == errChanging && w.applied != nil:
		return // the next poll reads the new content
	case err == nil && w.applied != nil && !w.partial && bytes.Equal(text, w.applied):
		w.failed = false
		return
	}
	var f File
	if err == nil {
		f, err = parseSettings(text)
	}
	if err == nil {
		err = f.applyToClients(w.targets)
		w.partial = err != nil
	}
	if err != nil {
		w.reportFailure(err)
		return
	}
	w.applied, w.failed = text, false
	for _, t := range w.targets {
		t.Log().Log(slog.LevelInfo, "settings of a file are in force", slog.String("file", w.path))
	}
}

// readStable returns the content of the file. If the content differs from the content applied last, it reads the file a
// second time after a pause. If the two reads differ, it returns errChanging: a program may have written only a part of
// the content.
//
// It returns errEnded if Watch must end during the pause.
func (w *watcher) readStable() ([]byte, error) {
	text, err := w.read(w.path)
	if err != nil || w.applied != nil && bytes.Equal(text, w.applied) {
		return text, err
	}
	if !w.pause() {
		return nil, errEnded
	}
	again, err := w.read(w.path)
	if err == nil && !bytes.Equal(text, again) {
		err = errChanging
	}
	return text, err
}

// reportFailure logs a warning that the file cannot be used because of err. It logs one warning until the file can be
// used again. If no content of the file was applied yet, it also disables hedging for the clients.
func (w *watcher) reportFailure(err error) {
	if w.failed {
		return
	}
	w.failed = true
	effect := "its last valid content stays in force"
	if w.applied == nil {
		effect = "no hedge is sent"
	}
	defaultWarned := false // clients without a logger share slog.Default
	warn := func(l *ops.Log, err error) {
		if l.IsDiscarded() {
			if defaultWarned {
				return
			}
			defaultWarned = true
		}
		l.WarnOfFile(w.path, effect, err)
	}
	for _, t := range w.targets {
		warn(t.Log(), err)
		if w.applied == nil {
			if _, err := t.ApplyOverride(&ops.Override{Disabled: true}); err != nil { // hedging is off nevertheless
				warn(t.Log(), err)
			}
		}
	}
}
