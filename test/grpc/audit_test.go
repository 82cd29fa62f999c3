//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestAuditDisablesHedgingThatIncreasesLatency(t *testing.T) {
	fixture.CheckAuditOfHarm(t, "grpc", func(t *testing.T, s *fixture.LoadedServer, opts ...hedge.Option) (func(), func() hedge.Snapshot) {
		i := hedge.NewInterceptor(hedge.WithOptions(opts...))
		invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			return s.Answer(ctx)
		}
		return func() {
			_ = i.Unary()(t.Context(), read, wrapperspb.String("id"), new(wrapperspb.StringValue), nil, invoke)
		}, i.Snapshot
	})
}
