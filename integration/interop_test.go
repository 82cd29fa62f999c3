package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpctest"
)

// gRPC's own interoperability cases, with a hedge forced on every call.
func TestInteropCasesPassWithEveryCallHedged(t *testing.T) {
	target := grpctest.Serve(t, interop.NewTestServer())
	var stats *hedge.Stats
	forced := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoke(hedge.WithDelay(ctx, time.Nanosecond), method, req, reply, cc, opts...)
	}
	// Behind the hedging: give every attempt the time for a hedge to start.
	late := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		time.Sleep(3 * time.Millisecond)
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	cc := grpctest.Dial(t, target, grpc.WithChainUnaryInterceptor(forced, hedge.NewUnaryClientInterceptor(
		hedge.WithMethods("/*"), hedge.WithBudgetPercent(300), hedge.WithStats(&stats), hedge.WithMinDelay(0)), late))
	client := testpb.NewTestServiceClient(cc)
	_, err := client.EmptyCall(t.Context(), &testpb.Empty{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	for range 20 {
		interop.DoEmptyUnaryCall(t.Context(), client)
		interop.DoLargeUnaryCall(t.Context(), client)
		interop.DoCustomMetadata(t.Context(), client)
		interop.DoStatusCodeAndMessage(t.Context(), client)
		interop.DoSpecialStatusMessage(t.Context(), client)
		interop.DoUnimplementedMethod(t.Context(), cc)
		interop.DoUnimplementedService(t.Context(), testpb.NewUnimplementedServiceClient(cc))
	}
	// Six of the seven, for DoUnimplementedMethod passes no reply to make another
	// of; but for those whose timer was late on a busy machine; and the first call, if
	// the connection became READY before its timer.
	assert.Greater(t, stats.HedgedRequests.Load(), int64(110))
	assert.LessOrEqual(t, stats.HedgedRequests.Load(), int64(121))
	assert.Positive(t, stats.HedgeWins.Load())
}

// gRPC's own interoperability cases, with a hedge forced on every call.
func TestInteropStreamsPassWithEveryCallHedged(t *testing.T) {
	var stats *hedge.Stats
	forced := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return streamer(hedge.WithDelay(ctx, time.Nanosecond), desc, cc, method, opts...)
	}
	// Behind the hedging: give every attempt the time for a hedge to start.
	late := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		if desc.ClientStreams || err != nil {
			return s, err
		}
		return lateStream{s}, nil
	}
	cc := grpctest.Dial(t, grpctest.Serve(t, interop.NewTestServer()), grpc.WithChainStreamInterceptor(forced, hedge.NewInterceptor(
		hedge.WithMethods("/*"), hedge.WithBudgetPercent(300), hedge.WithStats(&stats), hedge.WithMinDelay(0)).Stream(), late))
	client := testpb.NewTestServiceClient(cc)
	_, err := client.EmptyCall(t.Context(), &testpb.Empty{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	for range 20 { // without DoCancelAfterBegin: its stream is sent as it is, and on a busy machine the answer may overtake the cancellation
		interop.DoServerStreaming(t.Context(), client)
		interop.DoClientStreaming(t.Context(), client)
		interop.DoPingPong(t.Context(), client)
		interop.DoEmptyStream(t.Context(), client)
		interop.DoTimeoutOnSleepingServer(t.Context(), client)
		interop.DoCancelAfterFirstResponse(t.Context(), client)
		interop.DoCustomMetadata(t.Context(), client)
		interop.DoStatusCodeAndMessage(t.Context(), client)
	}
	// One of the nine streams from the server; a timer may be late on a busy machine.
	assert.Greater(t, stats.HedgedRequests.Load(), int64(15))
	assert.LessOrEqual(t, stats.HedgedRequests.Load(), int64(20))
}

type lateStream struct{ grpc.ClientStream }

func (s lateStream) RecvMsg(m any) error {
	time.Sleep(3 * time.Millisecond)
	return s.ClientStream.RecvMsg(m)
}
