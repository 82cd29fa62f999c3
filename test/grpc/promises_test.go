//go:build !hedge_nogrpc

package grpc_test

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// The rules of promises_test.go for gRPC: unary calls and streams.

// A firstMessage is a server stream that receives its first message, or ends, after a delay.
type firstMessage struct {
	grpc.ClientStream
	ctx   context.Context
	after time.Duration
	err   error
}

func (s *firstMessage) SendMsg(any) error            { return nil }
func (s *firstMessage) CloseSend() error             { return nil }
func (s *firstMessage) Header() (metadata.MD, error) { return nil, nil }
func (s *firstMessage) Trailer() metadata.MD         { return nil }
func (s *firstMessage) Context() context.Context     { return s.ctx }
func (s *firstMessage) RecvMsg(m any) error {
	if err := doubles.Sleep(s.ctx, s.after); err != nil {
		return status.FromContextError(s.ctx.Err()).Err()
	}
	if s.err == nil {
		m.(*wrapperspb.StringValue).Value = "message"
	}
	return s.err
}

// An rpcCall makes one hedged call, unary or a stream. The function ends returns the duration and the result of each
// attempt.
type rpcCall func(ctx context.Context, reply any, ends func(ctx context.Context) (time.Duration, error)) error

// rpcCalls returns unary calls and streams by an Interceptor that has learned the usual latency.
func rpcCalls(t *testing.T, opts ...hedge.GRPCOption) map[string]rpcCall {
	in := hedge.NewInterceptor(append(opts, hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(300), hedge.WithBurst(time.Hour))...)
	unary, stream := in.Unary(), in.Stream()
	calls := map[string]rpcCall{
		"unary": func(ctx context.Context, reply any, ends func(context.Context) (time.Duration, error)) error {
			return unary(ctx, read, wrapperspb.String("id"), reply, nil, func(ctx context.Context, _ string, _, reply any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				after, err := ends(ctx)
				return (&firstMessage{ctx: ctx, after: after, err: err}).RecvMsg(reply)
			})
		},
		"stream": func(ctx context.Context, reply any, ends func(context.Context) (time.Duration, error)) error {
			st, err := stream(ctx, &grpc.StreamDesc{ServerStreams: true}, nil, read+"s", func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
				after, err := ends(ctx)
				return &firstMessage{ctx: ctx, after: after, err: err}, nil
			})
			if err != nil {
				return err
			}
			return cmp.Or(st.SendMsg(wrapperspb.String("id")), st.CloseSend(), st.RecvMsg(reply))
		},
	}
	for _, call := range calls {
		for range 20 {
			require.NoError(t, call(t.Context(), new(wrapperspb.StringValue), func(context.Context) (time.Duration, error) { return usual, nil }))
		}
	}
	return calls
}

// endings returns a function for rpcCall with the results and durations of the primary and of the hedges.
func endings(primary, hedged error, primaryAfter, hedgedAfter time.Duration) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		if a, _ := hedge.AttemptFromContext(ctx); a.Number > 0 {
			return hedgedAfter, hedged
		}
		return primaryAfter, primary
	}
}

