//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
)

// warmed returns client after 20 calls, whose latency is then known.
func warmed(t *testing.T, client testpb.TestServiceClient, call func(testpb.TestServiceClient) func(context.Context) error) testpb.TestServiceClient {
	for range 20 {
		require.NoError(t, call(client)(t.Context()))
	}
	return client
}

func TestUnavailableStartsHedgeOverOtherConnAtOnce(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithHedgeConns(home, conns...))
		client := warmed(t, atHome(t, f, in), call)
		f.Delays[0].Store(int64(3 * ms))
		f.Delays[1].Store(int64(80 * ms))
		for _, code := range []codes.Code{codes.Internal, codes.Unknown, codes.Aborted, codes.NotFound} {
			f.Codes[0].Store(uint32(code))
			at, err := f.RecordCall(t.Context(), call(client))
			assert.Equal(t, code, status.Code(err))
			assert.Equal(t, []int{1}, at, "%v", code)
		}
		f.Codes[0].Store(uint32(codes.Unavailable))
		start := time.Now()
		at, err := f.RecordCall(t.Context(), call(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2}, at)
		assert.Equal(t, 83*ms, time.Since(start))

		f.Codes[1].Store(uint32(codes.Unavailable))
		at, err = f.RecordCall(t.Context(), call(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2, 3}, at, "a failure of a hedge starts the next one")

		f.Codes[2].Store(uint32(codes.Unavailable))
		at, err = f.RecordCall(t.Context(), call(client))
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, []int{1, 2, 3}, at, "each connection is used once")
	})
}

func TestUnavailableStartsNoHedgeOnOneConn(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0)
		for name, opts := range map[string][]hedge.GRPCOption{
			"no other connection": nil,
			"not ready":           {hedge.WithHedgeConns(home, hedge.HedgeConn{Conn: f.DialBackend(t, 7)})}, // there is none
			"no budget":           {hedge.WithHedgeConns(home, conns...), hedge.WithBudget(hedge.NewBudget(0, 1))},
		} {
			in := hedge.NewInterceptor(append(opts, hedge.WithMethods("/*"))...)
			client := warmed(t, atHome(t, f, in), call)
			f.Codes[0].Store(uint32(codes.Unavailable))
			at, err := f.RecordCall(t.Context(), call(client))
			assert.Equal(t, codes.Unavailable, status.Code(err), name)
			assert.Equal(t, []int{1}, at, name)
			f.Codes[0].Store(0)
		}
	})
}

// TestNoHedgeOverConnIsDueAfterPrimaryHasFailed has a third connection, over which a hedge would be due.
func TestNoHedgeOverConnIsDueAfterPrimaryHasFailed(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithHedgeConns(home, conns...), hedge.WithBudgetPercent(300))
		client := atHome(t, f, in)
		f.Codes[0].Store(uint32(codes.Unavailable))
		delay(f, 500*ms)
		f.Delays[0].Store(int64(3 * ms))
		at, err := f.RecordCall(soon(t), call(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2}, at)
	})
}
