package grpccall

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/elsewhere"
	"github.com/gohedge/hedge/internal/race"
)

// previousAttempts is the metadata by which gRFC A6 tells a server of hedges and of retries.
const previousAttempts = "grpc-previous-rpc-attempts"

// IncomingAttempt returns the number of the hedge that a server is called for, or 0.
func IncomingAttempt(ctx context.Context) int {
	return race.HedgeNumber(metadata.ValueFromIncomingContext(ctx, previousAttempts))
}

// hedgeContext returns the context of a client's hedge. Its metadata is md, which it takes over, and tells the server of the hedge.
func hedgeContext(a *race.Attempt, md metadata.MD, n int) context.Context {
	if md == nil {
		md = make(metadata.MD, 1)
	}
	md.Append(previousAttempts, strconv.Itoa(n))
	return metadata.NewOutgoingContext(a, md)
}

type hedgeOverKey struct{}

// A hedgeOver is a hedge that a Client sends over another connection than the caller's.
type hedgeOver struct {
	by     any // the *Client
	cc     *grpc.ClientConn
	method string
}

// withHedgeOver returns a context by which the Client recognises the hedge, if the other connection has that Client as well.
func withHedgeOver(ctx context.Context, h hedgeOver) context.Context {
	return context.WithValue(ctx, hedgeOverKey{}, h)
}

// isHedgeOver reports whether a call with the context is the hedge.
func isHedgeOver(ctx context.Context, h hedgeOver) bool { return ctx.Value(hedgeOverKey{}) == h }

// invokeOver makes a call over another connection than the caller's, whose interceptors and default call options hold for it. Of streams,
// [grpc.NewClientStream] does so.
func invokeOver(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
	return cc.Invoke(ctx, method, req, reply, opts...)
}

// onceContext returns the context of a call of a method that is sent once. If the call is made
// for a hedge, its metadata tells the server. Within an attempt of another call it is not that attempt; within
// one of the same it is, below a second interceptor.
func onceContext(ctx context.Context, call race.Called) context.Context {
	ctx, _ = race.Once(ctx)
	o := race.OverridesFrom(ctx)
	if o.Above != (race.Called{}) && o.Above != call {
		ctx = elsewhere.Apart(ctx)
	}
	n := o.Hedge
	if n == 0 {
		return ctx
	}
	if md, _ := metadata.FromOutgoingContext(ctx); len(md[previousAttempts]) > 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, previousAttempts, strconv.Itoa(n))
}
