package integration

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/leastrequest"
	_ "google.golang.org/grpc/balancer/weightedroundrobin"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpctest"
)

// denied is how many hedges were not sent for a reason.
func denied(in *hedge.Interceptor, reason hedge.Reason) (n int64) {
	for _, k := range in.Snapshot().Keys {
		n += k.Denied[reason]
	}
	return n
}

func TestNoFirstHedgeLandsOnThePrimarysBackend(t *testing.T) {
	for _, policy := range []string{"round_robin", "weighted_round_robin", "least_request_experimental"} {
		for _, n := range []int{2, 3, 10} {
			t.Run(fmt.Sprint(policy, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := grpctest.NewBackends(t, n)
					in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(100))
					client, _ := f.Client(t, grpctest.HedgeElsewhereConfig(policy), in)
					f.Delays[0].Store(int64(time.Second))
					var hedged atomic.Int64
					var wg sync.WaitGroup
					for range 5 {
						wg.Go(func() {
							for range 40 {
								start := time.Now()
								at, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(client))
								if !assert.NoError(t, err) || len(at) < 2 {
									continue
								}
								hedged.Add(1)
								assert.NotEqual(t, at[0], at[1])
								assert.Less(t, time.Since(start), 500*time.Millisecond, "the hedge answered")
							}
						})
					}
					wg.Wait()
					assert.NotZero(t, hedged.Load())
					refused := denied(in, hedge.DeniedSameBackend)
					if policy == "least_request_experimental" { // draws lots, and may draw the same backend five times
						refused -= hedged.Load() / 20
					}
					assert.LessOrEqual(t, refused, int64(0))
					t.Logf("%d of 200 calls were hedged, and %d refused", hedged.Load(), denied(in, hedge.DeniedSameBackend))
				})
			})
		}
	}
}

func TestTheChildPolicyChangesWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := grpctest.NewBackends(t, 3)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"))
		client, _ := f.Client(t, `{}`, in)
		conn := <-f.ResolverConn
		for _, config := range []string{grpctest.HedgeElsewhereConfig("test_sticky"), grpctest.HedgeElsewhereConfig("round_robin"), grpctest.HedgeElsewhereConfig("least_request_experimental"), grpctest.HedgeElsewhereConfig("test_sticky")} {
			// A child that is replaced before it is ready leaves nothing behind either.
			for _, c := range []string{grpctest.HedgeElsewhereConfig("weighted_round_robin"), config} {
				f.Resolver.UpdateState(resolver.State{Addresses: f.Addrs, ServiceConfig: conn.ParseServiceConfig(c)})
			}
			for range 20 {
				start := time.Now()
				_, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(client))
				require.NoError(t, err)
				assert.Equal(t, grpctest.DefaultDelay, time.Since(start), config)
			}
		}
		seen := map[int]bool{}
		for range 10 {
			at, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(client))
			require.NoError(t, err)
			seen[at[0]] = true
		}
		assert.Len(t, seen, 1, "the last policy is sticky")
	})
}

// TestBackendsComeAndGoUnderHedges is over loopback: servers stop and start again, the resolver
// finds some of them, and the child policy changes, while every call is hedged.
func TestBackendsComeAndGoUnderHedges(t *testing.T) {
	const servers, changes = 4, 60
	f := grpctest.NewUnstartedBackends(servers)
	running := make([]*grpc.Server, servers)
	start := func(n int) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := f.NewServer(n)
		f.Delays[n].Store(int64(4 * time.Millisecond))
		go func() { _ = s.Serve(l) }()
		running[n] = s
		for len(f.Addrs) <= n {
			f.Addrs = append(f.Addrs, resolver.Address{})
		}
		f.Addrs[n] = resolver.Address{Addr: l.Addr().String()}
	}
	for n := range servers {
		start(n)
	}
	f.Resolver.InitialState(resolver.State{Addresses: slices.Clone(f.Addrs)})
	in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(300), hedge.WithMinDelay(0))
	cc := grpctest.Dial(t, "fleet:///", grpc.WithResolvers(f.Resolver), grpc.WithDefaultServiceConfig(grpctest.HedgeElsewhereConfig("round_robin")),
		grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()))
	client := testpb.NewTestServiceClient(cc)

	cc.Connect()
	conn := <-f.ResolverConn

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var answered atomic.Int64
	for i := range 8 {
		call := grpctest.UnaryCaller(client)
		if i%2 == 1 {
			call = grpctest.StreamCaller(client)
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				switch _, err := f.RecordCall(hedge.WithDelay(ctx, time.Millisecond), call); status.Code(err) {
				case codes.OK:
					answered.Add(1)
				case codes.Unavailable, codes.Canceled: // a server has stopped, or the test is over
				default:
					assert.NoError(t, err)
				}
			}
		})
	}
	policies := []string{"round_robin", "least_request_experimental", "test_sticky", "weighted_round_robin"}
	for i := range changes {
		switch i % 3 {
		case 0:
			running[i%servers].Stop()
			start(i % servers)
		case 1:
			running[i%servers].GracefulStop() // the connection goes away under calls that it finishes
			start(i % servers)
		}
		f.Resolver.UpdateState(resolver.State{Addresses: slices.Clone(f.Addrs[:1+i%servers]), ServiceConfig: conn.ParseServiceConfig(grpctest.HedgeElsewhereConfig(policies[i/7%len(policies)]))})
		time.Sleep(10 * time.Millisecond)
	}
	f.Resolver.UpdateState(resolver.State{Addresses: f.Addrs, ServiceConfig: conn.ParseServiceConfig(grpctest.HedgeElsewhereConfig("round_robin"))})
	before := answered.Load()
	require.Eventually(t, func() bool { return answered.Load() > before+100 }, 20*time.Second, time.Millisecond)
	cancel()
	wg.Wait()
	for _, s := range running {
		s.Stop()
	}
	t.Logf("%d calls were answered, %d hedges refused", answered.Load(), denied(in, hedge.DeniedSameBackend))
}
