//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgetest"
	hedgegrpc "github.com/gohedge/hedge/hedgetest/grpctest"
	"github.com/gohedge/hedge/test/internal/fixture"
)

type emptyService struct {
	testpb.UnimplementedTestServiceServer
}

func (emptyService) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, out testpb.TestService_StreamingOutputCallServer) error {
	return out.Send(new(testpb.StreamingOutputCallResponse))
}

// TestChainedInterceptorsHedgeOnce has two Interceptors on one connection.
func TestChainedInterceptorsHedgeOnce(t *testing.T) {
	const unary, stream = testpb.TestService_EmptyCall_FullMethodName, testpb.TestService_StreamingOutputCall_FullMethodName
	for _, method := range []string{unary, stream} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := hedgegrpc.NewServer(t, func(s *grpc.Server) { testpb.RegisterTestServiceServer(s, emptyService{}) })
				j := fixture.NewJournal()
				outer := hedge.NewInterceptor(hedge.WithMethods("/*"))
				inner := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithLogger(slog.New(j)))
				conn := server.Dial(grpc.WithChainUnaryInterceptor(outer.Unary(), inner.Unary()), grpc.WithChainStreamInterceptor(outer.Stream(), inner.Stream()))
				for _, in := range []*hedge.Interceptor{outer, inner} {
					hedgetest.Warm(t, in, 10*time.Millisecond, conn.Target(), unary, stream)
				}
				j.Take()
				for n := range 6 {
					server.At(1+n, hedgetest.Fault{Delay: time.Minute})
				}
				for range 2 {
					emptyCall(t, testpb.NewTestServiceClient(conn), method == stream)
				}
				assert.Equal(t, 2*(1+2), server.Attempts())
				assert.Equal(t, []string{`WARN "nested hedging: a call within a hedged call is sent once" call=` + method}, j.Take())
			})
		})
	}
}

// TestNestedCallToOtherTargetIsHedged has a call whose server calls the same method of another target, as a query to
// all shards does.
func TestNestedCallToOtherTargetIsHedged(t *testing.T) {
	for target, attempts := range map[string]int{"passthrough:///b": 2, "passthrough:///a": 1} {
		synctest.Test(t, func(t *testing.T) {
			dial := func(target string) *grpc.ClientConn {
				conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(
					func(ctx context.Context, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }))
				require.NoError(t, err)
				t.Cleanup(func() { conn.Close() })
				return conn
			}
			a, other := dial("passthrough:///a"), dial(target)
			outer, inner := warmCaller(t, read), warmCaller(t, read)
			teach := func(c *caller, cc *grpc.ClientConn) {
				for range 20 {
					usually := &invoker{answer: in(usual)}
					require.NoError(t, c.intercept(t.Context(), read, nil, new(wrapperspb.StringValue), cc, usually.invoke))
				}
			}
			teach(outer, a)
			teach(inner, other)
			before := inner.stats.Snapshot()
			below := func(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
				return inner.intercept(ctx, method, req, reply, other, (&invoker{answer: in(usual)}).invoke, opts...)
			}
			require.NoError(t, outer.intercept(t.Context(), read, wrapperspb.String("id"), new(wrapperspb.StringValue), a, below))
			assert.EqualValues(t, 2-attempts, inner.stats.Snapshot().NotHedgeable-before.NotHedgeable, "%s: what may be hedged", target)
		})
	}
}

// TestInnerInterceptorHedgesIfOuterHasNoHedges has an outer Interceptor with MaxHedges 0.
func TestInnerInterceptorHedgesIfOuterHasNoHedges(t *testing.T) {
	const unary, stream = testpb.TestService_EmptyCall_FullMethodName, testpb.TestService_StreamingOutputCall_FullMethodName
	for name, never := range map[string]hedge.Option{"shadow": hedge.WithShadow(), "no hedges": hedge.WithMaxHedges(0), "no budget": hedge.WithBudgetPercent(0)} {
		for _, method := range []string{unary, stream} {
			t.Run(name+method, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := hedgegrpc.NewServer(t, func(s *grpc.Server) { testpb.RegisterTestServiceServer(s, emptyService{}) })
					outer, inner := hedge.NewInterceptor(hedge.WithMethods("/*"), never), hedge.NewInterceptor(hedge.WithMethods("/*"))
					conn := server.Dial(grpc.WithChainUnaryInterceptor(outer.Unary(), inner.Unary()), grpc.WithChainStreamInterceptor(outer.Stream(), inner.Stream()))
					for _, in := range []*hedge.Interceptor{outer, inner} {
						hedgetest.Warm(t, in, 10*time.Millisecond, conn.Target(), unary, stream)
					}
					for n := range 3 {
						server.At(1+n, hedgetest.Fault{Delay: time.Minute})
					}
					emptyCall(t, testpb.NewTestServiceClient(conn), method == stream)
					assert.Equal(t, 1+2, server.Attempts())
				})
			})
		}
	}
}

// TestInnerInterceptorHedgesIfOuterHasLearnedNothing has an outer Interceptor that has seen too few calls.
func TestInnerInterceptorHedgesIfOuterHasLearnedNothing(t *testing.T) {
	const unary, stream = testpb.TestService_EmptyCall_FullMethodName, testpb.TestService_StreamingOutputCall_FullMethodName
	for _, method := range []string{unary, stream} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := hedgegrpc.NewServer(t, func(s *grpc.Server) { testpb.RegisterTestServiceServer(s, emptyService{}) })
				outer, inner := hedge.NewInterceptor(hedge.WithMethods("/*")), hedge.NewInterceptor(hedge.WithMethods("/*"))
				conn := server.Dial(grpc.WithChainUnaryInterceptor(outer.Unary(), inner.Unary()), grpc.WithChainStreamInterceptor(outer.Stream(), inner.Stream()))
				hedgetest.Warm(t, inner, 10*time.Millisecond, conn.Target(), unary, stream)
				slow := func() (attempts int) {
					before := server.Attempts()
					for n := range 3 {
						server.At(1+n, hedgetest.Fault{Delay: time.Minute})
					}
					emptyCall(t, testpb.NewTestServiceClient(conn), method == stream)
					return server.Attempts() - before
				}
				assert.Equal(t, 1+2, slow(), "the first call of the outer one")
				assert.Equal(t, 1+2, slow(), "the second one")
				assert.Zero(t, outer.Snapshot().Stats.HedgesSent)
				hedgetest.Warm(t, outer, 10*time.Millisecond, conn.Target(), unary, stream)
				assert.Equal(t, 1+2, slow())
				assert.EqualValues(t, 2, outer.Snapshot().Stats.HedgesSent, "the outer one hedges, once it can")
				assert.EqualValues(t, 4, inner.Snapshot().Stats.HedgesSent)
			})
		})
	}
}

func emptyCall(t *testing.T, client testpb.TestServiceClient, streams bool) {
	t.Helper()
	if !streams {
		_, err := client.EmptyCall(t.Context(), new(testpb.Empty))
		assert.ErrorContains(t, err, "not implemented")
		return
	}
	out, err := client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
	require.NoError(t, err)
	_, err = out.Recv()
	require.NoError(t, err)
}
