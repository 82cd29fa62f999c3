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

// A Guard observes the connection of one attempt, and puts off the cancellation of the attempt where that would harm
// others. net/http (Go 1.26) may pass a connection on before its last user has its response in hand. Cancelling one of the
// two then fails the other.
//
// So the attempt is not cancelled for [settleTime] after it has got a connection that others have used, nor between the
// arrival of its response and its return. Only the attempt itself waits for that.
//
// The methods are hooks: each is called when its event happens. The zero Guard is ready for Attach. It must not be copied.
type Guard struct {
	mu       sync.Mutex    // guards the fields below, but for conn
	returned bool          // see Returned
	conn     atomic.Uint32 // one of the states below

	responseAt time.Time     // when the response began to arrive; zero: it has not
	settledAt  time.Time     // when the last user of the connection has its response
	done       chan struct{} // closed by Returned; nil: no ResponseStarted waits for it
	cancel     func()        // cancels the attempt; nil: Cancel has not been called
	timer      *time.Timer   // cancels the attempt later; nil: the cancellation is not put off
}

// The states of the connection of an attempt.
const (
	connUnknown uint32 = iota // the attempt has not reached net/http, or is sent by another RoundTripper
	connReady                 // it has one
	connQueued                // it waits for one that other requests use
	connDialing               // one is being made for it
)

// Attach makes g the guard of a, in place of another one that a may have.
func (g *Guard) Attach(a *race.Attempt) {
	if before := guardOf(a); before != nil {
		g.conn.Store(before.conn.Load())
	}
	a.SetGuard(g)
}

// guardOf returns the guard of a; nil if it has none.
func guardOf(a *race.Attempt) *Guard {
	g, _ := a.Guard().(*Guard)
	return g
}

// ReportsConn reports whether net/http has called a hook of the guard of a, so that the state of its connection is known.
func ReportsConn(a *race.Attempt) bool { return connOf(a) != connUnknown }

// IsQueued reports whether a waits for a connection that other requests use, and none is being made for it.
func IsQueued(a *race.Attempt) bool { return connOf(a) == connQueued }

// connOf returns the state of the connection of a.
func connOf(a *race.Attempt) uint32 {
	if g := guardOf(a); g != nil {
		return g.conn.Load()
	}
	return connUnknown
}

// GetConn is called when a begins to wait for a connection, also if it is sent again after its first connection was closed.
func (g *Guard) GetConn() {
	g.conn.Store(connQueued)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.responseAt = time.Time{}
}

// Dialing is called when a connection is being made for an attempt that waits for one.
func (g *Guard) Dialing() { g.conn.CompareAndSwap(connQueued, connDialing) }

// GotConn is called when a has a connection. If others have used it, idle is the time since then. If a has been
// cancelled already, which it notices when it uses the connection, GotConn first waits until the connection has settled.
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

// ResponseStarted is called when the response to a begins to arrive. The attempt is not cancelled until Returned is called,
// for [MaxCancelDelay] at most. If a has been cancelled already, ResponseStarted returns after Returned, or after that time.
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

// Got1xx is called when the response that has started is a status of 1xx: the final one is still to come, and net/http does
// not announce it. The attempt may be cancelled as before.
func (g *Guard) Got1xx() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.responseAt = time.Time{}
	if g.timer != nil && g.timer.Stop() {
		g.timer = nil
		g.cancelOrDelay()
	}
}

// Returned is called when the RoundTrip of the attempt has returned. From now on a cancellation harms no other request.
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

// Cancel implements [race.Guard]: it calls cancel, which ends the attempt, as soon as that harms no other request.
func (g *Guard) Cancel(cancel func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cancel == nil {
		g.cancel = cancel
		g.cancelOrDelay()
	}
}

// canCancelNow reports whether Cancel would cancel the attempt at once.
func (g *Guard) canCancelNow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cancelDelay() <= 0
}

// cancelDelay returns how long a cancellation is put off. The caller holds mu.
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

// cancelOrDelay cancels the attempt, now or later. The caller holds mu.
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
