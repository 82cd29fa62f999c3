package main

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/race"
)

// A clientSetup is the input from which a strategy makes an HTTP or gRPC client. It has the address of the server, the
// transport or dial function to use, and a clock. The strategy stores in it how to close the client, how to count
// refused hedges, and how to race requests.
type clientSetup struct {
	clock func() time.Duration // stands still while others have their turn
	rate  float64              // the true requests per second, for strategies that are given it; else 0
	site  *site                // of a lab, else nil: a strategy can choose other addresses or other ways there
	sent  *attemptCounter      // counts attempts

	// Over HTTP.
	base    *http.Transport
	spread  http.RoundTripper // base, or what sends to any replica of a lab
	counted http.RoundTripper // the same, and counts the attempts of each request
	url     string            // of the server

	// connect dials the gRPC server from a host of the lab. The connection is closed with the client.
	connect func(dial dialer, chain ...grpc.UnaryClientInterceptor) (*grpc.ClientConn, error)
	policy  string // that chooses among the replicas of a lab; the strategy may set another

	// What the strategy may set.
	refused func() int         // hedges
	shut    func()             // closes the client's connections
	style   *race.Options[int] // how requests are raced after delays; nil: the client hedges by itself
	delays  []time.Duration    // before each hedge, where style is set; written between rounds
}

// A dialer opens a network connection, as net.Dialer.DialContext does.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// An attemptCounter counts the attempts of each request. Over a simulated network it is an observer of this library,
// because no transport may come between the library and the network there.
type attemptCounter struct {
	hedge.NopObserver
	attempts []atomic.Int32 // by request
	won      []atomic.Int32 // the winning attempt, by request; nil: the server says which it is
}

// startObserving returns the counter as an observer for this library, which reports attempts and winners to it.
func (t *attemptCounter) startObserving() hedge.Observer {
	if t.won == nil {
		t.won = make([]atomic.Int32, len(t.attempts))
	}
	return t
}

// AttemptStart counts an attempt of the request whose number the context has.
func (t *attemptCounter) AttemptStart(ctx context.Context, _ hedge.KeyInfo, _ hedge.AttemptInfo) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.attempts[id].Add(1)
	}
}

// RequestDone records the winning attempt of the request whose number the context has.
func (t *attemptCounter) RequestDone(ctx context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.won[id].Store(int32(r.Winner))
	}
}

// A requestKey is the key under which the context of a request has the number of the request.
type requestKey struct{}
