//go:build !hedge_nogrpc

package hedge

import (
	"google.golang.org/grpc"

	"github.com/gohedge/hedge/internal/grpccall"
)

// Only files whose names begin with "interceptor" import grpc, so that the build tag hedge_nogrpc can exclude them. Tests
// check this.

// An Interceptor hedges gRPC calls that are slower than usual for their target and method. Pass its
// [Interceptor.Unary] and [Interceptor.Stream] to grpc.NewClient; both share latencies, settings, counters and
// budgets. An Interceptor is safe for concurrent use, and for any number of connections. The zero Interceptor is not
// usable; call NewInterceptor.
//
// Importing this package registers the load balancing policy hedge_elsewhere, which sends a hedge to a backend that
// its call has not used. Enable it in the service config. Its child policy may be any other policy; the default is
// round_robin:
//
//	{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"least_request_experimental":{}}]}}]}
//
// For a hedge, hedge_elsewhere asks the child policy up to five times for a backend that the call has not used. If
// there is none, it accepts a backend that only other hedges of the call have used. If no other backend is ready, the
// hedge goes to the backend of the primary.
//
// If the child policy picks the primary's backend five times although another backend is ready, the hedge is not
// sent. The reason is [DeniedSameBackend]. So hedge_elsewhere is not useful with policies that always pick the same
// backend for a call, such as ring_hash.
//
// hedge_elsewhere ends each unused pick of the child policy with status CANCELLED, so that unused picks do not
// distort its latency averages. It ends them right after the attempt that uses the same backend, or one second after
// the first message of a stream.
//
// Directly below hedge_elsewhere, outlier_detection_experimental counts neither losers nor unused picks; the policies
// below it get status CANCELLED for both. As the parent of hedge_elsewhere, it counts losers as failures.
//
// If servers report their load with responses (ORCA, gRFC A51), a hedge goes to the less loaded of two backends that
// the call has not used. The load is application_utilization, or cpu_utilization if application_utilization is 0. The
// program must import google.golang.org/grpc/orca, because otherwise gRPC does not parse the reports.
//
// A load report is valid for 10 s; a backend without a valid report has load 0.5. A backend is overloaded if its load
// is 0.8 or more, or if its report came with a failed call.
//
// A hedge goes to an overloaded backend only if all backends except the primary's are overloaded. For this choice,
// the child policy is asked up to once per backend, and at most 20 times.
type Interceptor struct {
	controls
	calls *grpccall.Client
}

// NewInterceptor returns an Interceptor with the default settings and the given options. It panics if options
// contradict each other, or if the pattern of a [WithRoute] is for HTTP.
func NewInterceptor(opts ...GRPCOption) *Interceptor {
	in := new(Interceptor)
	if err := in.init(DefaultConfig(), opts); err != nil {
		panic(err)
	}
	return in
}

// NewInterceptorWithConfig is [NewInterceptor] with the settings c, for example from a file, in place of
// [DefaultConfig]. It returns an error if c is invalid or contradicts an option. The error names the field and its
// value.
func NewInterceptorWithConfig(c Config, opts ...GRPCOption) (*Interceptor, error) {
	in := new(Interceptor)
	if err := in.init(c, opts); err != nil {
		return nil, err
	}
	return in, nil
}

// init applies the settings and the options to a zero Interceptor, and starts to connect the connections of
// [WithHedgeConns]. It returns an error if a setting is invalid or options contradict each other.
func (in *Interceptor) init(settings Config, opts []GRPCOption) error {
	c := &constructorOptions{Config: settings}
	applyOptions(c, opts, GRPCOption.applyGRPC)
	if err := in.initControls("grpc", c); err != nil {
		return err
	}
	in.calls = grpccall.NewClient(&in.client, newGRPCCallOptions(in.options))
	in.describe = func(k *KeySnapshot) { k.Policy, k.Delays = in.calls.DescribeKey(k.Host, k.Route, k.Delays) }
	in.reportClient()
	return nil
}

