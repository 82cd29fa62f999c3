package doubles

import (
	"context"
	"fmt"
	"sync"

	"github.com/gohedge/hedge/observe"
)

// A Recorder is an observe.Observer for tests, which records events as lines of text such as "start 0". Durations are in
// milliseconds. The zero value is ready for use.
type Recorder struct {
	observe.NopObserver
	clients observe.Clients
	mu      sync.Mutex            // guards the fields that follow
	events  []string              // lines that Take has not returned yet
	key     observe.KeyInfo       // key of the latest event
	last    observe.RequestResult // result of the call that ended last
}

// add records a line, and the key of the event.
func (r *Recorder) add(key observe.KeyInfo, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.key, r.events = key, append(r.events, fmt.Sprintf(format, args...))
}

// AttemptStart records the start of an attempt, as "start 0" for the primary.
func (r *Recorder) AttemptStart(_ context.Context, key observe.KeyInfo, a observe.AttemptInfo) {
	r.add(key, "start %d", a.Number)
}

// AttemptDone records the end of an attempt, as "won 0 after 10" for a primary that won after 10 ms.
func (r *Recorder) AttemptDone(_ context.Context, key observe.KeyInfo, a observe.AttemptResult) {
	r.add(key, "%s %d after %d", a.Outcome, a.Number, a.Latency.Milliseconds())
}

// RequestDone records the end of a call, as "done by 1 of 2 after 30": the number of the winner, the number of attempts and the
// milliseconds.
func (r *Recorder) RequestDone(_ context.Context, key observe.KeyInfo, res observe.RequestResult) {
	r.add(key, "done by %d of %d after %d", res.Winner, res.Attempts, res.Latency.Milliseconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = res
}

// Denied records the reason why a hedge was denied.
func (r *Recorder) Denied(_ context.Context, key observe.KeyInfo, why observe.Reason) {
	r.add(key, "denied: %s", why)
}

// ClientCreated stores the state of the client for KeyStates.
func (r *Recorder) ClientCreated(s observe.ClientState) { r.clients.Add(s) }

// KeyStates returns the states of all latency keys of the clients that exist.
func (r *Recorder) KeyStates() []observe.KeyState { return r.clients.KeyStates() }

// Take returns the lines that were recorded since its last call.
func (r *Recorder) Take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// Key returns the key of the latest event.
func (r *Recorder) Key() observe.KeyInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.key
}

// LastResult returns the result of the call that ended last.
func (r *Recorder) LastResult() observe.RequestResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// ClientStates is an observe.Observer for tests that keeps the state of each client. The zero value is ready for use.
type ClientStates struct {
	observe.NopObserver
	All []observe.ClientState // in the order in which the clients were created
}

// ClientCreated adds the state of a client to All.
func (c *ClientStates) ClientCreated(s observe.ClientState) { c.All = append(c.All, s) }
