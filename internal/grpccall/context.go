package grpccall

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/hedgebalancer"
	"github.com/gohedge/hedge/internal/race"
)

// previousAttempts is the metadata key with the number of a hedge or retry (gRFC A6).
const previousAttempts = "grpc-previous-rpc-attempts"

// IncomingAttempt returns the number of the hedge that a server handles in ctx; 0: none.
func IncomingAttempt(ctx context.Context) int {
	return race.HedgeNumber(metadata.ValueFromIncomingContext(ctx, previousAttempts))
}

// hedgeContext returns the context of a hedge with the outgoing metadata md and the number of the hedge. It changes md.
func hedgeContext(a *race.Attempt, md metadata.MD, n int) context.Context {
	if md == nil {
		md = make(metadata.MD, 1)
	}
	md.Append(previousAttempts, strconv.Itoa(n))
	return metadata.NewOutgoingContext(a, md)
}

type hedgeOnConnKey struct{}

// A hedgeOnConn identifies a hedge that a Client sends over another connection than that of the caller.
type hedgeOnConn struct {
	by     any // the *Client
	cc     *grpc.ClientConn
	method string
}

// withHedgeOnConn returns a context by which the Client recognises its hedge, if it intercepts the other connection as well.
func withHedgeOnConn(ctx context.Context, h hedgeOnConn) context.Context {
	return context.WithValue(ctx, hedgeOnConnKey{}, h)
}

// isHedgeOnConn reports whether ctx belongs to the hedge h.
func isHedgeOnConn(ctx context.Context, h hedgeOnConn) bool { return ctx.Value(hedgeOnConnKey{}) == h }

// invokeOnConn is a [grpc.UnaryInvoker] for another connection than that of the caller. The interceptors and default call options of the other connection apply.
// The counterpart for streams is [grpc.NewClientStream].
func invokeOnConn(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
	return cc.Invoke(ctx, method, req, reply, opts...)
}

// contextWithoutHedges returns the context of a call that is sent once. If the call serves a hedge, its metadata has the number of the hedge. The balancer
// hedge_elsewhere treats a call within an attempt of another call as a call of its own.
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
