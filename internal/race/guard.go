package race

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// patience is how long the cancellation of an attempt waits for an answer that has begun to
	// arrive, and how long such an answer waits for an attempt that has been cancelled.
	patience = time.Second
	// settling is how long after its last use a connection is not cancelled.
	settling = 100 * time.Millisecond
)

// A Guard keeps the cancellation of an attempt from harming others that use the same
// connection before or after it: where a connection is passed on before its user has its
// answer in hand, cancelling one of the two hits the other. The operation says how far the
// attempt is; the race then does not cancel it while it has only just got a connection that
// others have used, nor between the arrival of its answer and its return. Nobody waits for
// that but the attempt itself. The zero Guard is ready. It must not be copied.
type Guard struct {
	waiting atomic.Bool

	mu        sync.Mutex // guards the fields below
	answering bool
	returned  bool
	settled   time.Time     // the connection's last user has its answer
	back      chan struct{} // closed by Returned; nil: nobody waits for it
	due       func()        // cancels; nil: not asked for yet
	late      *time.Timer   // calls due, or asks again; nil: nothing is put off
}

// Waiting says that the attempt waits for a connection. A loser that waits does not linger:
// it is cancelled at once.
func (g *Guard) Waiting() {
	g.waiting.Store(true)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answering = false // an attempt that is repeated on another connection
}

// Connected says that a has a connection, and how long that was idle, if others have used
// it. If a has been cancelled already, which it notices as soon as it uses the connection,
// Connected first waits until the connection's last user has its answer.
func (g *Guard) Connected(a *Attempt, used bool, idle time.Duration) {
	g.waiting.Store(false)
	g.mu.Lock()
	g.answering = false
	wait := settling - idle
	if used && wait > 0 {
		g.settled = time.Now().Add(wait)
	}
	g.mu.Unlock()
	if used && wait > 0 && a.Err() != nil {
		time.Sleep(wait)
	}
}

// Answering says that the answer to a arrives. From now on the race does not cancel a
// until Returned is called, or for a second. If a has been cancelled, Answering returns
// after Returned, or after a second.
func (g *Guard) Answering(a *Attempt) {
	g.mu.Lock()
	g.answering = true
	if a.Err() == nil || g.returned {
		g.mu.Unlock()
		return
	}
	if g.back == nil {
		g.back = make(chan struct{})
	}
	back := g.back
	g.mu.Unlock()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-back:
	case <-limit.C:
	}
}

// Returned says that the attempt has given its connection back, or has an answer that it
// can be cancelled with.
func (g *Guard) Returned() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.returned, g.answering = true, false
	if g.back != nil {
		close(g.back)
		g.back = nil
	}
	if g.late != nil {
		g.late.Stop()
		g.due()
	}
}

func (g *Guard) cancel(in *inner, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.due == nil {
		g.due = func() { in.end(cause) }
		g.cancelOrPutOff()
	}
}

// prompt reports whether cancel would cancel the attempt at once.
func (g *Guard) prompt() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.answering && time.Until(g.settled) <= 0
}

// cancelOrPutOff cancels the attempt, now or later. The caller holds mu.
func (g *Guard) cancelOrPutOff() {
	switch wait := time.Until(g.settled); {
	case g.answering:
		g.late = time.AfterFunc(patience, g.due)
	case wait > 0 && !g.returned:
		g.late = time.AfterFunc(wait, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.cancelOrPutOff()
		})
	default:
		g.due()
	}
}
