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

// A clientSetup has the parts from which a strategy makes a client, and the settings that the strategy chooses.
type clientSetup struct {
	clock func() time.Duration // stands still while others have their turn
	rate  float64              // the true requests per second, for strategies that are given it; else 0
	site  *site                // of a lab, else nil: a strategy can choose other addresses or other ways there
	sent  *tally               // counts attempts

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

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// A tally counts the attempts of each request. As an observer it does so where nothing can come between
// the library and its transport, or its connections.
type tally struct {
	hedge.NopObserver
	attempts []atomic.Int32 // by request
	won      []atomic.Int32 // the winning attempt, by request; nil: the server says which it is
}

// startObserving makes the tally count attempts as an observer of a library.
func (t *tally) startObserving() hedge.Observer {
	if t.won == nil {
		t.won = make([]atomic.Int32, len(t.attempts))
	}
	return t
}

func (t *tally) AttemptStart(ctx context.Context, _ hedge.KeyInfo, _ hedge.AttemptInfo) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.attempts[id].Add(1)
	}
}

func (t *tally) RequestDone(ctx context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.won[id].Store(int32(r.Winner))
	}
}

// requestKey is the key of a request's number in its context.
type requestKey struct{}
