package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"

	"github.com/gohedge/hedge"
)

// withoutLosers is a stats handler that ends an attempt that has lost without an error.
type withoutLosers struct{ stats.Handler }

func (h withoutLosers) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if end, ok := event.(*stats.End); ok && errors.Is(context.Cause(ctx), hedge.ErrLost) {
		lost := *end
		lost.Error = nil
		event = &lost
	}
	h.Handler.HandleRPC(ctx, event)
}

func TestOtelgrpc(t *testing.T) {
	for name, filters := range map[string]bool{"as it is": false, "without losers": true} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t)
			spans := tracetest.NewSpanRecorder()
			var handler stats.Handler = otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans))))
			if filters {
				handler = withoutLosers{handler}
			}
			failed := func() (n int) {
				for _, span := range spans.Ended() {
					if span.Status().Code == codes.Error {
						n++
					}
				}
				return n
			}
			hedged := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(100), hedge.WithMaxHedges(1))
			client := f.dial(t, `{"loadBalancingConfig":[{"hedge_elsewhere":{}}]}`,
				grpc.WithChainUnaryInterceptor(hedged.Unary()), grpc.WithStatsHandler(handler))
			calls := 0
			check := func() error {
				calls++
				ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 10*time.Millisecond), limit)
				defer cancel()
				_, err := client.Check(ctx, new(healthpb.HealthCheckRequest))
				return err
			}
			f.backends[0].slow.Store(int64(time.Second))
			for hedged.Snapshot().Stats.HedgeWins < 5 { // the backends connect one after another
				require.NoError(t, check())
			}
			snapshot := hedged.Snapshot().Stats
			require.Eventually(t, func() bool { return len(spans.Ended()) == calls+int(snapshot.HedgesSent) }, 10*time.Second, time.Millisecond)
			if filters {
				assert.Zero(t, failed())
			} else {
				assert.GreaterOrEqual(t, failed(), int(snapshot.HedgeWins))
			}

			for _, b := range f.backends {
				b.fails.Store(true)
			}
			before := failed()
			require.Error(t, check())
			assert.Greater(t, failed(), before, "a failure is reported")
		})
	}
}
