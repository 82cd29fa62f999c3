//go:build !hedge_nogrpc

package hedge_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgetest"
	hedgegrpc "github.com/gohedge/hedge/hedgetest/grpctest"
)

type emptyService struct {
	testpb.UnimplementedTestServiceServer
}

func (emptyService) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, out testpb.TestService_StreamingOutputCallServer) error {
	return out.Send(new(testpb.StreamingOutputCallResponse))
}

// TestInterceptorsInARowHedgeOnce has two Interceptors that one connection was given.
func TestInterceptorsInARowHedgeOnce(t *testing.T) {
	const unary, stream = testpb.TestService_EmptyCall_FullMethodName, testpb.TestService_StreamingOutputCall_FullMethodName
	for _, method := range []string{unary, stream} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := hedgegrpc.NewServer(t, func(s *grpc.Server) { testpb.RegisterTestServiceServer(s, emptyService{}) })
				j := newJournal()
				outer := hedge.NewInterceptor(hedge.WithMethods("/*"))
				inner := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithLogger(slog.New(j)))
				conn := server.Dial(grpc.WithChainUnaryInterceptor(outer.Unary(), inner.Unary()), grpc.WithChainStreamInterceptor(outer.Stream(), inner.Stream()))
				for _, in := range []*hedge.Interceptor{outer, inner} {
					hedgetest.Warm(t, in, 10*time.Millisecond, conn.Target(), unary, stream)
				}
				j.take()
				for n := range 6 {
					server.At(1+n, hedgetest.Fault{Delay: time.Minute})
				}
				for range 2 {
					emptyCall(t, testpb.NewTestServiceClient(conn), method == stream)
				}
				assert.Equal(t, 2*(1+2), server.Attempts())
				assert.Equal(t, []string{`WARN "hedging around hedging: what is hedged above is sent once here" call=` + method}, j.take())
			})
		})
	}
}

// TestWhatIsNeverHedgedAboveIsHedgedBelowOverGRPC has an outer Interceptor that sends no hedges.
func TestWhatIsNeverHedgedAboveIsHedgedBelowOverGRPC(t *testing.T) {
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
