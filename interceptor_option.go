package hedge

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// grpcConfig is what the options of this file set.
type grpcConfig struct {
	conn     *grpc.ClientConn // for hedges; nil: the primary's
	nonFatal map[codes.Code]bool
}

// A grpcOption is an option that only an Interceptor has. The other adapters need not know
// its types, so that they can be built without gRPC.
type grpcOption func(*grpcConfig)

func (o grpcOption) apply(c *config) { c.adapter = append(c.adapter, o) }

// grpcConfigOf returns what the options of a config say of gRPC.
func grpcConfigOf(c *config) grpcConfig {
	g := grpcConfig{nonFatal: nonFatal}
	for _, o := range c.adapter {
		if set, ok := o.(grpcOption); ok {
			set(&g)
		}
	}
	return g
}

// WithHedgeConn sends gRPC hedges over cc: another connection to the same
// target, or another set of replicas. cc connects when the interceptor is made,
// and again when a hedge finds that it has become idle; no hedge is sent while it
// is not connected. It panics if cc is nil.
//
// Without it, hedges go over the primary's ClientConn, where round_robin often picks
// another backend for them, hedge_elsewhere always does (see [Interceptor]), and
// pick_first never.
func WithHedgeConn(cc *grpc.ClientConn) Option {
	if cc == nil {
		panic("hedge: WithHedgeConn: *ClientConn is nil")
	}
	return grpcOption(func(c *grpcConfig) { c.conn = cc })
}

// WithNonFatalCodes says with which gRPC codes a primary that failed waits for
// a hedge that is out. The default is Unavailable, ResourceExhausted, Aborted,
// Internal and Unknown, as in gRFC A6. It panics if a code is OK.
func WithNonFatalCodes(cs ...codes.Code) Option {
	set := make(map[codes.Code]bool)
	for _, c := range cs {
		if c == codes.OK {
			panic("hedge: WithNonFatalCodes: code is OK")
		}
		set[c] = true
	}
	return grpcOption(func(c *grpcConfig) { c.nonFatal = set })
}

// nonFatal are the codes after which another attempt may do better.
var nonFatal = map[codes.Code]bool{
	codes.Unavailable: true, codes.ResourceExhausted: true, codes.Aborted: true, codes.Internal: true, codes.Unknown: true,
}
