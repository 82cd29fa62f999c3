//go:build !hedge_nogrpc

package debug_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/debug"
)

func TestPageShowsInterceptor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := hedge.NewInterceptor(hedge.WithName("calls"))
		invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			time.Sleep(10 * ms)
			return nil
		}
		for range 12 {
			require.NoError(t, in.Unary()(t.Context(), "/shop.Shop/GetItem", wrapperspb.String("id"), new(wrapperspb.StringValue), nil, invoke))
		}
		totals, _, keys := parsePage(t, getPage(debug.Handler(in), "/").Body.String())
		assert.EqualValues(t, 12, totals.numberOf(t, "data-total total_requests"))
		require.Len(t, keys, 1)
		for name := range keys {
			assert.Contains(t, name, "/shop.Shop/GetItem")
		}
	})
}
