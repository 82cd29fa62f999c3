package race

import (
	"sync"
	"time"
)

const (
	// Patience is how long after an answer has begun to arrive its attempt is not cancelled, and how
	// long such an answer waits for an attempt that has been cancelled.
	Patience = time.Second
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
	mu        sync.Mutex // guards the fields below
	answering time.Time  // since when the answer arrives; zero: it does not
	returned  bool
	settled   time.Time     // the connection's last user has its answer
	back      chan struct{} // closed by Returned; nil: nobody waits for it
	due       func()        // cancels; nil: not asked for yet
	late      *time.Timer   // calls due, or asks again; nil: nothing is put off
}

// Waiting says that a waits for a connection. A loser that waits does not linger: it is
// cancelled at once. So is a hedge that waits when its primary fails, unless a connection is
// made for it, see [Attempt.Dialling].
func (g *Guard) Waiting(a *Attempt) {
	a.conn.Store(wanted)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answering = time.Time{} // an attempt that is repeated on another connection
}

// Connected says that a has a connection, and how long that was idle, if others have used
// it. If a has been cancelled already, which it notices as soon as it uses the connection,
// Connected first waits until the connection's last user has its answer.
func (g *Guard) Connected(a *Attempt, used bool, idle time.Duration) {
	a.conn.Store(ready)
	g.mu.Lock()
	g.answering = time.Time{}
	wait := settling - idle
	if used && wait > 0 {
		g.settled = time.Now().Add(wait)
	}
	g.mu.Unlock()
	if used && wait > 0 && a.Err() != nil {
		time.Sleep(wait)
	}
}

// Answering says that the answer to a arrives. For a second from now on, the race does not cancel a
// until Returned is called. If a has been cancelled, Answering returns
// after Returned, or after a second.
func (g *Guard) Answering(a *Attempt) {
	g.mu.Lock()
	g.answering = time.Now()
	if a.Err() == nil || g.returned {
		g.mu.Unlock()
		return
	}
	if g.back == nil {
		g.back = make(chan struct{})
	}
	back := g.back
	g.mu.Unlock()
	limit := time.NewTimer(Patience)
	defer limit.Stop()
	select {
	case <-back:
	case <-limit.C:
	}
}

// Informed says that what has arrived is no answer but a note that it takes longer, a status of
// 1xx: the attempt is as far as before it. That of the answer itself is not announced any more.
func (g *Guard) Informed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answering = time.Time{}
	if g.late != nil && g.late.Stop() {
		g.late = nil
		g.cancelOrPutOff()
	}
}

// Returned says that the attempt has given its connection back, or has an answer that it
// can be cancelled with.
func (g *Guard) Returned() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.returned, g.answering = true, time.Time{}
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
	return g.putOff() <= 0
}

// putOff returns for how long the attempt is not cancelled. The caller holds mu.
func (g *Guard) putOff() time.Duration {
	switch {
	case g.returned:
		return 0
	case !g.answering.IsZero():
		return Patience - time.Since(g.answering)
	default:
		return time.Until(g.settled)
	}
}

// cancelOrPutOff cancels the attempt, now or later. The caller holds mu.
func (g *Guard) cancelOrPutOff() {
	wait := g.putOff()
	if wait <= 0 {
		g.due()
		return
	}
	g.late = time.AfterFunc(wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.cancelOrPutOff()
	})
}
