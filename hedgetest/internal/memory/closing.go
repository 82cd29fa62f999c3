package memory

import (
	"context"
	"time"
)

// A CloseSignal is a channel that is closed when the server closes, so that waiting attempts end.
type CloseSignal chan struct{}

// Pause waits for d. It reports false if the client goes away or the server closes before.
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
