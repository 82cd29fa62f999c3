package hedge

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/engine"
)

// previousAttempts is the metadata by which gRFC A6 tells a server of hedges and of retries.
const previousAttempts = "grpc-previous-rpc-attempts"

// NewUnaryServerInterceptor returns an interceptor that marks the contexts of
// calls that are hedges, by grpc-previous-rpc-attempts, as [Middleware] does for
// HTTP. The retries of gRPC itself have that as well: what is done for them is sent
// once too.
func NewUnaryServerInterceptor() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if n := incoming(ctx); n > 0 {
			ctx = engine.ForHedge(ctx, n)
		}
		return handler(ctx, req)
	}
}

// NewStreamServerInterceptor is [NewUnaryServerInterceptor] for streams of all kinds.
func NewStreamServerInterceptor() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if n := incoming(stream.Context()); n > 0 {
			stream = &markedStream{stream, engine.ForHedge(stream.Context(), n)}
		}
		return handler(srv, stream)
	}
}

// markedStream has a context of its own.
type markedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *markedStream) Context() context.Context { return s.ctx }

// incoming returns the number of the hedge that a server is called for, 0 if for none.
func incoming(ctx context.Context) int {
	return markOf(metadata.ValueFromIncomingContext(ctx, previousAttempts))
}

// asHedge returns the context of a client's hedge n.
func asHedge(ctx context.Context, n int) context.Context {
	return metadata.AppendToOutgoingContext(engine.ForHedge(ctx, n), previousAttempts, strconv.Itoa(n))
}

// onward returns the context of a call that is sent once: if it is made for a
// hedge, the server is told.
func onward(ctx context.Context) context.Context {
	n := engine.OverridesFrom(ctx).Hedge
	if n == 0 {
		return ctx
	}
	if md, _ := metadata.FromOutgoingContext(ctx); len(md[previousAttempts]) > 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, previousAttempts, strconv.Itoa(n))
}
