//go:build !hedge_nogrpc

// Package grpctest is package hedgetest for gRPC: a server in memory that goes wrong as it is told, and an interceptor that
// proves whether calls are safe to hedge. hedgetest.Warm and hedgetest.Recorder serve a hedge.Interceptor as well.
//
// It works in the fake time of testing/synctest.
package grpctest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/hedgetest"
	"github.com/gohedge/hedge/hedgetest/internal/memory"
)

// Target is the Target of every connection that [Server.Dial] returns, as hedgetest.Warm needs it.
const Target = "passthrough:///hedgetest"

// A Server is a gRPC server in memory, which clients reach by [Server.Dial]. It is closed when its test ends. Its methods
// are safe for concurrent use.
type Server struct {
	hedgetest.Faults
	t        testing.TB
	listener *memory.Listener
	closing  memory.CloseSignal
}

// NewServer starts a server of the services that register registers, which answers what its Faults let through. Interceptors
// among the options stand behind the Faults.
func NewServer(t testing.TB, register func(*grpc.Server), opts ...grpc.ServerOption) *Server {
	t.Helper()
	s := &Server{t: t, listener: memory.NewListener(), closing: make(memory.CloseSignal)}
	first := []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.interceptUnary), grpc.ChainStreamInterceptor(s.interceptStream)}
	srv := grpc.NewServer(append(first, opts...)...)
	register(srv)
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(s.listener) })
	t.Cleanup(func() {
		close(s.closing)
		srv.Stop()
		serving.Wait()
	})
	return s
}

// Dial returns a connection to the server, without encryption. It is closed when the test ends. The test fails at once if
// the options make no sense.
func (s *Server) Dial(opts ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()
	cc, err := grpc.NewClient(Target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.listener.Dial(ctx) }),
	}, opts...)...)
	if err != nil {
		s.t.Fatalf("hedgetest: %v", err)
	}
	s.t.Cleanup(func() { cc.Close() })
	return cc
}

// cutOffError returns the error of an attempt that has no answer: that of ctx if it has ended, otherwise UNAVAILABLE.
func cutOffError(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unavailable, "hedgetest: cut off by a Fault")
}

// errThrough says that an attempt is for the handler.
var errThrough = errors.New("hedgetest: no fault")

// applyFault delays an attempt as its fault says. It returns the error that ends the attempt, or errThrough if the handler is to be called.
func (s *Server) applyFault(ctx context.Context, f hedgetest.Fault) error {
	switch {
	case f.Delay > 0 && !s.closing.Pause(ctx, f.Delay):
		return cutOffError(ctx)
	case (f.Stall || f.Reset) && f.After <= 0:
		return s.endAttempt(ctx, f)
	case f.Status != 0 && !f.Stall && !f.Reset:
		return status.Error(codes.Code(f.Status), "hedgetest: a Fault")
	}
	return errThrough
}

// endAttempt ends an attempt in the middle: at once, or when the client has gone or the server closes.
func (s *Server) endAttempt(ctx context.Context, f hedgetest.Fault) error {
	if f.Reset && f.After > 0 { // the end of the connection could overtake the messages before it
		return cutOffError(ctx)
	}
	if p, ok := peer.FromContext(ctx); f.Reset && ok {
		s.listener.CutConn(p.Addr)
	}
	s.closing.Wait(ctx) // without an answer; the end of a connection ends ctx
	return cutOffError(ctx)
}

func (s *Server) interceptUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := s.applyFault(ctx, s.Arrive()); err != errThrough {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Server) interceptStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	f := s.Arrive()
	if err := s.applyFault(stream.Context(), f); err != errThrough {
		return err
	}
	if f.Stall || f.Reset {
		stream = &cutter{stream, f.After, func() error { return s.endAttempt(stream.Context(), f) }}
	}
	return handler(srv, stream)
}

// A cutter passes the first messages of a stream, as many as left says, and then ends the attempt.
type cutter struct {
	grpc.ServerStream
	left int64
	end  func() error
}

func (c *cutter) SendMsg(m any) error {
	if c.left == 0 {
		return c.end()
	}
	c.left--
	return c.ServerStream.SendMsg(m)
}
