package integration

import (
	"context"
	"fmt"
	"math"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca" // has gRPC read the reports
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpctest"
)

// TestAHedgeGoesToTheServerThatReportsTheLeastLoad is over loopback, with reports by gRPC's own servers.
func TestAHedgeGoesToTheServerThatReportsTheLeastLoad(t *testing.T) {
	for _, child := range []string{"round_robin", "weighted_round_robin"} {
		t.Run(child, func(t *testing.T) {
			const backends = 4
			seen := new(sync.Map)
			var all [backends]*backend
			var loads [backends]atomic.Uint64 // the bits of what each reports
			var addrs []resolver.Address
			for n := range all {
				all[n] = &backend{n: n, seen: seen}
				l, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				s := grpc.NewServer(orca.CallMetricsServerOption(nil), grpc.ChainUnaryInterceptor(
					func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
						orca.CallMetricsRecorderFromContext(ctx).SetCPUUtilization(math.Float64frombits(loads[n].Load()))
						return handler(ctx, req)
					}))
				healthpb.RegisterHealthServer(s, all[n])
				go func() { _ = s.Serve(l) }()
				t.Cleanup(s.Stop)
				addrs = append(addrs, resolver.Address{Addr: l.Addr().String()})
			}
			found := manual.NewBuilderWithScheme("fleet")
			found.InitialState(resolver.State{Addresses: addrs})
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(100), hedge.WithMaxHedges(1))
			client := healthpb.NewHealthClient(grpctest.Dial(t, "fleet:///", grpc.WithResolvers(found),
				grpc.WithDefaultServiceConfig(grpctest.HedgeElsewhereConfig(child)), grpc.WithChainUnaryInterceptor(in.Unary())))

			calls := 0
			check := func(delay time.Duration) (primary, first any) {
				calls++
				ctx := metadata.AppendToOutgoingContext(t.Context(), "id", strconv.Itoa(calls))
				if delay > 0 {
					ctx = hedge.WithDelay(ctx, delay)
				}
				_, err := client.Check(ctx, new(healthpb.HealthCheckRequest))
				require.NoError(t, err)
				primary, _ = seen.Load([2]string{strconv.Itoa(calls), "0"})
				first, _ = seen.Load([2]string{strconv.Itoa(calls), "1"})
				return primary, first
			}
			for _, c := range []struct {
				loads       [backends]float64
				best, other int // where hedges go, and those of calls whose primary is there
			}{
				{[...]float64{0.9, 0.85, 0.2, 0.4}, 2, 3},
				{[...]float64{0.3, 0.85, 0.99, 0.8}, 0, 3},
			} {
				for n, load := range c.loads {
					loads[n].Store(math.Float64bits(load))
				}
				heard := make(map[any]bool)
				require.Eventually(t, func() bool { p, _ := check(0); heard[p] = true; return len(heard) == backends }, 9*time.Second, time.Millisecond)
				for _, b := range all {
					b.slow.Store(int64(60 * time.Millisecond))
				}
				for hedged := 0; hedged < 12; {
					primary, first := check(20 * time.Millisecond)
					if first == nil { // the machine was busy, or too many calls were slow
						check(0)
						continue
					}
					hedged++
					want := c.best
					if primary == c.best {
						want = c.other
					}
					assert.Equal(t, want, first, fmt.Sprint("the primary has ", primary))
				}
				for _, b := range all {
					b.slow.Store(0)
				}
			}
		})
	}
}
