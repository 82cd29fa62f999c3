package memory

import (
	"context"
	"time"
)

// A CloseSignal is closed when a server closes, so that no attempt waits longer than that.
type CloseSignal chan struct{}

// Pause waits for d, and reports whether the client and the server are still there after it.
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

// Wait waits until the client has gone or the server closes.
func (c CloseSignal) Wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c:
	}
}
