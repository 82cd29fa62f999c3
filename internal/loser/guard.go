// Package loser ends HTTP/1.1 attempts that have lost their race. Cancelling an attempt closes its connection, which may break
// the request before or after it on that connection. Therefore a [Guard] delays the cancellation while that can happen, and a
// [List] lets losers finish.
package loser

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

const (
	// MaxCancelDelay is the longest time for which a [Guard] delays a cancellation because of the previous request of the
	// connection, and also because of a response that has started to arrive. It is also the longest time for which
	// ResponseStarted waits until a cancelled attempt has returned.
	MaxCancelDelay = time.Second
	// settleTime is the time after the last use of a connection in which the next request on it is not cancelled.
	settleTime = 100 * time.Millisecond
	// maxLateness is the delay of a timer above which the processors count as busy.
	maxLateness = settleTime / 2
)

// A Guard delays the cancellation of an attempt while that would break another request on the same connection. The reason is
// that net/http (Go 1.26) may give a connection to the next request before the previous request has its response. Cancelling
// one of these two requests then makes the other one fail.
//
// Therefore a Guard observes the connection of its attempt. The attempt is not cancelled for settleTime after it got a used
// connection, and for longer if the timer that ends this time is late: then the processors are busy, and the previous request
// may be late as well. It is also not cancelled between the arrival of its response and the return of its RoundTrip. The
// caller and the other attempts do not wait for a delayed cancellation.
//
// Most methods are hooks, which must be called on events of the attempt. The zero value is ready for Attach. A Guard is safe
// for concurrent use, and must not be copied.
type Guard struct {
	mu       sync.Mutex    // guards the fields that follow, except for conn
	returned bool          // Returned was called
	conn     atomic.Uint32 // state of the connection, such as connReady

	responseAt  time.Time     // arrival of the response; zero: no response has arrived
	settledAt   time.Time     // time at which the previous request of the connection certainly has its response
	done        chan struct{} // closed by Returned; nil: no ResponseStarted is waiting
	cancel      func()        // cancels the attempt; nil: Cancel was not called
	timer       *time.Timer   // calls cancel later; nil: no cancellation is delayed
	extendUntil time.Time     // end of the time in which a late timer moves settledAt again
	extended    bool          // a late timer has moved settledAt
}

// States of an attempt's connection.
const (
	connUnknown uint32 = iota // the attempt has not reached net/http, or is sent by another RoundTripper
	connReady                 // the attempt has a connection
	connQueued                // the attempt waits for a connection that another request uses
	connDialing               // a connection is being made for the attempt
)

// Attach makes g the guard of the attempt a. If a already has a guard, g replaces it and copies its connection state.
func (g *Guard) Attach(a *race.Attempt) {
	if before := guardOf(a); before != nil {
		g.conn.Store(before.conn.Load())
	}
	a.SetGuard(g)
}

// guardOf returns the guard of a, or nil if a has no guard of this package.
func guardOf(a *race.Attempt) *Guard {
	g, _ := a.Guard().(*Guard)
	return g
}

// ReportsConn reports whether the state of the attempt's connection is known. This is so after net/http has called one of the
// hooks of g, or of the guard that g has replaced.
func (g *Guard) ReportsConn() bool { return g.conn.Load() != connUnknown }

// IsQueued reports whether the attempt a waits for a connection that another request uses. It is false if a new connection
// is being made for a.
func IsQueued(a *race.Attempt) bool { return connState(a) == connQueued }

// connState returns the state of a's connection. It is connUnknown if a has no guard.
func connState(a *race.Attempt) uint32 {
	if g := guardOf(a); g != nil {
		return g.conn.Load()
	}
	return connUnknown
}

// GetConn must be called when the attempt starts to wait for a connection. net/http may call it a second time, when it sends
// the request again on another connection.
func (g *Guard) GetConn() {
	g.conn.Store(connQueued)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.responseAt = time.Time{}
}

// Dialing must be called when net/http starts to make a new connection for an attempt that waits for one.
func (g *Guard) Dialing() { g.conn.CompareAndSwap(connQueued, connDialing) }

// GotConn must be called when the attempt a gets a connection. used is true if the connection was used by other requests
// before, and idle is the time since the last of them.
//
// net/http closes the connection of a cancelled request as soon as the request uses it. So if a is already cancelled,
// GotConn first waits until the previous request on the connection certainly has its response.
func (g *Guard) GotConn(a *race.Attempt, used bool, idle time.Duration) {
	g.conn.Store(connReady)
	g.mu.Lock()
	g.responseAt = time.Time{}
	wait := settleTime - idle
	if used && wait > 0 {
		g.settledAt = time.Now().Add(wait)
		g.extendUntil, g.extended = g.settledAt.Add(MaxCancelDelay-2*settleTime), false
	}
	g.mu.Unlock()
	if used && wait > 0 && a.Err() != nil {
		time.Sleep(wait)
	}
}

// ResponseStarted must be called when the response to the attempt a starts to arrive. From then on, cancellation is delayed
// until Returned is called, but by at most [MaxCancelDelay].
//
// If a is already cancelled, ResponseStarted itself waits until Returned is called, but for at most MaxCancelDelay.
func (g *Guard) ResponseStarted(a *race.Attempt) {
	g.mu.Lock()
	g.responseAt = time.Now()
	if a.Err() == nil || g.returned {
		g.mu.Unlock()
		return
	}
	if g.done == nil {
		g.done = make(chan struct{})
	}
	done := g.done
	g.mu.Unlock()
	limit := time.NewTimer(MaxCancelDelay)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}

// Got1xx must be called when the response that has started to arrive is only an interim response with a 1xx status. It ends
// the delay of ResponseStarted, so the attempt may be cancelled until the final response arrives.
func (g *Guard) Got1xx() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.responseAt = time.Time{}
	if g.timer != nil && g.timer.Stop() {
		g.timer = nil
		g.cancelOrDelay()
	}
}

// Returned must be called when the RoundTrip of the attempt has returned. After that, cancellation breaks no other request and
// is not delayed.
func (g *Guard) Returned() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.returned, g.responseAt = true, time.Time{}
	if g.done != nil {
		close(g.done)
		g.done = nil
	}
	if g.timer != nil {
		g.timer.Stop()
		g.cancel()
	}
}

// Cancel implements [race.Guard]. It calls the function cancel as soon as cancellation breaks no other request.
func (g *Guard) Cancel(cancel func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cancel == nil {
		g.cancel = cancel
		g.cancelOrDelay()
	}
}

// canCancelNow reports whether Cancel would cancel the attempt without a delay.
func (g *Guard) canCancelNow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cancelDelay() <= 0
}

// cancelDelay returns the time for which cancellation must still be delayed. It is 0 or negative if the attempt can be cancelled
// now. The caller must hold mu.
func (g *Guard) cancelDelay() time.Duration {
	switch {
	case g.returned:
		return 0
	case !g.responseAt.IsZero():
		return MaxCancelDelay - time.Since(g.responseAt)
	default:
		return time.Until(g.settledAt)
	}
}

// cancelOrDelay cancels the attempt if that is allowed now. Otherwise it starts a timer that tries again. The caller must hold
// mu.
func (g *Guard) cancelOrDelay() {
	wait := g.cancelDelay()
	if wait <= 0 {
		g.cancel()
		return
	}
	due := time.Now().Add(wait)
	g.timer = time.AfterFunc(wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if now := time.Now(); now.Sub(due) > maxLateness && (!g.extended || now.Before(g.extendUntil)) {
			g.settledAt, g.extended = now.Add(settleTime), true
		}
		g.cancelOrDelay()
	})
}
