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

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A backend is a server on a loopback socket that takes as long as a model
// says, or until the request is cancelled. It answers with the attempt's number.
type backend struct {
	model  virtual.Model
	draws  sync.Pool      // of *virtual.Draws
	asked  []atomic.Int32 // attempts that arrived, by request
	opened atomic.Int64   // connections
	ln     net.Listener
	stop   func()
}

func newBackend(protocol string, model virtual.Model, seed uint64, requests int) (*backend, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &backend{
		model: model, ln: ln, asked: make([]atomic.Int32, requests),
		draws: sync.Pool{New: func() any { return virtual.NewDraws(seed) }},
	}
	counted := &countedListener{ln, &b.opened}
	if protocol == "grpc" {
		s := grpc.NewServer()
		s.RegisterService(&delayService, b)
		b.stop = s.Stop
		go s.Serve(counted) // returns when stopped
	} else {
		s := &http.Server{Handler: b, ReadHeaderTimeout: time.Minute}
		b.stop = func() { _ = s.Close() }
		go s.Serve(counted) // returns when closed
	}
	return b, nil
}

func (b *backend) addr() string { return b.ln.Addr().String() }

// wait takes the attempt's time.
func (b *backend) wait(ctx context.Context, request int) (n int, err error) {
	n = int(b.asked[request].Add(1)) - 1
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
	if n, err := b.wait(r.Context(), request); err == nil {
		_, _ = io.WriteString(w, strconv.Itoa(n)) // a client that is gone does not read it
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

// countedListener counts the connections it accepts.
type countedListener struct {
	net.Listener
	opened *atomic.Int64
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.opened.Add(1)
	}
	return c, err
}
