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

// A Recorder observes calls, as an observer of hedge.WithObserver, and checks how often they were sent. The zero value is ready. It is safe for concurrent use; it must not
// be copied.
type Recorder struct {
	observe.NopObserver

	mu      sync.Mutex // guards the fields below
	calls   []observe.RequestResult
	checked int              // of them
	denied  []observe.Reason // since they were
}

var _ observe.Observer = (*Recorder)(nil)

// RequestDone records a call. The hedging client calls it.
func (r *Recorder) RequestDone(_ context.Context, _ observe.KeyInfo, result observe.RequestResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, result)
}

// Denied records the reason for which a hedge was not sent. The hedging client calls it.
func (r *Recorder) Denied(_ context.Context, _ observe.KeyInfo, reason observe.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.denied, reason) {
		r.denied = append(r.denied, reason)
	}
}

// SentOnce fails the test unless at least one call has ended since the last SentOnce or Hedged, or since the beginning, and all these
// calls were sent once.
func (r *Recorder) SentOnce(t testing.TB) {
	t.Helper()
	r.checkAttempts(t, 1)
}

// Hedged fails the test unless at least one call has ended since the last SentOnce or Hedged, or since the beginning, and n hedges
// were sent for each of these calls, whichever attempt answered. If they were not, it reports the reasons.
func (r *Recorder) Hedged(t testing.TB, n int) {
	t.Helper()
	r.checkAttempts(t, 1+n)
}

// checkAttempts checks the number of attempts of the calls that have not been checked.
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
	r.checked, r.denied = len(r.calls), nil
}

// denialReasons returns the reasons for which hedges were not sent, as the end of an error text. The caller holds mu.
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

// Calls returns how all calls have ended so far, in that order: how many attempts were sent, and which one has answered.
func (r *Recorder) Calls() []observe.RequestResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}
