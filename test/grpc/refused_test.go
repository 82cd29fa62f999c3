//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpctest"
)

func TestHedgeRefusedByLimiterLoses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := new(recorder)
		c := warmCaller(t, read, hedge.WithMaxHedges(1), hedge.WithObserver(rec), hedge.WithNonFatalCodes(codes.Aborted))
		rec.Take()
		i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
			if n == 0 {
				return in(100*ms)(ctx, n, reply, opts)
			}
			for _, o := range opts {
				if o, ok := o.(grpc.TrailerCallOption); ok {
					*o.TrailerAddr = metadata.Pairs("hedge-refused", "1", "grpc-retry-pushback-ms", "3600000")
				}
			}
			return status.Error(codes.Unavailable, "full")
		}}
		got, err := c.get(t.Context(), i)
		require.NoError(t, err)
		assert.Equal(t, "answer 0", got)
		assert.Contains(t, rec.Take(), "lost 1 after 0")
		assert.EqualValues(t, 1, c.stats.HedgesSent.Load())

		// The same from a server that a primary asks is an answer like any other.
		refuses := &invoker{answer: func(context.Context, int, any, []grpc.CallOption) error {
			return status.Error(codes.Unavailable, "full")
		}}
		_, err = c.get(t.Context(), refuses)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, 1, refuses.n)
	})
}

// TestHedgesRefusedByLimiterLoseWhilePrimaryWaits has a server with a Limiter, a primary in its queue, and a hedge that
// the Limiter refuses.
func TestHedgesRefusedByLimiterLoseWhilePrimaryWaits(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			c, rec := newCounter(), new(recorder)
			target := serveGRPC(t, c, c.options()...)
			crowd := testpb.NewTestServiceClient(dial(t, target))
			var all sync.WaitGroup
			for i := range 5 {
				all.Go(func() { _, _ = call(t.Context(), crowd) })
				c.holds(t, 1, int64(i))
			}
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithObserver(rec))
			cc := dial(t, target, grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()))
			grpctest.Connect(t, cc) // others do not hedge
			client := testpb.NewTestServiceClient(cc)
			all.Go(func() {
				_, err := call(hedge.WithDelay(t.Context(), 10*ms), client)
				assert.NoError(t, err)
			})
			require.Eventually(t, func() bool { return c.limit.Snapshot().Refused == 1 }, 10*time.Second, ms)
			var events []string // the primary goes on once the client knows
			require.Eventually(t, func() bool {
				events = append(events, rec.Take()...)
				return strings.Contains(fmt.Sprint(events), "lost 1 after")
			}, 10*time.Second, ms, "%v", events)
			close(c.goOn)
			all.Wait()
			assert.EqualValues(t, 6, c.begun.Load())
		})
	}
}
