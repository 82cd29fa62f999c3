//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpctest"
)

// home is the target of the first backend.
var home = []string{"passthrough:///backend0:443"}

// atHome returns a client of the first backend of f whose interceptors have learned the latency.
func atHome(t *testing.T, f *grpctest.Backends, in grpctest.Interceptors, opts ...grpc.DialOption) testpb.TestServiceClient {
	chained := []grpc.DialOption{grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream())}
	return grpctest.WarmUp(t, f.DialBackend(t, 0, append(chained, opts...)...))
}

// abroad returns backends, and connections with the given costs to all backends except the first.
func abroad(t *testing.T, costs ...int) (f *grpctest.Backends, conns []hedge.HedgeConn) {
	f = grpctest.NewBackends(t, 1+len(costs))
	for i, cost := range costs {
		conns = append(conns, hedge.HedgeConn{Conn: f.DialBackend(t, i+1), Cost: cost})
	}
	return f, conns
}

// delay sets the response time of all backends of f.
func delay(f *grpctest.Backends, d time.Duration) {
	for i := range f.Delays {
		f.Delays[i].Store(int64(d))
	}
}

// both runs f for unary calls and for streams, each in a bubble.
func both(t *testing.T, f func(*testing.T, func(testpb.TestServiceClient) func(context.Context) error)) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, call) })
		})
	}
}

// soon returns a context whose call is hedged after 20 ms.
func soon(t *testing.T) context.Context { return hedge.WithDelay(t.Context(), 20*ms) }

func TestHedgesUseConnsInOrder(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(4), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
		client := atHome(t, f, in)
		delay(f, time.Second)
		for range 10 {
			at, err := f.RecordCall(soon(t), call(client))
			require.NoError(t, err)
			assert.Equal(t, []int{1, 2, 3, 2, 3}, at, "where it has been only if it has been to all")
		}
		f.Delays[2].Store(0)
		start := time.Now()
		at, err := f.RecordCall(soon(t), call(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2, 3}, at)
		assert.Equal(t, 40*ms, time.Since(start), "a hedge wins over any connection")
	})
}

func TestHedgeSkipsConnThatIsNotReady(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		for _, others := range []bool{true, false} {
			f, conns := abroad(t, 0, 0)
			conns[0].Conn = f.DialBackend(t, 7) // there is none
			if !others {
				conns = conns[:1]
			}
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
			client := atHome(t, f, in)
			delay(f, time.Second)
			at, err := f.RecordCall(soon(t), call(client))
			require.NoError(t, err)
			if others {
				assert.Equal(t, []int{1, 3}, at)
				assert.Zero(t, denied(in, hedge.DeniedNotReady))
			} else {
				assert.Equal(t, []int{1}, at)
				assert.EqualValues(t, 1, denied(in, hedge.DeniedNotReady))
			}
		}
	})
}

func TestInterceptorConnectsIdleHedgeConns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, conns := abroad(t, 0, 0, 0)
		state := func() (all []string) {
			synctest.Wait()
			for _, c := range conns {
				all = append(all, c.Conn.GetState().String())
			}
			return all
		}
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithHedgeConns(home, conns...))
		assert.Equal(t, slices.Repeat([]string{"READY"}, 3), state())
		client := atHome(t, f, in)
		time.Sleep(time.Hour)
		require.Equal(t, slices.Repeat([]string{"IDLE"}, 3), state())
		delay(f, time.Second)
		at, err := f.RecordCall(soon(t), grpctest.UnaryCaller(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1}, at, "no hedge waits for them")
		assert.Equal(t, slices.Repeat([]string{connectivity.Ready.String()}, 3), state())
		at, err = f.RecordCall(soon(t), grpctest.UnaryCaller(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2}, at)
	})
}

