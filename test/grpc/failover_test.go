//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpctest"
)

// warmed returns a function that makes calls of the first backend of f. Its interceptors know the usual latency, and that hedges over other
// connections take d. The first backend takes 3 ms from now on.
func warmed(t *testing.T, f *grpctest.Backends, in grpctest.Interceptors, call func(testpb.TestServiceClient) func(context.Context) error, d time.Duration, opts ...grpc.DialOption) func(context.Context) error {
	send := call(atHome(t, f, in, opts...))
	for range 20 {
		require.NoError(t, send(t.Context()))
	}
	delay(f, d)
	f.Delays[0].Store(int64(time.Minute))
	require.NoError(t, send(soon(t)))
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	f.Delays[0].Store(int64(3 * ms))
	return send
}

// failAt makes the backends of f with the given numbers fail.
func failAt(f *grpctest.Backends, code codes.Code, backends ...int) {
	for _, n := range backends {
		f.Codes[n].Store(uint32(code))
	}
}

func TestUnavailableStartsHedgeOverOtherConnAtOnce(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithHedgeConns(home, conns...), hedge.WithBudgetPercent(100))
		send := warmed(t, f, in, call, 80*ms)
		for _, code := range []codes.Code{codes.Internal, codes.Unknown, codes.Aborted, codes.NotFound} {
			failAt(f, code, 0)
			at, err := f.RecordCall(t.Context(), send)
			assert.Equal(t, code, status.Code(err))
			assert.Equal(t, []int{1}, at, "%v", code)
		}
		failAt(f, codes.Unavailable, 0)
		start := time.Now()
		at, err := f.RecordCall(t.Context(), send)
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2}, at)
		assert.Equal(t, 83*ms, time.Since(start))

		failAt(f, codes.Unavailable, 1)
		at, err = f.RecordCall(t.Context(), send)
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2, 3}, at, "a failure of a hedge starts the next one")

		failAt(f, codes.Unavailable, 2)
		at, err = f.RecordCall(t.Context(), send)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, []int{1, 2, 3}, at, "each connection is used once")
	})
}

func TestUnavailableStartsNoHedge(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0)
		for name, opts := range map[string][]hedge.GRPCOption{
			"no other connection": nil,
			"not ready":           {hedge.WithHedgeConns(home, hedge.HedgeConn{Conn: f.DialBackend(t, 7)})}, // there is none
			"no budget":           {hedge.WithHedgeConns(home, conns...), hedge.WithBudget(hedge.NewBudget(0, 1))},
			"no hedges":           {hedge.WithHedgeConns(home, conns...), hedge.WithMaxHedges(0)},
			"shadow mode":         {hedge.WithHedgeConns(home, conns...), hedge.WithShadow()},
		} {
			in := hedge.NewInterceptor(append(opts, hedge.WithMethods("/*"))...)
			send := call(atHome(t, f, in))
			for range 20 {
				require.NoError(t, send(t.Context()))
			}
			failAt(f, codes.Unavailable, 0)
			start := time.Now()
			at, err := f.RecordCall(t.Context(), send)
			assert.Equal(t, codes.Unavailable, status.Code(err), name)
			assert.Equal(t, []int{1}, at, name)
			assert.Equal(t, grpctest.DefaultDelay, time.Since(start), name)
			failAt(f, codes.OK, 0)
		}
	})
}

// TestNoHedgeOverConnIsDueAfterPrimaryHasFailed has a third connection, over which a hedge would be due.
func TestNoHedgeOverConnIsDueAfterPrimaryHasFailed(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		send := warmed(t, f, hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithHedgeConns(home, conns...)), call, 500*ms)
		failAt(f, codes.Unavailable, 0)
		at, err := f.RecordCall(soon(t), send)
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2}, at)
	})
}

