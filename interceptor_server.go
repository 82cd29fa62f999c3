//go:build !hedge_nogrpc

package hedge

import (
	"context"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge/internal/grpccall"
	"github.com/gohedge/hedge/internal/race"
)

// NewUnaryServerInterceptor returns an interceptor that recognises calls that are
// hedges by grpc-previous-rpc-attempts, as [Middleware] does for HTTP. gRPC's own
// retries carry the same metadata: calls made for them are not hedged either.
func NewUnaryServerInterceptor() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if n := grpccall.IncomingAttempt(ctx); n > 0 {
			ctx = race.HedgeContext(ctx, n)
		}
		return handler(ctx, req)
	}
}

// NewStreamServerInterceptor is [NewUnaryServerInterceptor] for streams of all kinds.
func NewStreamServerInterceptor() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if n := grpccall.IncomingAttempt(stream.Context()); n > 0 {
			stream = &contextStream{stream, race.HedgeContext(stream.Context(), n)}
		}
		return handler(srv, stream)
	}
}

// contextStream is a stream with a context of its own.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *contextStream) Context() context.Context { return s.ctx }