func TestHedgeSkipsFailingConnUntilRestored(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
		client := atHome(t, f, in)
		f.Delays[0].Store(int64(time.Second))
		hedged := func(n int) (to map[int]int) {
			to = make(map[int]int)
			for range n {
				at, err := f.RecordCall(soon(t), call(client))
				require.NoError(t, err, "the primary answers")
				require.Len(t, at, 2)
				to[at[1]]++
			}
			return to
		}
		f.Codes[1].Store(uint32(codes.NotFound))
		assert.Equal(t, map[int]int{2: 20}, hedged(20), "that is an answer")
		f.Codes[1].Store(uint32(codes.Unavailable))
		assert.Equal(t, map[int]int{2: 6}, hedged(6))
		assert.Equal(t, map[int]int{3: 90, 2: 10}, hedged(100))
		f.Codes[2].Store(uint32(codes.Internal))
		for range 10 {
			_, err := f.RecordCall(soon(t), call(client))
			require.NoError(t, err)
		}
		before := denied(in, hedge.DeniedNotReady)
		for range 100 { // both fail, and the primary does not
			_, err := f.RecordCall(soon(t), call(client))
			require.NoError(t, err)
		}
		assert.EqualValues(t, 90, denied(in, hedge.DeniedNotReady)-before, "one in ten is sent")
		f.Codes[2].Store(0)
		for range 20 { // one of two tries is for it
			_, err := f.RecordCall(soon(t), call(client))
			require.NoError(t, err)
		}
		assert.Equal(t, map[int]int{3: 18, 2: 2}, hedged(20), "one success is enough: no call goes there first")
		f.Codes[1].Store(0)
		hedged(10)
		assert.Equal(t, map[int]int{2: 20}, hedged(20))
	})
}

func TestHedgesAreSentOverEjectedConnIfPrimariesFailToo(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
		client := atHome(t, f, in)
		delay(f, time.Second)
		for i := range f.Codes {
			f.Codes[i].Store(uint32(codes.Unavailable))
		}
		for range 20 {
			at, err := f.RecordCall(soon(t), call(client))
			require.Equal(t, codes.Unavailable, status.Code(err))
			assert.Len(t, at, 2)
		}
	})
}

func TestLosersAndCallerDeadlinesDoNotEjectConn(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
		client := atHome(t, f, in)
		for range 2 {
			f.Delays[0].Store(int64(50 * ms))
			f.Delays[1].Store(int64(time.Hour))
			for range 10 {
				_, err := f.RecordCall(soon(t), call(client))
				require.NoError(t, err)
			}
			f.Delays[0].Store(int64(time.Hour))
			for range 10 {
				ctx, cancel := context.WithTimeout(soon(t), 100*ms)
				_, err := f.RecordCall(ctx, call(client))
				cancel()
				require.Equal(t, codes.DeadlineExceeded, status.Code(err))
			}
		}
		synctest.Wait()
		keys := in.Snapshot().Keys
		at := keys[len(keys)-1].Endpoints // that of the stream is the second one
		if len(keys) > 1 {
			at = keys[0].Endpoints
		}
		require.Len(t, at, 2)
		assert.Equal(t, home[0], at[0].Endpoint)
		assert.Equal(t, "passthrough:///backend1:443", at[1].Endpoint)
		assert.EqualValues(t, 40, at[1].Hedges)
		assert.Zero(t, at[1].Failures)
		assert.Zero(t, at[0].Failures)
		assert.GreaterOrEqual(t, at[0].Calls, int64(40))
	})
}

func TestConnCostIsPaidFromBudget(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		hedges := make(map[int]int)
		for _, cost := range []int{1, 5} {
			f, conns := abroad(t, cost)
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(10), hedge.WithHedgeConns(home, conns...))
			client := atHome(t, f, in)
			f.Delays[0].Store(int64(40 * ms))
			for range 3000 {
				at, err := f.RecordCall(soon(t), call(client))
				require.NoError(t, err)
				hedges[cost] += len(at) - 1
			}
			assert.Positive(t, denied(in, hedge.DeniedBudget))
		}
		assert.InDelta(t, 320, hedges[1], 40, "a tenth, and a burst of 20")
		assert.InDelta(t, 64, hedges[5], 15)
	})
}

