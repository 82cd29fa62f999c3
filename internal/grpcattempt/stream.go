package grpcattempt

import (
	"context"
	"sync"

	"github.com/gohedge/hedge/internal/race"
)

// A Choice is which attempt is the call. It is made once, and safe for concurrent use after Init.
type Choice struct {
	once sync.Once
	made chan struct{} // closed when the fields below are written

	// Read only after made is closed.
	winner  int
	release func() // ends the winner's context
}

// Init makes a zero Choice ready.
func (c *Choice) Init() { c.made = make(chan struct{}) }

// Make makes attempt n the call, unless the choice is made. release ends its context.
func (c *Choice) Make(n int, release func()) {
	c.once.Do(func() {
		c.winner, c.release = n, release
		close(c.made)
	})
}

// Known reports whether the choice is made.
func (c *Choice) Known() bool {
	select {
	case <-c.made:
		return true
	default:
		return false
	}
}

// Winner waits for the choice, and returns the attempt that is the call.
func (c *Choice) Winner() int {
	<-c.made
	return c.winner
}

// Release ends the winner's context. It waits for the choice.
func (c *Choice) Release() {
	<-c.made
	c.release()
}

// Sent is the message that the caller of a stream has sent. Hedges may copy it until it is known
// which attempt is the call. The zero Sent has none. It is safe for concurrent use.
type Sent struct {
	mu      sync.Mutex // guards the fields below, and is held while message is copied
	message any        // nil: none yet. grpc forbids changing it after SendMsg
	closed  bool
}

// Keep says that the caller sends m.
func (s *Sent) Keep(m any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.message = m
}

// Any reports whether there is a message.
func (s *Sent) Any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.message != nil
}

// Copy returns a copy of the message. It returns false if Close was called.
func (s *Sent) Copy() (message any, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false
	}
	return CopyOf(s.message), true
}

// Close ends copying. It waits until nobody copies the message.
func (s *Sent) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// An EarlyContext is the context of a call of which it is not known which attempt it is. The
// zero EarlyContext is ready. It is safe for concurrent use.
type EarlyContext struct {
	mu     sync.Mutex         // guards the fields below
	ctx    context.Context    // nil: nobody has asked
	cancel context.CancelFunc // ends ctx
	over   bool               // the call has ended
}

// Get returns the context. The first call makes it from parent.
func (e *EarlyContext) Get(parent context.Context) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil {
		e.ctx, e.cancel = context.WithCancel(parent)
		if e.over {
			e.cancel()
		}
	}
	return e.ctx
}

// End ends the context, also if it is made later.
func (e *EarlyContext) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	if e.ctx != nil {
		e.cancel()
	}
}

// Finish says when to call the functions of a caller's OnFinish. It is safe for concurrent use.
type Finish struct {
	Functions []func(error) // written before the first attempt, and not changed after it

	mu    sync.Mutex // guards the fields below
	ended [1 + race.MaxHedges]*error
	told  bool // Due has reported true
}

// Ended says that attempt n has ended with err.
func (f *Finish) Ended(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[n] = &err
}

// Due reports whether the functions are to be called now, with the winner's error: it has ended,
// and Due has not reported true before.
func (f *Finish) Due(winner int) (due bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told || f.ended[winner] == nil {
		return false, nil
	}
	f.told = true
	return true, *f.ended[winner]
}
