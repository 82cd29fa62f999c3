package doubles

import (
	"context"
	"fmt"
	"sync"

	"github.com/gohedge/hedge/observe"
)

// A Recorder is an Observer that records events as lines of text. Times are in milliseconds.
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

// AttemptStart records the start of an attempt.
func (r *Recorder) AttemptStart(_ context.Context, key observe.KeyInfo, a observe.AttemptInfo) {
	r.add(key, "start %d", a.Number)
}

// AttemptDone records the outcome of an attempt.
func (r *Recorder) AttemptDone(_ context.Context, key observe.KeyInfo, a observe.AttemptResult) {
	r.add(key, "%s %d after %d", a.Outcome, a.Number, a.Latency.Milliseconds())
}

// RequestDone records the result of a call.
func (r *Recorder) RequestDone(_ context.Context, key observe.KeyInfo, res observe.RequestResult) {
	r.add(key, "done by %d of %d after %d", res.Winner, res.Attempts, res.Latency.Milliseconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = res
}

// Denied records the reason why a hedge was not sent.
func (r *Recorder) Denied(_ context.Context, key observe.KeyInfo, why observe.Reason) {
	r.add(key, "denied: %s", why)
}

// Budget records whether the budget has more than 3 tokens.
func (r *Recorder) Budget(key observe.KeyInfo, tokens float64) {
	r.add(key, "budget above 3: %t", tokens > 3)
}

// Take returns the lines that were recorded since the last Take.
func (r *Recorder) Take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// Key returns the key of the last event.
func (r *Recorder) Key() observe.KeyInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.key
}

// Last returns the result of the last call that ended.
func (r *Recorder) Last() observe.RequestResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
