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

// A Fault is a failure that a server injects into one attempt. The zero Fault is none. A Delay comes before the other
// effects.
type Fault struct {
	// Delay is the time before the handler is called. If the client goes away meanwhile, the handler is not called.
	// Values of 0 and less mean no delay.
	Delay time.Duration

	// Status is the HTTP status or gRPC code of the response, which has no body. The handler is not called. The
	// default, 0, calls the handler.
	Status int

	// Stall stops the response after the part in After, until the client has gone or the server is closed.
	Stall bool

	// Reset ends the attempt after the part in After. HTTP/1.1 closes the connection, and HTTP/2 resets the stream.
	// gRPC closes the connection, which all its calls share, or after messages responds with UNAVAILABLE. Reset takes
	// precedence over Stall.
	//
	// net/http retries a GET by itself if it was reset without a response on a reused connection. The retry is another
	// attempt at the server.
	Reset bool

	// After is the part of the response that is sent before a Stall or Reset: bytes of an HTTP body, or messages of a
	// gRPC stream. With the default, 0, nothing is sent, not even a header, and the handler is not called.
	//
	// A shorter response is sent completely. For a longer one, the handler's Write panics with http.ErrAbortHandler
	// after the attempt has ended; over gRPC, Send returns an error.
	After int64
}

// isCutOff reports whether the fault ends the response early.
func (f Fault) isCutOff() bool { return f.Stall || f.Reset }

// Faults assigns a [Fault] to attempts at a server, by the order of their arrival: the first attempt, the second one,
// and so on, of any call. [Server] embeds it, and other servers can do so too. The zero value has no faults. It is safe
// for concurrent use.
type Faults struct {
	mu      sync.Mutex // guards the fields below
	arrived int
	faults  map[int]Fault // by number of the attempt, from 1
}

// At assigns f to the nth attempt that arrives from now on, where 1 is the next one. Other attempts are not affected.
// At panics if n is less than 1.
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

// Attempts returns the number of attempts that have arrived so far: primaries, hedges and retries by transports.
func (s *Faults) Attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrived
}

// Arrive counts an attempt and returns its Fault. Only servers outside this package need it; they must apply the Fault
// themselves.
func (s *Faults) Arrive() Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived++
	f := s.faults[s.arrived]
	delete(s.faults, s.arrived)
	return f
}
