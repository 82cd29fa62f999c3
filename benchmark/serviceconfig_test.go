package benchmark_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpcattempt"
)

// BenchmarkServiceConfig measures a gRPC call that needs no hedge, without a service config and with one.
func BenchmarkServiceConfig(b *testing.B) {
	const policy = `{"methodConfig": [{"name": [{}], "hedgingPolicy": {"maxAttempts": 3, "hedgingDelay": "60s"}}]`
	cc, err := grpc.NewClient("passthrough:///host.test", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer cc.Close()
	last := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	grpcInvokes.own.Store(reflect.ValueOf(last).Pointer())
	require.True(b, grpcattempt.IsGRPCInvoker(last), "grpcInvokes is not the variable of package grpcattempt")
	req, reply := wrapperspb.Int64(1), new(wrapperspb.Int64Value)
	for _, variant := range []struct {
		name string
		opts []hedge.GRPCOption
	}{
		{"none", nil},
		{"policy", []hedge.GRPCOption{hedge.WithServiceConfig(policy + "}")}},
		{"throttling", []hedge.GRPCOption{hedge.WithServiceConfig(policy + `, "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}}`)}},
	} {
		b.Run(variant.name, func(b *testing.B) {
			intercept := hedge.NewUnaryClientInterceptor(append(variant.opts, hedge.WithMinDelay(unreachedDelay))...)
			one := func() {
				if err := intercept(context.Background(), method, req, reply, cc, last); err != nil {
					panic(err) // last does not fail
				}
			}
			for range warmUpCalls {
				one()
			}
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
		})
	}
}