// NewUnaryClientInterceptor returns the unary interceptor of a new Interceptor: it is NewInterceptor(opts...).Unary().
func NewUnaryClientInterceptor(opts ...GRPCOption) grpc.UnaryClientInterceptor {
	return NewInterceptor(opts...).Unary()
}

// Unary returns an interceptor that hedges unary calls. [WithMethods] documents which methods are hedged.
//
// The primary runs in the caller's goroutine with the caller's request, reply and options. A hedge has a copy of the
// request, and its own reply, header, trailer and peer.
//
// If the hedge wins, its reply, header, trailer and peer are copied to the caller's. Interceptors that follow in the
// chain may change the request that they receive, as without hedging.
//
// The call returns when the primary has returned. It does not wait for a cancelled hedge, so the caller may reuse the
// request and the reply. A cancelled hedge no longer uses the caller's context. It can still read the context values
// that a hedge of the call has read before.
//
// A call is not hedged if an attempt cannot have its own copy of the request, the reply and the call options. This is
// logged once per method. The causes are:
//
//   - a request that is not a message of package proto or gogo/protobuf, or that only embeds one;
//   - a reply that has content before the call, if it is not a message of package proto or a call option selects a codec;
//   - a call option that is not defined by package grpc, and does not embed one of its options.
//
// The metadata grpc-previous-rpc-attempts marks hedges (gRFC A6). A server pushes back by grpc-retry-pushback-ms or by
// ResourceExhausted; then the call sends no further hedges. ResourceExhausted because a message is larger than grpc
// allows is no pushback.
//
// No hedge is sent over a connection that is not READY, because the hedge would only wait. In a test whose invoker does
// not use the connection, pass a nil *grpc.ClientConn to enable hedges.
//
// Interceptors that precede this interceptor in the chain see one call. Interceptors that follow it see each attempt,
// with the connection of the attempt (see [WithHedgeConns]). The context that they get ends when the call returns, even
// if no hedge was sent. For work that continues after the call, use [context.WithoutCancel].
//
// gRPC's own retries multiply with hedges; grpc.WithDisableRetry prevents that.
func (in *Interceptor) Unary() grpc.UnaryClientInterceptor {
	in.mustBeInitialized()
	return in.calls.UnaryInterceptor()
}

// Stream returns an interceptor that hedges server-streaming calls until their first message. Client-streaming and
// bidirectional calls are not hedged. [Interceptor.Unary] documents which calls are hedged, which statuses win, and
// how attempts copy messages and options.
//
// If the first message takes longer than usual for the target and method, the first RecvMsg sends the request again
// on a second stream. The first stream that has a message, or ends with status OK, wins.
//
// The caller gets the header, trailer and status of the winning stream, also if that fails after its first message. The
// other streams are cancelled, and the call does not wait for them. A status of the primary ends the call as a status
// of a unary primary does.
//
// The call uses the stream of the primary without waiting for hedges in three cases: the caller calls Header before
// RecvMsg, SendMsg fails, or the caller's context ends.
//
// Latency is measured from SendMsg to the first message. A message that arrived before the caller called RecvMsg is
// not measured. The caller may change the request once SendMsg has returned. Variables in call options, such as the
// argument of grpc.Trailer, are set when the stream has ended.
//
// Until the winner is known, Trailer returns nil, and Context returns a context that has the values of the primary's
// context. That context ends with the call, whichever stream wins.
func (in *Interceptor) Stream() grpc.StreamClientInterceptor {
	in.mustBeInitialized()
	return in.calls.InterceptStream
}

// Hedges returns the maximum number of hedges for a slow call of a gRPC method, and the reason for that number as
// text. The method is given as "/pkg.Service/Method". The number is 0 if its calls are not hedged. Hedges changes no
// counters and logs nothing, so programs can use it to check their methods.
//
// Hedges ignores service configs from resolvers (see [Interceptor.Resolver]). It does not know whether a method is
// client-streaming; client-streaming calls are never hedged. Package hedgetest/grpctest returns these results for all
// methods of a program.
func (in *Interceptor) Hedges(method string) (maxHedges int, reason string) {
	in.mustBeInitialized()
	return in.calls.MaxHedgesOf(method)
}
