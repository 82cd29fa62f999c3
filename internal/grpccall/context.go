package grpccall

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/hedgebalancer"
	"github.com/gohedge/hedge/internal/race"
)

// previousAttempts is the metadata name under which a hedge or retry carries its number (gRFC A6).
const previousAttempts = "grpc-previous-rpc-attempts"

// IncomingAttempt returns the number of the hedge that a server is handling. The argument ctx is the context of the
// server's handler. The result is 0 if the call is not a hedge.
func IncomingAttempt(ctx context.Context) int {
	return race.HedgeNumber(metadata.ValueFromIncomingContext(ctx, previousAttempts))
}

// hedgeContext returns the context for sending hedge n, a child of the attempt a. Its outgoing metadata are md and the
// number n. It changes md.
func hedgeContext(a *race.Attempt, md metadata.MD, n int) context.Context {
	if md == nil {
		md = make(metadata.MD, 1)
	}
	md.Append(previousAttempts, strconv.Itoa(n))
	return metadata.NewOutgoingContext(a, md)
}

// A hedgeOnConnKey is the context key of a hedgeOnConn.
type hedgeOnConnKey struct{}

// A hedgeOnConn identifies a hedge that a Client sends over another connection than the caller's. It marks the context
// of the hedge, so that the Client does not hedge the hedge.
type hedgeOnConn struct {
	client any              // the *Client that sends the hedge
	cc     *grpc.ClientConn // the other connection
	method string
}

// withHedgeOnConn returns a child of ctx that is marked with h. If the other connection uses the same Client as
// interceptor, the Client recognises the hedge by the mark and does not hedge it again.
func withHedgeOnConn(ctx context.Context, h hedgeOnConn) context.Context {
	return context.WithValue(ctx, hedgeOnConnKey{}, h)
}

// isHedgeOnConn reports whether ctx is marked with h, so that it belongs to a hedge that must not be hedged again.
func isHedgeOnConn(ctx context.Context, h hedgeOnConn) bool { return ctx.Value(hedgeOnConnKey{}) == h }

// invokeOnConn is a [grpc.UnaryInvoker] that makes a unary call over cc with cc's interceptors and default call
// options. For streams, [grpc.NewClientStream] does the same.
func invokeOnConn(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
	return cc.Invoke(ctx, method, req, reply, opts...)
}

// contextWithoutHedges returns the context for a call that is not hedged. If ctx belongs to a hedge of another call,
// the outgoing metadata contain the number of that hedge.
//
// If ctx belongs to an attempt of another call, the balancer hedge_elsewhere must not treat this call as that attempt.
// So the context hides the attempt from the balancer.
func contextWithoutHedges(ctx context.Context, call race.CallTarget) context.Context {
	ctx, _ = race.SingleAttemptContext(ctx)
	o := race.OverridesFrom(ctx)
	if o.Parent != (race.CallTarget{}) && o.Parent != call {
		ctx = hedgebalancer.WithoutPick(ctx)
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
