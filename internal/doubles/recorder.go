package doubles

import (
	"context"
	"fmt"
	"sync"

	"github.com/gohedge/hedge/observe"
)

// A Recorder is an Observer that writes down what it is told, in milliseconds.
type Recorder struct {
	observe.NopObserver
	mu     sync.Mutex // guards the fields below
	events []string
	key    observe.KeyInfo
	last   observe.RequestResult
}

func (r *Recorder) add(key observe.KeyInfo, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.key, r.events = key, append(r.events, fmt.Sprintf(format, args...))
}

// AttemptStart writes down that an attempt has started.
func (r *Recorder) AttemptStart(_ context.Context, key observe.KeyInfo, a observe.AttemptInfo) {
	r.add(key, "start %d", a.Number)
}

// AttemptDone writes down how an attempt ended.
func (r *Recorder) AttemptDone(_ context.Context, key observe.KeyInfo, a observe.AttemptResult) {
	r.add(key, "%s %d after %d", a.Outcome, a.Number, a.Latency.Milliseconds())
}

// RequestDone writes down how a call ended, and keeps what it is told for Last.
func (r *Recorder) RequestDone(_ context.Context, key observe.KeyInfo, res observe.RequestResult) {
	r.add(key, "done by %d of %d after %d", res.Winner, res.Attempts, res.Latency.Milliseconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = res
}

// Denied writes down why a hedge was not sent.
func (r *Recorder) Denied(_ context.Context, key observe.KeyInfo, why observe.Reason) {
	r.add(key, "denied: %s", why)
}

// Budget writes down whether much of a budget is left.
func (r *Recorder) Budget(key observe.KeyInfo, tokens float64) {
	r.add(key, "budget above 3: %t", tokens > 3)
}

// Take returns what was told since the last Take.
func (r *Recorder) Take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// Key returns whose call it was told of last.
func (r *Recorder) Key() observe.KeyInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.key
}

// Last returns what it was told of the last call that is done.
func (r *Recorder) Last() observe.RequestResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
