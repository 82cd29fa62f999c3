// Package hedgetest is for tests of programs that hedge. It has servers in memory that go wrong as they are told, and answers
// three questions: is this call hedged ([Recorder]), what happens when it is ([Server], [Warm]), and is it safe to
// hedge ([Twice])?
//
//	server := hedgetest.NewServer(t, handler)
//	server.At(1, hedgetest.Fault{Stall: true})
//	var calls hedgetest.Recorder
//	rt := hedge.New(server.Transport(), hedge.WithObserver(&calls))
//	hedgetest.Warm(t, rt, 10*time.Millisecond, "shop.test")
//	// … a call to http://shop.test …
//	calls.Hedged(t, 1)
//
// All of it works in the fake time of testing/synctest, where a call that stalls costs no time; HTTP/2 there needs Go 1.26. It needs no sockets, and
// neither gRPC nor package hedge: package grpctest, below this one, does the same for gRPC.
package hedgetest

import (
	"sync"
	"time"
)

// A Fault is what goes wrong with one attempt at a server. The zero Fault is none. With a Delay and something else, the
// Delay comes first.
type Fault struct {
	// Delay is how much later than usual the attempt is answered: the handler is called after it, and not at all if the
	// client has gone by then. The default, 0, is none. Below 0 is 0.
	Delay time.Duration

	// Status is the HTTP status, or the gRPC code, with which the attempt is answered instead of by the handler. The
	// default, 0, is the handler's. The body is empty.
	Status int

	// Stall lets nothing come after what After says, until the client has gone or the server is closed.
	Stall bool

	// Reset ends the attempt after what After says: over HTTP/1.1 by closing the connection, over HTTP/2 by resetting the
	// stream, over gRPC by closing the connection, which all of its calls share, or after messages with UNAVAILABLE. Where a
	// connection had been used before, net/http itself sends a GET again that was reset without an answer; that is
	// another attempt at the server. Reset counts more than Stall.
	Reset bool

	// After is how much of the answer gets through before it stalls or is reset: bytes of an HTTP body, and
	// messages of a gRPC stream. The default, 0, is nothing at all: no header either, and the handler is not called. An answer
	// that has no more than After comes whole. Of one that has more, the handler's
	// Write panics with http.ErrAbortHandler when the attempt has ended; over gRPC, Send returns an error then.
	After int64
}

// cutsOff reports whether the fault cuts the answer off.
func (f Fault) cutsOff() bool { return f.Stall || f.Reset }

// Faults says what goes wrong with which attempt at a server: with the first one that arrives, the second one, and so on,
// whichever call they belong to. [Server] has it, and other servers may. The zero value lets all attempts through. It is safe for
// concurrent use.
type Faults struct {
	mu      sync.Mutex // guards the fields below
	arrived int
	faults  map[int]Fault // by the number of the attempt, from 1 on
}

// At has the nth attempt from now on meet f: 1 is the next attempt that arrives, 2 the one after it. The others are not
// affected. At panics if n is below 1.
func (s *Faults) At(n int, f Fault) {
	if n < 1 {
		panic("hedgetest: Faults.At: n is below 1")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults == nil {
		s.faults = make(map[int]Fault)
	}
	s.faults[s.arrived+n] = f
}

// Attempts returns how many attempts have arrived so far: primaries, hedges and what transports repeat by themselves.
func (s *Faults) Attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrived
}

// Arrive counts an attempt, and returns what goes wrong with it. It is for servers that are not of this package; they
// do with the attempt what the Fault says.
func (s *Faults) Arrive() Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived++
	f := s.faults[s.arrived]
	delete(s.faults, s.arrived)
	return f
}