func TestSafetyChecksOfTargetDoNotDenyHedgesToOtherTarget(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		for name, trigger := range map[hedge.Reason]func(*grpctest.Backends){
			hedge.DeniedPaused: func(f *grpctest.Backends) { f.Codes[0].Store(uint32(codes.ResourceExhausted)) },
			hedge.DeniedSlow:   func(f *grpctest.Backends) { f.Delays[0].Store(int64(15 * ms)) },
		} {
			for _, same := range []bool{true, false} {
				f, conns := abroad(t, 0)
				if same {
					conns[0].Conn = f.DialBackend(t, 0)
				}
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
				client := atHome(t, f, in)
				for range 200 { // so that the delay does not change soon
					_ = call(client)(t.Context())
				}
				trigger(f)
				for range 40 {
					_ = call(client)(t.Context())
				}
				f.Codes[0].Store(0)
				f.Delays[0].Store(int64(time.Second))
				before := denied(in, name)
				at, err := f.RecordCall(soon(t), call(client))
				require.NoError(t, err)
				assert.EqualValues(t, same, denied(in, name)-before == 1, "%s %v", name, same)
				assert.Equal(t, same, len(at) == 1)
			}
		}
	})
}

func TestPushbackOfOtherTargetDoesNotPauseHedging(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(2), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
		client := atHome(t, f, in)
		delay(f, time.Second)
		f.Delays[1].Store(0)
		f.Codes[1].Store(uint32(codes.ResourceExhausted))
		at, err := f.RecordCall(soon(t), call(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2, 3}, at, "its call goes on over the next one")
		for _, k := range in.Snapshot().Keys {
			assert.Zero(t, k.PushBackShare)
		}
	})
}

func TestCallsToOtherTargetsThanHedgeConnsAreNotHedged(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0, 0)
		third := conns[2].Conn
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(2), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(nil, conns[:2]...))
		client := atHome(t, f, in)
		delay(f, time.Second)
		chained := []grpc.DialOption{grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream())}
		for name, c := range map[string]struct {
			client testpb.TestServiceClient
			want   []int
		}{
			"that of the fleet":       {client, []int{1}},
			"that of none of them":    {testpb.NewTestServiceClient(f.DialBackend(t, 3, chained...)), []int{4}},
			"that of the second":      {testpb.NewTestServiceClient(f.DialBackend(t, 2, chained...)), []int{3, 2, 3}},
			"that of the first again": {testpb.NewTestServiceClient(f.DialBackend(t, 1, chained...)), []int{2, 2, 3}},
		} {
			at, err := f.RecordCall(soon(t), call(c.client))
			require.NoError(t, err)
			assert.Equal(t, c.want, at, name)
		}
		assert.Equal(t, connectivity.Idle, third.GetState(), "nobody has given it")
	})
}

// TestHedgeUsesConnOfCallLast makes a call over one of the connections for hedges. Its hedges use the other connections
// first.
func TestHedgeUsesConnOfCallLast(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		var in *hedge.Interceptor
		own := f.DialBackend(t, 1, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return in.Unary()(ctx, method, req, reply, cc, invoke, opts...)
		}), grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return in.Stream()(ctx, desc, cc, method, streamer, opts...)
		}))
		conns[0].Conn = own
		in = hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(2), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(nil, conns...))
		synctest.Wait()
		delay(f, time.Second)
		at, err := f.RecordCall(soon(t), call(testpb.NewTestServiceClient(own)))
		require.NoError(t, err)
		assert.Equal(t, []int{2, 3, 2}, at)
	})
}

func TestNestedInterceptorsHedgeOverConnsOnce(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		opts := []hedge.GRPCOption{hedge.WithMethods("/*"), hedge.WithMaxHedges(2), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...)}
		inner := hedge.NewInterceptor(opts...)
		client := atHome(t, f, hedge.NewInterceptor(opts...), grpc.WithChainUnaryInterceptor(inner.Unary()), grpc.WithChainStreamInterceptor(inner.Stream()))
		delay(f, time.Second)
		at, err := f.RecordCall(soon(t), call(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2, 3}, at)
		for _, k := range inner.Snapshot().Keys {
			assert.Zero(t, k.Hedges)
		}
	})
}

