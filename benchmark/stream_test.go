package benchmark_test

import (
	"context"
	"reflect"
	"sync/atomic"
	"testing"
	_ "unsafe" // for go:linkname

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpcattempt"
)

// grpcStreams identifies grpc's own streamer, as grpcInvokes identifies its invoker.
//
//go:linkname grpcStreams github.com/gohedge/hedge/internal/grpcattempt.grpcNewClientStream
var grpcStreams struct {
	name string
	own  atomic.Uintptr
}

// instantStream is a server stream whose message is there at once.
type instantStream struct {
	grpc.ClientStream
	ctx context.Context
}

func (s *instantStream) SendMsg(any) error        { return nil }
func (s *instantStream) RecvMsg(any) error        { return nil }
func (s *instantStream) CloseSend() error         { return nil }
func (s *instantStream) Context() context.Context { return s.ctx }

// BenchmarkNoHedgeStream measures a server stream up to its first message, over a connection that has it at once. The
// request is small, or has 16 KiB.
func BenchmarkNoHedgeStream(b *testing.B) {
	cc, err := grpc.NewClient("passthrough:///host.test", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer cc.Close()
	open := func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
		return &instantStream{ctx: ctx}, nil
	}
	grpcStreams.own.Store(reflect.ValueOf(open).Pointer())
	require.True(b, grpcattempt.IsGRPCStreamer(open), "grpcStreams is not the variable of package grpcattempt")
	for name, request := range map[string]*wrapperspb.BytesValue{"small": wrapperspb.Bytes([]byte("id")), "16KiB": wrapperspb.Bytes(make([]byte, 16<<10))} {
		b.Run(name, func(b *testing.B) {
			var stats *hedge.Stats
			stream := hedge.NewInterceptor(hedge.WithMinDelay(unreachedDelay), hedge.WithStats(&stats)).Stream()
			desc, reply := &grpc.StreamDesc{ServerStreams: true}, new(wrapperspb.Int64Value)
			one := func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				st, err := stream(ctx, desc, cc, method, open)
				if err == nil {
					err = st.SendMsg(request)
				}
				if err == nil {
					err = st.RecvMsg(reply)
				}
				if err != nil {
					panic(err) // the streamer does not fail
				}
			}
			for range warmUpCalls {
				one()
			}
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
			requireUnhedged(b, stats)
		})
	}
}