func TestR1OnlySuccessfulHedgeEndsRPC(t *testing.T) {
	chosen := []codes.Code{codes.NotFound, codes.Unavailable}
	for name, opts := range map[string][]hedge.GRPCOption{
		"as it is": nil,
		"failures": {hedge.WithNonFatalCodes(chosen...)},
		"answers":  {hedge.WithAnswerCodes(chosen...)},
		"both":     {hedge.WithNonFatalCodes(chosen...), hedge.WithAnswerCodes(chosen...)},
	} {
		synctest.Test(t, func(t *testing.T) {
			var stats *hedge.Stats
			for kind, call := range rpcCalls(t, append(opts, hedge.WithStats(&stats))...) {
				for code := codes.Canceled; code <= codes.Unauthenticated+3; code++ {
					bad := status.Error(code, "of the hedge")
					before, reply, start := stats.AnswersNotTaken.Load(), wrapperspb.String("the caller's"), time.Now()
					err := call(hedge.WithDelay(t.Context(), 10*ms), reply, endings(nil, bad, 50*ms, 5*ms))
					if (name == "answers" || name == "both") && slices.Contains(chosen, code) {
						require.Same(t, bad, err, "%s %v", kind, code)
						require.Equal(t, "the caller's", reply.Value, "a reply is not touched by a hedge that fails")
						require.Equal(t, 15*ms, time.Since(start))
						continue
					}
					require.NoError(t, err, "%s %s %v", name, kind, code)
					require.Equal(t, "message", reply.Value)
					require.Equal(t, 50*ms, time.Since(start))
					if name == "as it is" && code == codes.NotFound {
						require.EqualValues(t, 1, stats.AnswersNotTaken.Load()-before)
					}
					time.Sleep(time.Minute) // push-back is forgotten
				}
			}
		})
	}
}

func TestR1PrimaryResultIsReturnedIfAllAttemptsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for kind, call := range rpcCalls(t) {
			for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
				mine, reply := status.Error(codes.Internal, "of the primary"), wrapperspb.String("the caller's")
				err := call(hedge.WithDelay(t.Context(), 10*ms), reply, endings(mine, status.Error(code, "of the hedge"), 15*ms, 10*ms))
				require.Same(t, mine, err, "%s %v", kind, code)
				require.Equal(t, "the caller's", reply.Value)
				time.Sleep(time.Minute)
			}
		}
	})
}

func TestR2FailedRPCWaitsUsualTimeForHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for kind, call := range rpcCalls(t) {
			for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
				mine, reply, start := status.Error(code, "of the primary"), wrapperspb.String("the caller's"), time.Now()
				err := call(hedge.WithDelay(t.Context(), 10*ms), reply, endings(mine, nil, 15*ms, time.Hour))
				require.Same(t, mine, err, "%s %v", kind, code)
				require.Equal(t, "the caller's", reply.Value)
				require.Less(t, time.Since(start), 26*ms, "a hedge has 10 to 15 ms, which is what calls take")
				time.Sleep(time.Minute)
			}
			err := call(hedge.WithDelay(t.Context(), 10*ms), new(wrapperspb.StringValue), endings(status.Error(codes.Internal, ""), nil, 15*ms, 9*ms))
			require.NoError(t, err, "the hedge is in time")
		}
	})
}

// A slowResolver is a resolver whose Build takes long, as if it made a query over the network.
type slowResolver struct {
	built atomic.Int64
	takes time.Duration
}

func (*slowResolver) Scheme() string                        { return "slow" }
func (*slowResolver) ResolveNow(resolver.ResolveNowOptions) {}
func (*slowResolver) Close()                                {}
func (r *slowResolver) Build(resolver.Target, resolver.ClientConn, resolver.BuildOptions) (resolver.Resolver, error) {
	r.built.Add(1)
	time.Sleep(r.takes)
	return r, nil
}

func TestR2IdleHedgeConnDoesNotDelayCall(t *testing.T) {
	r := &slowResolver{takes: 2 * time.Second}
	cc := dial(t, "slow:///x", grpc.WithResolvers(r))
	start := time.Now()
	c := warmCaller(t, read, hedge.WithHedgeConn(cc, ""), hedge.WithBudgetPercent(300))
	require.Eventually(t, func() bool { return r.built.Load() == 1 }, time.Second, ms)
	assert.NotEqual(t, connectivity.Ready, cc.GetState())
	for range 5 {
		_, err := c.get(hedge.WithDelay(t.Context(), 10*ms), &invoker{answer: in(5 * usual)})
		require.NoError(t, err)
	}
	assert.Less(t, time.Since(start), 1500*time.Millisecond, "neither the interceptor nor its calls wait for the resolver")
	assert.EqualValues(t, 1, r.built.Load())
	time.Sleep(r.takes)
}
