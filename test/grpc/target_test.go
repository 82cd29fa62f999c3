//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpctest"
)

// dialBothTargets returns two connections that are dialed as "orders:443". The target of dnsConn is dns:///orders:443,
// whose resolver returns backend 1 and the config. The other target is passthrough:///orders:443, which is backend 2
// without a config.
func dialBothTargets(t *testing.T, f *grpctest.Backends, in *hedge.Interceptor, config string) (dnsConn, passthroughConn *grpc.ClientConn) {
	r := manual.NewBuilderWithScheme("dns")
	r.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) {
		r.InitialState(resolver.State{Addresses: f.Addrs[:1], ServiceConfig: cc.ParseServiceConfig(config)})
	}
	opts := []grpc.DialOption{grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream())}
	dnsConn = grpctest.Dial(t, "orders:443", append(opts, grpc.WithResolvers(in.Resolver(r)), f.DialOption())...)
	toBackend2 := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return f.Network.Host("client").DialContext(ctx, "tcp", f.Addrs[1].Addr)
	})
	//lint:ignore SA1019 programs that have not changed to NewClient
	passthroughConn, err := grpc.Dial("orders:443", append(opts, toBackend2, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { passthroughConn.Close() })
	grpctest.Connect(t, dnsConn)
	grpctest.Connect(t, passthroughConn)
	require.Equal(t, dnsConn.Target(), passthroughConn.Target())
	require.NotEqual(t, dnsConn.CanonicalTarget(), passthroughConn.CanonicalTarget())
	return dnsConn, passthroughConn
}

// withoutDelays returns an interceptor that hedges only methods with a hedging policy, at the delays of the policy.
func withoutDelays(more ...hedge.GRPCOption) *hedge.Interceptor {
	return hedge.NewInterceptor(append(more, hedge.WithDeclaredMethods(), hedge.WithInitialDelay(time.Hour), hedge.WithBudgetPercent(400))...)
}

func TestInterceptorAppliesPolicyToItsTargetOnly(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		for _, dnsFirst := range []bool{true, false} {
			f := grpctest.NewBackends(t, 2)
			delay(f, time.Second)
			in := withoutDelays()
			dnsConn, passthroughConn := dialBothTargets(t, f, in, hedgingAfter20ms)
			conns := []*grpc.ClientConn{passthroughConn, dnsConn}
			if dnsFirst {
				conns = []*grpc.ClientConn{dnsConn, passthroughConn}
			}
			for range 2 {
				for _, cc := range conns {
					at, err := f.RecordCall(t.Context(), call(testpb.NewTestServiceClient(cc)))
					require.NoError(t, err)
					if cc == dnsConn {
						assert.Equal(t, []int{1, 1}, at, "the target has a hedging policy")
					} else {
						assert.Equal(t, []int{2}, at, "the target has none")
					}
				}
			}
			for _, k := range in.Snapshot().Keys {
				assert.Equal(t, "dns:///orders:443", k.Host)
				assert.Equal(t, "methodConfig[0].hedgingPolicy of the resolver", k.Policy)
			}
		}
	})
}

func TestInterceptorThrottlesTargetInEverySpelling(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		in := withoutDelays(hedge.WithServiceConfig(`{
			"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2,"hedgingDelay":"0.02s","nonFatalStatusCodes":["UNAVAILABLE"]}}],
			"retryThrottling":{"maxTokens":2,"tokenRatio":0.0005}}`))
		f := grpctest.NewBackends(t, 1)
		dialer := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return f.Network.Host("client").DialContext(ctx, "tcp", f.Addrs[0].Addr)
		})
		attempts := func(target string) int {
			cc := grpctest.Dial(t, target, dialer, grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()))
			grpctest.Connect(t, cc)
			at, _ := f.RecordCall(t.Context(), call(testpb.NewTestServiceClient(cc)))
			return len(at)
		}
		delay(f, time.Second)
		assert.Equal(t, 2, attempts("passthrough:orders:443"))
		f.Codes[0].Store(uint32(codes.Unavailable))
		delay(f, 0)
		attempts("passthrough:orders:443")
		f.Codes[0].Store(0)
		delay(f, time.Second)
		assert.Equal(t, 1, attempts("passthrough:///orders:443"), "no token is left for the target in another spelling")
		assert.Equal(t, 2, attempts("passthrough:///other:443"), "another target has tokens of its own")
	})
}