func TestHedgeRefusedByBalancerReturnsItsTokens(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f := grpctest.NewBackends(t, 2)
		sticky := grpc.WithDefaultServiceConfig(grpctest.HedgeElsewhereConfig("test_sticky")) // it picks the primary's backend
		found := manual.NewBuilderWithScheme("fleet")                                         // a resolver is for one connection
		found.InitialState(resolver.State{Addresses: f.Addrs})
		conn := grpctest.Dial(t, "fleet:///", f.DialOption(), sticky, grpc.WithResolvers(found))
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithHedgeConns(nil, hedge.HedgeConn{Conn: conn, Cost: 4}))
		client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("test_sticky"), in)
		_, err := f.RecordCall(t.Context(), call(client))
		require.NoError(t, err)
		f.Delays[0].Store(int64(time.Second))
		before := in.Snapshot().Keys
		at, err := f.RecordCall(soon(t), call(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1}, at)
		assert.EqualValues(t, 1, denied(in, hedge.DeniedSameBackend))
		for i, k := range in.Snapshot().Keys {
			assert.Zero(t, k.Hedges)
			assert.GreaterOrEqual(t, k.Budget, min(before[i].Budget, 8), "of a key that is asked seldom, a bucket holds twice the cost")
			for _, p := range k.Endpoints {
				assert.Zero(t, p.Hedges)
				assert.Zero(t, p.Failures)
			}
		}
	})
}

func TestHedgesOverConnsFollowServiceConfig(t *testing.T) {
	const config = `{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":3,"hedgingDelay":"0.02s","nonFatalStatusCodes":["UNAVAILABLE","RESOURCE_EXHAUSTED"]}}]}`
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		in := hedge.NewInterceptor(hedge.WithServiceConfig(config), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
		client := atHome(t, f, in)
		for range 20 {
			_ = call(client)(t.Context())
		}
		f.Codes[0].Store(uint32(codes.Unavailable))
		f.Delays[0].Store(0)
		f.Delays[1].Store(int64(5 * ms))
		start := time.Now()
		at, err := f.RecordCall(t.Context(), call(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2}, at)
		assert.Equal(t, 5*ms, time.Since(start), "the hedge is sent when the primary fails")

		f.Codes[0].Store(0)
		delay(f, time.Second)
		at, err = f.RecordCall(t.Context(), call(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2, 3}, at)
	})
}

func TestWithHedgeConnsPanicsOnInvalidConns(t *testing.T) {
	a, b := dial(t, "passthrough:///a"), dial(t, "passthrough:///b")
	for want, conns := range map[string][]hedge.HedgeConn{
		`0 connections: there must be 1 to 7`:                                        nil,
		`8 connections: there must be 1 to 7`:                                        make([]hedge.HedgeConn, 8),
		`connection 2: Conn is nil`:                                                  {{Conn: a}, {Cost: 1}},
		`connection 1: Cost -1 is not in [0, 100]`:                                   {{Conn: a, Cost: -1}},
		`connection 2: Cost 101 is not in [0, 100]`:                                  {{Conn: a, Cost: 100}, {Conn: b, Cost: 101}},
		`connection 3: Conn, to "passthrough:///a", is that of connection 1 as well`: {{Conn: a}, {Conn: b}, {Conn: a}},
	} {
		func() {
			defer func() { assert.Equal(t, "hedge: WithHedgeConns: "+want, fmt.Sprint(recover())) }()
			hedge.WithHedgeConns(nil, conns...)
		}()
	}
	assert.NotPanics(t, func() { hedge.NewInterceptor(hedge.WithHedgeConns(nil, hedge.HedgeConn{Conn: a, Cost: 100})) })
}

func TestEndpointNamesOfConnsAreUnique(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, conns := abroad(t, 0, 0)
		conns = append(conns, hedge.HedgeConn{Conn: f.DialBackend(t, 1)}, hedge.HedgeConn{Conn: f.DialBackend(t, 0)})
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithHedgeConns(nil, conns...))
		atHome(t, f, in)
		var names []string
		for _, p := range in.Snapshot().Keys[0].Endpoints {
			names = append(names, p.Endpoint)
		}
		const to = "passthrough:///backend"
		assert.Equal(t, []string{to + "0:443", to + "1:443", to + "2:443", to + "1:443 #3", to + "0:443 #4"}, names)
	})
}
