//go:build !hedge_nogrpc

// Package grpctest is package hedgetest for gRPC: an in-memory server with injectable faults, and an interceptor that
// checks whether calls are safe to hedge. Use hedgetest.Warm and hedgetest.Recorder with a hedge.Interceptor.
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

// Target is the target of every connection that [Server.Dial] returns. Pass it to hedgetest.Warm.
const Target = "passthrough:///hedgetest"

// A Server is an in-memory gRPC server for tests. Clients connect to it through [Server.Dial]. It is closed when its
// test ends. Its methods are safe for concurrent use.
type Server struct {
	hedgetest.Faults
	t        testing.TB
	listener *memory.Listener
	closing  memory.CloseSignal // wakes stalled attempts when the server is closed
}

// NewServer starts a gRPC server that is closed when t ends. The function register must register its services. For each
// attempt, the server applies the assigned hedgetest.Fault before the interceptors in opts run.
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

// Dial returns a connection to the server, without encryption. The connection is closed when the test ends. Invalid
// options stop the test with a failure.
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

// cutOffError returns the error of an attempt that a Fault has ended early: the status for the error of ctx if ctx has
// ended, otherwise UNAVAILABLE.
func cutOffError(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unavailable, "hedgetest: cut off by a Fault")
}

// errNoFault is the result of applyFault if the Fault does not end the attempt, so that the handler must be called.
var errNoFault = errors.New("hedgetest: no fault")

// applyFault applies f to an attempt, as far as the handler is not needed: it delays the attempt, and may end it. It
// returns the error that ends the attempt, or errNoFault if the handler must be called.
func (s *Server) applyFault(ctx context.Context, f hedgetest.Fault) error {
	switch {
	case f.Delay > 0 && !s.closing.Pause(ctx, f.Delay):
		return cutOffError(ctx)
	case (f.Stall || f.Reset) && f.After <= 0:
		return s.endAttempt(ctx, f)
	case f.Status != 0 && !f.Stall && !f.Reset:
		return status.Error(codes.Code(f.Status), "hedgetest: a Fault")
	}
	return errNoFault
}

// endAttempt ends an attempt early, and returns the error for the client. For a Stall it waits until the client has
// gone or the server closes. For a Reset before the first message it closes the connection.
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
	if err := s.applyFault(ctx, s.Arrive()); err != errNoFault {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Server) interceptStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	f := s.Arrive()
	if err := s.applyFault(stream.Context(), f); err != errNoFault {
		return err
	}
	if f.Stall || f.Reset {
		stream = &truncatingStream{stream, f.After, func() error { return s.endAttempt(stream.Context(), f) }}
	}
	return handler(srv, stream)
}

// A truncatingStream is a server stream that sends the first messages of a handler, and ends the attempt when the
// handler sends more.
type truncatingStream struct {
	grpc.ServerStream
	// left is the number of messages that may still be sent.
	messagesLeft int64
	// end ends the attempt and returns the error for the client.
	end func() error
}

func (c *truncatingStream) SendMsg(m any) error {
	if c.messagesLeft == 0 {
		return c.end()
	}
	c.messagesLeft--
	return c.ServerStream.SendMsg(m)
}
