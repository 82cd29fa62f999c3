package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge/benchmark/internal/conncount"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A backend is a server that takes as long as a model says, or until the request
// is cancelled. It answers with the attempt's number.
type backend struct {
	site   *site
	model  virtual.Model
	draws  sync.Pool      // of *virtual.Draws
	asked  []atomic.Int32 // attempts that arrived, by request
	each   int            // requests of an episode
	opened atomic.Int64   // connections
	stop   func()
}

// newBackend serves the contender's requests at its site.
func newBackend(c *contender, at *site) *backend {
	b := &backend{
		site: at, model: c.world.Model, asked: make([]atomic.Int32, len(c.calls)), each: c.episode(),
		draws: sync.Pool{New: func() any { return virtual.NewDraws(c.seed) }},
	}
	var serve func(net.Listener)
	if c.protocol == "grpc" {
		s := grpc.NewServer()
		s.RegisterService(&delayService, b)
		b.stop = s.Stop
		serve = func(ln net.Listener) { _ = s.Serve(ln) } // until stopped
	} else {
		s := &http.Server{Handler: b, ReadHeaderTimeout: time.Minute, TLSConfig: at.server.Clone()}
		b.stop = func() { _ = s.Close() }
		serve = func(ln net.Listener) { _ = s.Serve(ln) } // until closed
		if at.server != nil {
			serve = func(ln net.Listener) { _ = s.ServeTLS(ln, "", "") }
		}
	}
	for _, ln := range at.listeners {
		go serve(conncount.Listener{Listener: ln, Accepted: &b.opened})
	}
	return b
}

// wait takes the attempt's time.
func (b *backend) wait(ctx context.Context, request int) (n int, err error) {
	n = int(b.asked[request].Add(1)) - 1
	if f := b.site.lab.freeze; f > 0 && request%b.each >= f {
		b.site.freeze()
	}
	draws := b.draws.Get().(*virtual.Draws)
	d := b.model(draws, virtual.Attempt{Request: request, N: n})
	b.draws.Put(draws)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return n, nil
	case <-ctx.Done():
		return n, ctx.Err()
	}
}

// requestHeader names the request in its attempts.
const requestHeader = "X-Request"

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := strconv.Atoi(r.Header.Get(requestHeader))
	if err != nil || request < 0 || request >= len(b.asked) {
		http.Error(w, "no such request", http.StatusBadRequest)
		return
	}
	if b.site.lab.stream {
		_ = http.NewResponseController(w).Flush() // a client that is gone does not read it
	}
	if n, err := b.wait(r.Context(), request); err == nil {
		_, _ = io.WriteString(w, strconv.Itoa(n))
	}
}

// delayMethod promises by its name that it is safe to repeat.
const delayMethod = "/benchmark.Delay/Get"

var delayService = grpc.ServiceDesc{
	ServiceName: "benchmark.Delay",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Get",
		Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var request wrapperspb.Int64Value
			if err := decode(&request); err != nil {
				return nil, err
			}
			n, err := srv.(*backend).wait(ctx, int(request.Value))
			return wrapperspb.Int64(int64(n)), err
		},
	}},
}
