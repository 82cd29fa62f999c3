package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A backend is the server of one strategy. It answers each attempt with its number, after the latency of a model.
type backend struct {
	serverLocation *serverLocation
	model          virtual.LatencyModel
	draws          sync.Pool      // of *virtual.RandomSource
	attempts       []atomic.Int32 // attempts that arrived, by request
	perEpisode     int            // requests
	acceptedConns  atomic.Int64   // connections
	processed      atomic.Int64   // attempts that servers with queues worked on, of requests that count
	stops          []func()
}

// startBackend starts the servers of strategy s at location, over http or grpc. w has the model of latencies and the
// queues; seed is for random numbers. requests counts all requests, and perEpisode those of an episode with one client.
func startBackend(location *serverLocation, protocol string, w virtual.Simulation, s strategy, seed uint64, requests, perEpisode int) *backend {
	b := &backend{
		serverLocation: location, model: w.Model, attempts: make([]atomic.Int32, requests), perEpisode: perEpisode,
		draws: sync.Pool{New: func() any { return virtual.NewRandomSource(seed) }},
	}
	for _, ln := range location.listeners {
		b.startReplica(protocol, w.Queue, s, countingListener{ln, &b.acceptedConns})
	}
	return b
}

type countingListener struct {
	net.Listener
	accepted *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

// A replica is one server of a backend. A replica with a queue processes one request at a time, and finishes a request
// that the client has cancelled.
type replica struct {
	*backend
	busy chan struct{} // full while the replica processes a request; nil: no queue
}

// startReplica starts one server for strategy s at ln, over http or grpc. If q is not nil, it processes one request at
// a time, behind a hedge.Limiter if s.limited.
func (b *backend) startReplica(protocol string, q *virtual.QueueConfig, s strategy, ln net.Listener) {
	r := &replica{backend: b}
	var limiter *hedge.Limiter
	if q != nil {
		r.busy = make(chan struct{}, 1)
		if s.limited {
			limiter = hedge.NewLimiter(1)
		}
	}
	if protocol == "grpc" {
		var opts []grpc.ServerOption
		if limiter != nil {
			opts = append(opts, grpc.UnaryInterceptor(limiter.UnaryServer()))
		}
		g := grpc.NewServer(opts...)
		g.RegisterService(&delayService, r)
		b.stops = append(b.stops, g.Stop)
		go func() { _ = g.Serve(ln) }() // until stopped
		return
	}
	h := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute, TLSConfig: b.serverLocation.server.Clone(), ErrorLog: log.New(io.Discard, "", 0)}
	if limiter != nil {
		h.Handler = limiter.Handler(r)
	}
	b.stops = append(b.stops, func() { _ = h.Close() })
	go func() { // until closed
		if h.TLSConfig != nil {
			_ = h.ServeTLS(ln, "", "")
		} else {
			_ = h.Serve(ln)
		}
	}()
}

// handleRequest serves an attempt of the request with the given ID. It waits for the latency of the attempt, or until
// ctx ends. n is the number of the attempt, from 0.
func (s *replica) handleRequest(ctx context.Context, request int) (n int, err error) {
	n = int(s.attempts[request].Add(1)) - 1
	if f := s.serverLocation.config.freeze; f > 0 && request%s.perEpisode >= f {
		s.serverLocation.freezeConnection()
	}
	draws := s.draws.Get().(*virtual.RandomSource)
	d := s.model(draws, virtual.Attempt{Request: request, N: n})
	s.draws.Put(draws)
	if s.busy != nil {
		s.busy <- struct{}{}
		defer func() { <-s.busy }()
		s.processed.Add(1)
		time.Sleep(d)
		return n, nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return n, nil
	case <-ctx.Done():
		return n, ctx.Err()
	}
}

// requestIDHeader is the header of an attempt that has the request ID.
const requestIDHeader = "X-Request"

func (s *replica) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := strconv.Atoi(r.Header.Get(requestIDHeader))
	if err != nil || request < 0 || request >= len(s.attempts) {
		http.Error(w, "no such request", http.StatusBadRequest)
		return
	}
	if s.serverLocation.config.stream {
		_ = http.NewResponseController(w).Flush() // a client that is gone does not read it
	}
	if n, err := s.handleRequest(r.Context(), request); err == nil {
		_, _ = io.WriteString(w, strconv.Itoa(n))
	}
}

// delayMethod has the prefix Get, by which this library recognizes that the method is safe to repeat.
const delayMethod = "/benchmark.Delay/Get"

var delayService = grpc.ServiceDesc{
	ServiceName: "benchmark.Delay",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Get",
		Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			request := new(wrapperspb.Int64Value)
			if err := decode(request); err != nil {
				return nil, err
			}
			handle := func(ctx context.Context, _ any) (any, error) {
				n, err := srv.(*replica).handleRequest(ctx, int(request.Value))
				return wrapperspb.Int64(int64(n)), err
			}
			if intercept == nil {
				return handle(ctx, request)
			}
			return intercept(ctx, request, &grpc.UnaryServerInfo{Server: srv, FullMethod: delayMethod}, handle)
		},
	}},
}
