// Package hedgetest helps to test programs that hedge. It has in-memory servers with injectable faults. A [Recorder]
// checks whether a call is hedged. A [Server] and [Warm] show how the program behaves with a hedge. [Twice] checks
// whether a call is safe to hedge.
//
//	server := hedgetest.NewServer(t, handler)
//	server.At(1, hedgetest.Fault{Stall: true})
//	var calls hedgetest.Recorder
//	rt := hedge.New(server.Transport(), hedge.WithObserver(&calls))
//	hedgetest.Warm(t, rt, 10*time.Millisecond, "shop.test")
//	// … a call to http://shop.test …
//	calls.Hedged(t, 1)
//
// The package works in the fake time of testing/synctest, where a stalled call takes no real time; HTTP/2 needs Go 1.26
// for that. It uses no sockets, and imports neither gRPC nor package hedge. Package grpctest does the same for gRPC.
package hedgetest

import (
	"sync"
	"time"
)

// A Fault describes how a server misbehaves for one attempt: it delays, fails, stalls or resets the response. The zero
// Fault does not affect the attempt. If a Fault has a Delay, the delay comes before the other effects.
type Fault struct {
	// Delay is the time before the handler is called. If the client cancels the attempt meanwhile, the handler is not
	// called. Values of 0 and less mean no delay.
	Delay time.Duration

	// Status is the HTTP status or gRPC code that the server sends without a body, in place of calling the handler. The
	// default, 0, calls the handler.
	Status int

	// Stall stops the response after the first After bytes or messages, until the client cancels the attempt or the server
	// is closed.
	Stall bool

	// Reset ends the attempt after the first After bytes or messages. HTTP/1.1 closes the connection, and HTTP/2 resets
	// the stream. gRPC closes the connection, which all its calls share, or after messages responds with UNAVAILABLE.
	// Reset takes precedence over Stall.
	//
	// If a GET on a reused connection is reset without a response, net/http retries it by itself. The server counts the
	// retry as another attempt.
	Reset bool

	// After is the length of the response before a Stall or Reset: bytes of an HTTP body, or messages of a gRPC stream.
	// With the default, 0, nothing is sent, not even a header, and the handler is not called.
	//
	// A response that is not longer than After is sent completely. For a longer response, the handler's Write panics with
	// http.ErrAbortHandler after the attempt has ended; over gRPC, Send returns an error.
	After int64
}

// isCutOff reports whether the fault ends or stops the response early: Stall or Reset is true.
func (f Fault) isCutOff() bool { return f.Stall || f.Reset }

// Faults assigns a [Fault] to attempts at a server, by the order in which attempts arrive, whatever call they belong
// to. [Server] embeds it, and other servers can do so too. The zero value has no faults. It is safe for concurrent use.
type Faults struct {
	mu      sync.Mutex    // guards the fields below
	arrived int           // number of attempts so far
	faults  map[int]Fault // faults of future attempts, by the number of the attempt, from 1
}

// At assigns f to the nth attempt that arrives from now on; 1 is the next attempt. Attempts without an assigned Fault
// are not affected. At panics if n is less than 1.
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

// Attempts returns the number of attempts that have arrived at the server so far: primaries, hedges and retries by
// transports.
func (s *Faults) Attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrived
}

// Arrive counts an attempt that has arrived at a server, and returns the Fault that is assigned to it. Only servers
// outside this package need to call it; they must apply the Fault themselves.
func (s *Faults) Arrive() Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived++
	f := s.faults[s.arrived]
	delete(s.faults, s.arrived)
	return f
}
