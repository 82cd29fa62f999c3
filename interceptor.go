//go:build !hedge_nogrpc

package hedge

import (
	"google.golang.org/grpc"

	"github.com/gohedge/hedge/internal/grpccall"
)

// Only the files whose names begin with interceptor import grpc, and the build tag
// hedge_nogrpc leaves them out. Tests keep both so.

// An Interceptor hedges gRPC calls that are slower than usual for their target
// and method. Its [Interceptor.Unary] and [Interceptor.Stream] share what is
// learned, the settings, the counters and the budgets. It is safe for concurrent use,
// and by any number of connections. The zero Interceptor is not usable.
//
// Importing this package registers the load balancing policy hedge_elsewhere, which sends
// a hedge to a backend that its call has not used. It is asked for by the service config,
// and wraps any other policy, of which it is the parent; round_robin if none is named:
//
//	{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"least_request_experimental":{}}]}}]}
//
// For a hedge it asks that policy up to five times. If there is no backend that the call has not used, one that only its
// hedges have used will do. If all five are the primary's though another is ready, the hedge is not sent, and counts as
// [DeniedSameBackend]: so it is for policies that always send a call to the same backend, such as ring_hash. If no other is
// ready, the hedge goes to the primary's as it would without. Picks that are not used end as losers do, with CANCELLED, and
// at once after the attempt that has their backend, so that averages of latency learn nothing from them, or a second after the first message
// of a stream. Outlier detection would take them for failures: put it above hedge_elsewhere.
//
// Where servers report their load with answers (ORCA, gRFC A51), and the program imports google.golang.org/grpc/orca, without which gRPC does not read
// that, a hedge goes to the less loaded of two backends that its call has not used, by application_utilization, or cpu_utilization where that is 0. A
// report holds for 10 s; a backend without one counts as 0.5. One with 0.8 or more, or whose report came with a failure, gets a hedge only if no other
// is below, a backend that only hedges have used among them. That policy is asked up to once per backend then, 20 times at most.
type Interceptor struct {
	controls
	calls *grpccall.Client
}

// NewInterceptor returns an Interceptor. It panics if options contradict each other, or a [WithRoute] is for HTTP.
func NewInterceptor(opts ...GRPCOption) *Interceptor {
	in := new(Interceptor)
	if err := in.init(DefaultConfig(), opts); err != nil {
		panic(err)
	}
	return in
}

// NewInterceptorWithConfig is [NewInterceptor] for settings that come from outside
// the program, as [NewWithConfig] is [New].
func NewInterceptorWithConfig(c Config, opts ...GRPCOption) (*Interceptor, error) {
	in := new(Interceptor)
	if err := in.init(c, opts); err != nil {
		return nil, err
	}
	return in, nil
}

// init applies the settings and the options, and starts to connect the connections for hedges.
func (in *Interceptor) init(settings Config, opts []GRPCOption) error {
	c := &config{Config: settings}
	applyOptions(c, opts, GRPCOption.applyGRPC)
	if err := in.initControls("grpc", c); err != nil {
		return err
	}
	in.calls = grpccall.NewClient(&in.client, grpccallOptions(in.options))
	in.describe = func(k *KeySnapshot) { k.Policy, k.Delays = in.calls.DescribeKey(k.Host, k.Route, k.Delays) }
	return nil
}

// NewUnaryClientInterceptor returns [Interceptor.Unary] of an Interceptor of its own.
func NewUnaryClientInterceptor(opts ...GRPCOption) grpc.UnaryClientInterceptor {
	return NewInterceptor(opts...).Unary()
}

// Unary returns an interceptor that hedges unary calls.
//
// [WithMethods] says which methods are hedged. The primary runs in the caller's goroutine with the caller's request, reply and options. A hedge has
// its own: a copy of the request, and a reply, header, trailer and peer that are copied to the caller's if it wins. The call returns when the primary
// has, and does not wait for a hedge that is cancelled and slow to end: the caller may use request and reply again. Such a hedge does not use the caller's context any more
// either: it finds the values that hedges of the call have asked for before, and no others. What is below may change the request that it is given, as
// without hedging.
//
// A call of which not every part can be divided among attempts is sent once, as it is, and the log says so once per method: its request is no message
// of package proto, or of gogo/protobuf, of the very type; its reply has content before the call, and is no message of package proto or a call option
// chooses the codec; it has a call option that is not known to grpc, and does not embed one of grpc's.
//
// grpc-retry-pushback-ms and ResourceExhausted from the server count as push-back, and a call that got one is not hedged again. That a message is
// larger than grpc allows is ResourceExhausted as well, and does not count. Hedges carry grpc-previous-rpc-attempts (gRFC A6). No hedge is sent over
// a connection that is not READY, where it would only wait. A test whose invoker does not use the connection therefore passes a nil *grpc.ClientConn,
// or sees no hedge.
//
// Interceptors before it see one call, those after it each attempt over their connection, see [WithHedgeConns]. gRPC's own retries multiply with hedges: grpc.WithDisableRetry prevents that.
func (in *Interceptor) Unary() grpc.UnaryClientInterceptor {
	in.mustBeInitialized()
	return in.calls.InterceptUnary
}

// Stream returns an interceptor that hedges server-streaming calls until their
// first message.
//
// If the first message takes longer than usual for the target and method, the first
// RecvMsg sends the request again on another stream. The stream whose message (or
// end with status OK) comes first becomes the call, with its header, trailer and status; the
// others are cancelled, and the call does not wait for them. A status of the primary ends the
// call as that of a unary call does. Latency counts from SendMsg to the first
// message; one that was there before the caller asked for it teaches none. The caller may change its request once SendMsg has returned. A call of Header before RecvMsg, a SendMsg that fails
// and the end of the caller's context make the primary the call. Targets in call
// options are set when the stream has ended. Until the call is known, Trailer returns
// nil, and Context returns a context with the values of the primary's that ends with the call, whichever it will be.
//
// What [Interceptor.Unary] says of methods and statuses holds here as well. Client-
// and bidirectional-streaming calls are sent once, as they are.
func (in *Interceptor) Stream() grpc.StreamClientInterceptor {
	in.mustBeInitialized()
	return in.calls.InterceptStream
}

// Hedges returns how many hedges a call of a method, such as "/pkg.Service/Method", gets at most when it is slow, 0 if it is sent once,
// and why, where no resolver says otherwise (see [Interceptor.Resolver]). It counts and logs nothing. Streams from the client are sent once, whatever it returns.
// Package hedgetest/grpctest has a table of all methods of a program.
func (in *Interceptor) Hedges(method string) (most int, why string) {
	in.mustBeInitialized()
	return in.calls.MaxHedgesOf(method)
}
