// Package loser ends HTTP/1.1 attempts that have lost their race. Cancelling one closes its connection, and may hit
// the request before or after it on that connection. So a [Guard] puts the cancellation off while that can happen, and a
// [List] lets losers finish.
package loser

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

const (
	// MaxCancelDelay is the longest time for which a [Guard] puts off a cancellation, and for which a response waits for
	// the end of an attempt that has been cancelled.
	MaxCancelDelay = time.Second
	// settleTime is the time after the last use of a connection in which its next user is not cancelled.
	settleTime = 100 * time.Millisecond
)

// A Guard observes the connection of one attempt. It delays the cancellation of the attempt while that would harm another request. net/http
// (Go 1.26) may give a connection to the next request before the previous one has its response. Cancelling one of the two then fails the
// other.
//
// So the attempt is not cancelled for [settleTime] after it has got a used connection, and not between the arrival of its response and its
// return. Only the attempt itself waits for that.
//
// The methods are hooks that report events of the attempt. The zero Guard is ready for Attach. It must not be copied.
type Guard struct {
	mu       sync.Mutex    // guards the fields below, but for conn
	returned bool          // Returned was called
	conn     atomic.Uint32 // one of the states below

	responseAt time.Time     // arrival of the response; zero: it has not arrived
	settledAt  time.Time     // time from which the previous request of the connection surely has its response
	done       chan struct{} // closed by Returned; nil: no ResponseStarted waits
	cancel     func()        // cancels the attempt; nil: Cancel has not been called
	timer      *time.Timer   // cancels the attempt later; nil: no cancellation is delayed
}

// The states of the connection of an attempt.
const (
	connUnknown uint32 = iota // the attempt has not reached net/http, or is sent by another RoundTripper
	connReady                 // the attempt has a connection
	connQueued                // the attempt waits for a connection that another request uses
	connDialing               // a connection is being made for the attempt
)

// Attach makes g the guard of a. It replaces an earlier guard, whose connection state g takes over.
func (g *Guard) Attach(a *race.Attempt) {
	if before := guardOf(a); before != nil {
		g.conn.Store(before.conn.Load())
	}
	a.SetGuard(g)
}

// guardOf returns the guard of a; nil if a has none.
func guardOf(a *race.Attempt) *Guard {
	g, _ := a.Guard().(*Guard)
	return g
}

// ReportsConn reports whether the state of the connection of a is known, because net/http has called a hook of its guard.
func ReportsConn(a *race.Attempt) bool { return connOf(a) != connUnknown }

// IsQueued reports whether a waits for a connection that another request uses, while no connection is being made for a.
func IsQueued(a *race.Attempt) bool { return connOf(a) == connQueued }

// connOf returns the state of the connection of a.
func connOf(a *race.Attempt) uint32 {
	if g := guardOf(a); g != nil {
		return g.conn.Load()
	}
	return connUnknown
}

// GetConn is called when the attempt begins to wait for a connection. It is called again if net/http sends the request again on another
// connection.
func (g *Guard) GetConn() {
	g.conn.Store(connQueued)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.responseAt = time.Time{}
}

// Dialing is called when a connection is being made for an attempt that waits for one.
func (g *Guard) Dialing() { g.conn.CompareAndSwap(connQueued, connDialing) }

// GotConn is called when a gets a connection. If used is true, other requests have used the connection, and it was idle for the given time.
// If a is cancelled already, GotConn first waits until the previous request surely has its response: a closes the connection when it uses
// it.
func (g *Guard) GotConn(a *race.Attempt, used bool, idle time.Duration) {
	g.conn.Store(connReady)
	g.mu.Lock()
	g.responseAt = time.Time{}
	wait := settleTime - idle
	if used && wait > 0 {
		g.settledAt = time.Now().Add(wait)
	}
	g.mu.Unlock()
	if used && wait > 0 && a.Err() != nil {
		time.Sleep(wait)
	}
}

// ResponseStarted is called when the response to a begins to arrive. It delays cancellation until Returned is called, but for at most
// [MaxCancelDelay]. If a is cancelled already, ResponseStarted waits for Returned, or for that time.
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

// Got1xx is called when the response that has started has a 1xx status. The final response is still to come, so the attempt can be
// cancelled again.
func (g *Guard) Got1xx() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.responseAt = time.Time{}
	if g.timer != nil && g.timer.Stop() {
		g.timer = nil
		g.cancelOrDelay()
	}
}

// Returned is called when the RoundTrip of the attempt has returned. From then on, cancellation harms no other request.
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

// Cancel implements [race.Guard]. It calls cancel, which cancels the attempt, as soon as that harms no other request.
func (g *Guard) Cancel(cancel func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cancel == nil {
		g.cancel = cancel
		g.cancelOrDelay()
	}
}

// canCancelNow reports whether Cancel would cancel the attempt without delay.
func (g *Guard) canCancelNow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cancelDelay() <= 0
}

// cancelDelay returns the time for which cancellation must still be delayed; 0 or less if it need not. The caller holds mu.
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

// cancelOrDelay cancels the attempt now, or starts a timer that does. The caller holds mu.
func (g *Guard) cancelOrDelay() {
	wait := g.cancelDelay()
	if wait <= 0 {
		g.cancel()
		return
	}
	g.timer = time.AfterFunc(wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.cancelOrDelay()
	})
}
