//go:build !hedge_nogrpc

package hedge_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
)

func init() {
	audited["grpc"] = func(t *testing.T, c *crowd, opts ...hedge.Option) (func(), func() hedge.Snapshot) {
		i := hedge.NewInterceptor(opts...)
		invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			return c.answer(ctx)
		}
		return func() {
			_ = i.Unary()(t.Context(), read, wrapperspb.String("id"), new(wrapperspb.StringValue), nil, invoke)
		}, i.Snapshot
	}
}
