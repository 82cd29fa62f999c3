package hedgetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gohedge/hedge/observe"
)

// A Recorder is an observer (see hedge.WithObserver) for tests: it records calls, and checks how many hedges they had.
// The zero value is ready for use. It is safe for concurrent use, and must not be copied.
type Recorder struct {
	observe.NopObserver

	mu      sync.Mutex              // guards the fields below
	calls   []observe.RequestResult // results of all calls that have ended
	checked int                     // number of calls, the first in calls, that were checked
	denied  []observe.Reason        // distinct reasons of denied hedges since the last check

	resumptions int // requests for the remaining bytes of bodies since the last check
}

var _ observe.Observer = (*Recorder)(nil)

// AttemptStart implements [observe.Observer]: it counts only attempts that request the remaining bytes of a body. Other
// attempts are counted by RequestDone. Tests do not call it.
func (r *Recorder) AttemptStart(_ context.Context, _ observe.KeyInfo, a observe.AttemptInfo) {
	if a.IsResumption {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.resumptions++
	}
}

// RequestDone implements [observe.Observer]: it records a call that has ended. Tests do not call it.
func (r *Recorder) RequestDone(_ context.Context, _ observe.KeyInfo, result observe.RequestResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, result)
}

// Denied implements [observe.Observer]: it records the reason why a hedge was not sent. Tests do not call it.
func (r *Recorder) Denied(_ context.Context, _ observe.KeyInfo, reason observe.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.denied, reason) {
		r.denied = append(r.denied, reason)
	}
}

// SentOnce checks the calls that have ended since the last SentOnce or Hedged. It fails the test if a call was hedged
// (see hedge.WithResume for hedges of bodies), or if there are no calls. It checks each call only once.
func (r *Recorder) SentOnce(t testing.TB) {
	t.Helper()
	r.checkAttempts(t, 1)
}

// Hedged fails the test unless each call that has ended since the last SentOnce or Hedged had exactly n hedges. It also
// fails the test if no call has ended. The message includes the reasons for which hedges were denied.
func (r *Recorder) Hedged(t testing.TB, n int) {
	t.Helper()
	r.checkAttempts(t, 1+n)
}

// checkAttempts fails the test unless each unchecked call had the given number of attempts, hedges included. It then
// marks these calls as checked.
func (r *Recorder) checkAttempts(t testing.TB, attempts int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := r.calls[r.checked:]
	if len(fresh) == 0 {
		t.Errorf("hedgetest: no call has ended since the last check")
	}
	for i, c := range fresh {
		if c.Attempts != attempts {
			t.Errorf("hedgetest: call %d of %d was sent %d times and not %d%s", i+1, len(fresh), c.Attempts, attempts, r.denialReasons())
		}
	}
	if r.resumptions > 0 && attempts == 1 {
		t.Errorf("hedgetest: requests for the remaining bytes of bodies: %d", r.resumptions)
	}
	r.checked, r.denied, r.resumptions = len(r.calls), nil, 0
}

// denialReasons returns the reasons for which hedges were not sent since the last check, as the end of an error text;
// "" if there are none. The caller must hold mu.
func (r *Recorder) denialReasons() string {
	if len(r.denied) == 0 {
		return ""
	}
	var all []string
	for _, reason := range r.denied {
		all = append(all, fmt.Sprintf("%q", reason))
	}
	return "; hedges were denied for " + strings.Join(all, ", ")
}

// Calls returns the results of all calls that have ended so far, in the order in which they ended. The slice is a copy.
func (r *Recorder) Calls() []observe.RequestResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}
