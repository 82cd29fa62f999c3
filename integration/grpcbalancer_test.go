package integration

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds" // outlier detection

	"github.com/gohedge/hedge"
)

// The arrangements of outlier detection and hedge_elsewhere; %s stands for the settings of outlier detection.
const (
	outlierBelow = `{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"outlier_detection_experimental":{%s,
		"childPolicy":[{"round_robin":{}}]}}]}}]}`
	outlierAbove = `{"loadBalancingConfig":[{"outlier_detection_experimental":{%s,
		"childPolicy":[{"hedge_elsewhere":{"childPolicy":[{"round_robin":{}}]}}]}}]}`
	outlierAlone = `{"loadBalancingConfig":[{"outlier_detection_experimental":{%s,
		"childPolicy":[{"round_robin":{}}]}}]}`
)

// byRate and byPercentage eject for 300 s what one algorithm of outlier detection calls an outlier.
const (
	ejects       = `"interval":"0.3s", "baseEjectionTime":"300s", "maxEjectionPercent":70`
	byRate       = ejects + `, "successRateEjection":{"stdevFactor":500, "minimumHosts":2, "requestVolume":10}`
	byPercentage = ejects + `, "failurePercentageEjection":{"threshold":50, "enforcementPercentage":100, "minimumHosts":2, "requestVolume":10}`
)

// backend is one of several health services. It notes which attempts it sees.
type backend struct {
	healthpb.UnimplementedHealthServer
	n     int
	fails atomic.Bool
	slow  atomic.Int64
	seen  *sync.Map // [call, attempt] to n
}

func (b *backend) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	attempt := "0"
	if v := md["grpc-previous-rpc-attempts"]; len(v) > 0 {
		attempt = v[0]
	}
	if id := md["id"]; len(id) > 0 {
		b.seen.Store([2]string{id[0], attempt}, b.n)
	}
	if b.fails.Load() {
		return nil, status.Error(codes.Unavailable, "broken")
	}
	select {
	case <-time.After(time.Duration(b.slow.Load())):
		return new(healthpb.HealthCheckResponse), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A fleet is three backends.
type fleet struct {
	backends  [3]*backend
	addresses []resolver.Address
	seen      *sync.Map
}

func startFleet(t *testing.T) *fleet {
	f := &fleet{seen: new(sync.Map)}
	for n := range f.backends {
		f.backends[n] = &backend{n: n, seen: f.seen}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := grpc.NewServer()
		healthpb.RegisterHealthServer(s, f.backends[n])
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		f.addresses = append(f.addresses, resolver.Address{Addr: l.Addr().String()})
	}
	return f
}

// dial returns a client of all backends.
func (f *fleet) dial(t *testing.T, balancing string, opts ...grpc.DialOption) healthpb.HealthClient {
	found := manual.NewBuilderWithScheme("fleet")
	found.InitialState(resolver.State{Addresses: f.addresses})
	conn, err := grpc.NewClient("fleet:///", append(opts, grpc.WithResolvers(found),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(balancing))...)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return healthpb.NewHealthClient(conn)
}

// TestHedgesAvoidEjectedBackends ejects one backend after another.
func TestHedgesAvoidEjectedBackends(t *testing.T) {
	const balancing = `{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"outlier_detection_experimental":{
		"interval":"0.2s", "baseEjectionTime":"300s", "maxEjectionPercent":70,
		"failurePercentageEjection":{"threshold":50, "enforcementPercentage":100, "minimumHosts":2, "requestVolume":5},
		"childPolicy":[{"round_robin":{}}]}}]}}]}`
	const backends = 3
	f := startFleet(t)
	seen, all := f.seen, f.backends
	interceptor := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(100), hedge.WithMaxHedges(1))
	client := f.dial(t, balancing, grpc.WithChainUnaryInterceptor(interceptor.Unary()))

	calls := 0
	check := func(delay time.Duration) (primary, first any, err error) {
		calls++
		ctx := metadata.AppendToOutgoingContext(t.Context(), "id", strconv.Itoa(calls))
		if delay > 0 {
			ctx = hedge.WithDelay(ctx, delay)
		}
		_, err = client.Check(ctx, new(healthpb.HealthCheckRequest))
		primary, _ = seen.Load([2]string{strconv.Itoa(calls), "0"})
		first, _ = seen.Load([2]string{strconv.Itoa(calls), "1"})
		return primary, first, err
	}
	// used returns the backends of hedged calls, and checks that hedges go elsewhere.
	used := func() map[any]bool {
		for _, b := range all {
			b.slow.Store(int64(60 * time.Millisecond))
		}
		backends := make(map[any]bool)
		for hedged := 0; hedged < 6; {
			primary, first, err := check(20 * time.Millisecond)
			require.NoError(t, err)
			if first == nil { // the machine was busy, or too many calls were slow
				_, _, err = check(0)
				require.NoError(t, err)
				continue
			}
			hedged++
			backends[primary], backends[first] = true, true
			assert.NotEqual(t, primary, first)
		}
		for _, b := range all {
			b.slow.Store(0)
		}
		return backends
	}
	require.Eventually(t, func() bool { p, _, err := check(0); return err == nil && p == 2 }, 10*time.Second, 5*time.Millisecond)
	assert.Len(t, used(), backends)

	all[0].fails.Store(true)
	ejected := func(left int) func() bool {
		return func() bool {
			primaries := make(map[any]bool)
			for range 20 {
				p, _, _ := check(0)
				primaries[p] = true
			}
			return len(primaries) == left
		}
	}
	require.Eventually(t, ejected(2), 20*time.Second, 20*time.Millisecond)
	assert.Equal(t, map[any]bool{1: true, 2: true}, used())

	// With one backend left that is not ejected, hedges go there as without the balancer.
	all[1].fails.Store(true)
	require.Eventually(t, ejected(1), 20*time.Second, 20*time.Millisecond)
	all[2].slow.Store(int64(60 * time.Millisecond))
	primary, first, err := check(20 * time.Millisecond)
	require.NoError(t, err)
	assert.Equal(t, []any{2, 2}, []any{primary, first})
	for _, k := range interceptor.Snapshot().Keys {
		assert.Zero(t, k.Denied[hedge.DeniedSameBackend])
	}
}
