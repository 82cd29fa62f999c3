package memory

import (
	"context"
	"time"
)

// A CloseSignal is a channel that a test server closes when it ends. Attempts that are delayed or stalled wait for it,
// so that they end with the server.
type CloseSignal chan struct{}

// Pause waits for the duration d, or until ctx ends or the server closes. It returns true if d has passed first.
func (c CloseSignal) Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
	case <-c:
	}
	return false
}

// Wait waits until ctx ends or the server closes. The argument ctx is the context of an attempt, which ends when the
// client has gone.
func (c CloseSignal) Wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c:
	}
}
