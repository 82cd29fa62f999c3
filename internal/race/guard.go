package race

import (
	"sync"
	"sync/atomic"
	"time"
)

// patience is how long the cancellation of an attempt waits for an answer that has begun to
// arrive, and how long such an answer waits for an attempt that has been cancelled.
const patience = time.Second

// A Guard keeps the cancellation of an attempt from harming others that use the same
// connection after it: a connection that is given back at the very moment of the
// cancellation may be cancelled under its next user. The operation says how far the
// attempt is; the race cancels it before its answer arrives or after it has returned, but
// not in between. The zero Guard is ready. It must not be copied.
type Guard struct {
	waiting atomic.Bool

	mu        sync.Mutex // guards the fields below
	answering bool
	returned  bool
	back      chan struct{} // closed by Returned; nil: nobody waits for it
	late      *time.Timer   // cancels though the answer is arriving
	due       func()        // what late calls
}

// Waiting says whether the attempt waits for a connection. A loser that waits does not
// linger: it is cancelled at once. An attempt that gets another connection, because it is
// repeated there, has no answer that arrives.
func (g *Guard) Waiting(yes bool) {
	g.waiting.Store(yes)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answering = false
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
	if g.late != nil && g.late.Stop() {
		g.due()
	}
}

func (g *Guard) cancel(in *inner, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.answering:
		in.cancel(cause)
	case g.late == nil:
		g.due = func() { in.cancel(cause) }
		g.late = time.AfterFunc(patience, g.due)
	}
}