// TestHungHedgeAfterUnavailableEndsInTime has a failure whose hedge gets no response.
func TestHungHedgeAfterUnavailableEndsInTime(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0)
		send := warmed(t, f, hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithHedgeConns(home, conns...)), call, 80*ms)
		failAt(f, codes.Unavailable, 0)
		f.Delays[1].Store(int64(time.Hour))
		for range 3 {
			start := time.Now()
			at, err := f.RecordCall(t.Context(), send)
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.Equal(t, []int{1, 2}, at)
			assert.Equal(t, 3*ms+4*80*ms, time.Since(start))
		}
	})
}

// TestDeadlineIsComparedWithLatencyOfConn has callers whose time is too short for a hedge over the other connection, although the usual
// latency of the call is less, and the reverse.
func TestDeadlineIsComparedWithLatencyOfConn(t *testing.T) {
	for _, c := range []struct {
		takes, timeout time.Duration
		want           codes.Code
	}{{80 * ms, 60 * ms, codes.Unavailable}, {4 * ms, 12 * ms, codes.OK}} {
		both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
			f, conns := abroad(t, 0)
			send := warmed(t, f, hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithHedgeConns(home, conns...)), call, c.takes)
			failAt(f, codes.Unavailable, 0)
			ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
			defer cancel()
			start := time.Now()
			_, err := f.RecordCall(ctx, send)
			assert.Equal(t, c.want, status.Code(err))
			if c.want != codes.OK {
				assert.Equal(t, 3*ms, time.Since(start))
			}
		})
	}
}

// TestFailureOfHedgeOverConnTakesNoDelay has a slow primary, and a first hedge that fails. The hedge that this starts takes no delay from the
// schedule.
func TestFailureOfHedgeOverConnTakesNoDelay(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0, 0)
		send := warmed(t, f, hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(3), hedge.WithHedgeConns(home, conns...)), call, 5*ms)
		failAt(f, codes.Unavailable, 1)
		f.Delays[0].Store(int64(time.Minute))
		f.Delays[2].Store(int64(time.Minute))
		start := time.Now()
		at, err := f.RecordCall(soon(t), send)
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2, 3, 4}, at)
		assert.Equal(t, 45*ms, time.Since(start))
	})
}

// TestFailedOpeningOfStreamStartsNoHedge has a stream whose message is not known when it fails.
func TestFailedOpeningOfStreamStartsNoHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, conns := abroad(t, 0)
		refuses := false
		below := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if refuses {
				return nil, status.Error(codes.Unavailable, "refused")
			}
			return open(ctx, desc, cc, method, opts...)
		}
		send := warmed(t, f, hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithHedgeConns(home, conns...)), grpctest.StreamCaller, 80*ms, grpc.WithChainStreamInterceptor(below))
		refuses = true
		start := time.Now()
		at, err := f.RecordCall(t.Context(), send)
		assert.Equal(t, "refused", status.Convert(err).Message())
		assert.Empty(t, at)
		assert.Zero(t, time.Since(start))
	})
}

// TestHedgingPolicySpendsWholeBudgetOverConns has failures of all attempts. Nothing of the budget is kept from the hedges of gRFC A6.
func TestHedgingPolicySpendsWholeBudgetOverConns(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		budget := hedge.NewBudget(0.01, 8) // the connections are ejected after six failures
		policy := hedgingPolicy(`"maxAttempts": 3, "hedgingDelay": "10s", "nonFatalStatusCodes": ["UNAVAILABLE"]`)
		in := hedge.NewInterceptor(hedge.WithHedgeConns(home, conns...), hedge.WithBudget(budget), hedge.WithServiceConfig(policy))
		send := call(atHome(t, f, in))
		for range 20 {
			require.NoError(t, send(t.Context()))
		}
		failAt(f, codes.Unavailable, 0, 1, 2)
		for budget.Tokens() >= 2 {
			at, err := f.RecordCall(t.Context(), send)
			assert.Equal(t, codes.Unavailable, status.Code(err))
			require.Equal(t, []int{1, 2, 3}, at)
		}
	})
}