func TestInterceptorHedgesOverConnOfSameTargetOnly(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		for _, test := range []struct {
			targets []string // beside that of the connection for hedges, dns:///orders:443
			want    []int    // of a call to passthrough:///orders:443
		}{
			{nil, []int{2}},
			{[]string{"passthrough:///orders"}, []int{2}},
			{[]string{"passthrough:///orders:443"}, []int{2, 1}},
			{[]string{"orders:443"}, []int{2, 1}}, // the spelling of Target
		} {
			f := grpctest.NewBackends(t, 2)
			hedgeConn, _ := dialBothTargets(t, f, withoutDelays(), `{}`)
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(400), hedge.WithInitialDelay(20*ms), hedge.WithMaxHedges(1), hedge.WithHedgeConn(hedgeConn, test.targets...))
			dnsConn, passthroughConn := dialBothTargets(t, f, in, `{}`)
			delay(f, time.Second)
			at, err := f.RecordCall(t.Context(), call(testpb.NewTestServiceClient(passthroughConn)))
			require.NoError(t, err)
			assert.Equal(t, test.want, at, "targets %q", test.targets)
			at, err = f.RecordCall(t.Context(), call(testpb.NewTestServiceClient(dnsConn)))
			require.NoError(t, err)
			assert.Equal(t, []int{1, 1}, at, "the target of the connection for hedges")
		}
	})
}

// TestInterceptorHedgesOverConnOfSameQueryOnly has targets that differ in their query, which a resolver may read.
func TestInterceptorHedgesOverConnOfSameQueryOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := grpctest.NewBackends(t, 2)
		dial := func(target string, backend int, opts ...grpc.DialOption) *grpc.ClientConn {
			r := manual.NewBuilderWithScheme("shards")
			r.InitialState(resolver.State{Addresses: f.Addrs[backend:][:1]})
			cc := grpctest.Dial(t, target, append(opts, grpc.WithResolvers(r), f.DialOption())...)
			grpctest.Connect(t, cc)
			return cc
		}
		delay(f, time.Second)
		for _, test := range []struct {
			targets []string
			want    []int
		}{
			{nil, []int{1}},
			{[]string{"shards:///orders"}, []int{1}},
			{[]string{"shards:///orders?shard=1"}, []int{1, 2}},
		} {
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(400), hedge.WithInitialDelay(20*ms), hedge.WithMaxHedges(1),
				hedge.WithHedgeConn(dial("shards:///orders?shard=2", 1), test.targets...))
			cc := dial("shards:///orders?shard=1", 0, grpc.WithChainUnaryInterceptor(in.Unary()))
			at, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(testpb.NewTestServiceClient(cc)))
			require.NoError(t, err)
			assert.Equal(t, test.want, at, "targets %q", test.targets)
		}
	})
}

func TestInterceptorKeepsPolicyWhileConnIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, in := grpctest.NewBackends(t, 1), withoutDelays()
		r := manual.NewBuilderWithScheme("idle")
		r.InitialState(resolver.State{Addresses: f.Addrs})
		cc := grpctest.Dial(t, "idle:///orders", grpc.WithResolvers(in.Resolver(r)), grpc.WithIdleTimeout(time.Minute), f.DialOption(), grpc.WithChainUnaryInterceptor(in.Unary()))
		grpctest.Connect(t, cc)
		r.UpdateState(resolver.State{Addresses: f.Addrs, ServiceConfig: r.CC().ParseServiceConfig(hedgingAfter20ms)}) // and again in each Build
		delay(f, time.Second)
		for range 3 {
			at, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(testpb.NewTestServiceClient(cc)))
			require.NoError(t, err)
			assert.Len(t, at, 2)
			time.Sleep(time.Hour)
			require.Equal(t, connectivity.Idle, cc.GetState())
			grpctest.Connect(t, cc)
		}
	})
}

func TestInterceptorAcceptsConfigsThatGRPCAccepts(t *testing.T) {
	for _, config := range []string{
		`{"retryThrottling":{"maxTokens":10,"tokenRatio":0.0005}}`,
		`{"loadBalancingPolicy":"pick_first","loadBalancingPolicy":"round_robin"}`,
		`{"methodConfig":[{"name":[{}],"timeout":"9s","Timeout":"8s"}]}`,
		`{"methodConfig":null,"retryThrottling":null}`,
		`null`,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := grpctest.NewBackends(t, 2)
			dnsConn, _ := dialBothTargets(t, f, withoutDelays(), config)
			_, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(testpb.NewTestServiceClient(dnsConn)))
			assert.NoError(t, err, config)
		})
	}
}
