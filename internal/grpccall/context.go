package grpccall

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/hedgebalancer"
	"github.com/gohedge/hedge/internal/race"
)

// previousAttempts is the metadata key in which a hedge or retry carries its number (gRFC A6).
const previousAttempts = "grpc-previous-rpc-attempts"

// IncomingAttempt returns the number of the hedge that a server handles in ctx, or 0 if the call is not a hedge.
func IncomingAttempt(ctx context.Context) int {
	return race.HedgeNumber(metadata.ValueFromIncomingContext(ctx, previousAttempts))
}

// hedgeContext returns the context of hedge n with the outgoing metadata md, to which it adds the number n.
func hedgeContext(a *race.Attempt, md metadata.MD, n int) context.Context {
	if md == nil {
		md = make(metadata.MD, 1)
	}
	md.Append(previousAttempts, strconv.Itoa(n))
	return metadata.NewOutgoingContext(a, md)
}

type hedgeOnConnKey struct{}

// A hedgeOnConn identifies a hedge that a Client sends over another connection than the caller's.
type hedgeOnConn struct {
	client any // the *Client
	cc     *grpc.ClientConn
	method string
}

// withHedgeOnConn returns a context that marks the hedge h. If the Client intercepts the other connection as well, it
// recognises the hedge and does not hedge it again.
func withHedgeOnConn(ctx context.Context, h hedgeOnConn) context.Context {
	return context.WithValue(ctx, hedgeOnConnKey{}, h)
}

// isHedgeOnConn reports whether ctx is marked as the context of the hedge h.
func isHedgeOnConn(ctx context.Context, h hedgeOnConn) bool { return ctx.Value(hedgeOnConnKey{}) == h }

// invokeOnConn is a [grpc.UnaryInvoker] that calls cc with its interceptors and default call options. For streams,
// [grpc.NewClientStream] does the same.
func invokeOnConn(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
	return cc.Invoke(ctx, method, req, reply, opts...)
}

// contextWithoutHedges returns the context of a call that is not hedged. If the call serves a hedge of another call,
// its metadata carries the number of that hedge. For the balancer hedge_elsewhere, the call is not an attempt of the
// other call.
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
