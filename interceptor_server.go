//go:build !hedge_nogrpc

package hedge

import (
	"context"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge/internal/grpccall"
	"github.com/gohedge/hedge/internal/race"
)

// NewUnaryServerInterceptor returns a server interceptor that prevents the hedging of calls which a handler makes for
// a hedge. It marks the context of each incoming call that is a hedge. Calls that are made with a marked context are
// not hedged. [Middleware] does the same for HTTP, and explains why.
//
// The interceptor recognises hedges by the metadata grpc-previous-rpc-attempts. gRPC's own retries carry the same
// metadata, and are treated like hedges.
func NewUnaryServerInterceptor() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if n := grpccall.IncomingAttempt(ctx); n > 0 {
			ctx = race.HedgeContext(ctx, n)
		}
		return handler(ctx, req)
	}
}

// NewStreamServerInterceptor is [NewUnaryServerInterceptor] for streaming calls of all kinds.
func NewStreamServerInterceptor() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if n := grpccall.IncomingAttempt(stream.Context()); n > 0 {
			stream = &contextStream{stream, race.HedgeContext(stream.Context(), n)}
		}
		return handler(srv, stream)
	}
}

// A contextStream is a server stream whose Context is replaced by ctx.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *contextStream) Context() context.Context { return s.ctx }
