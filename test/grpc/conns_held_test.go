//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"net"
	"runtime"
	"slices"
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

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpctest"
)

const hedgingAfter20ms = `{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2,"hedgingDelay":"0.02s"}}]}`

func TestHedgeConnClosedDuringCallDoesNotEndCall(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		for _, opts := range [][]hedge.GRPCOption{
			{hedge.WithMethods("/*"), hedge.WithMaxHedges(1)},
			{hedge.WithServiceConfig(hedgingAfter20ms)},
		} {
			f, conns := abroad(t, 0)
			in := hedge.NewInterceptor(append(opts, hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))...)
			client := atHome(t, f, in)
			delay(f, time.Second)
			time.AfterFunc(500*ms, func() { _ = conns[0].Conn.Close() })
			at, err := f.RecordCall(soon(t), call(client))
			require.NoError(t, err)
			assert.Equal(t, []int{1, 2}, at)
			at, err = f.RecordCall(soon(t), call(client))
			require.NoError(t, err)
			assert.Equal(t, []int{1}, at)
		}
	})
}

// TestHedgeConnIsRestoredAtAnyBudget has a budget that pays for exactly one in ten hedges that are due.
func TestHedgeConnIsRestoredAtAnyBudget(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		for _, percent := range []float64{3, 5, 10, 20} {
			f, conns := abroad(t, 0, 0)
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(percent), hedge.WithHedgeConns(home, conns...))
			client := atHome(t, f, in)
			f.Delays[0].Store(int64(40 * ms))
			f.Codes[1].Store(uint32(codes.Unavailable))
			for range 500 {
				_, err := f.RecordCall(soon(t), call(client))
				require.NoError(t, err)
			}
			at, _ := endpointOf(in, "passthrough:///backend1:443")
			require.True(t, at.Ejected)
			before := at.Hedges
			f.Codes[1].Store(0)
			for range 1000 {
				_, err := f.RecordCall(soon(t), call(client))
				require.NoError(t, err)
			}
			at, _ = endpointOf(in, "passthrough:///backend1:443")
			assert.False(t, at.Ejected, "%v %%: %d hedges, then %d", percent, before, at.Hedges)
		}
	})
}

// endpointOf returns the endpoint with the given name of the latency key with the most hedges.
func endpointOf(in *hedge.Interceptor, name string) (found hedge.EndpointSnapshot, ok bool) {
	for _, k := range in.Snapshot().Keys {
		for _, p := range k.Endpoints {
			if p.Endpoint == name && (!ok || p.Hedges > found.Hedges) {
				found, ok = p, true
			}
		}
	}
	return found, ok
}

func TestPushbackStopsHedgesOfCallToItsTargetOnly(t *testing.T) {
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0, 0)
		sameTarget := grpctest.Dial(t, home[0], grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return f.Network.Host("client").DialContext(ctx, "tcp", "backend1:443")
		}))
		for _, c := range []struct {
			conns []hedge.HedgeConn
			want  []int
			why   string
		}{
			{conns[:1], []int{1, 2}, "none goes where one was pushed back"},
			{conns, []int{1, 2, 3}, "that is not for another target"},
			{[]hedge.HedgeConn{{Conn: sameTarget}}, []int{1, 2}, "that is for the call's target"},
			{[]hedge.HedgeConn{{Conn: sameTarget}, conns[1]}, []int{1, 2, 3}, "and not for another one"},
		} {
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(2), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, c.conns...))
			delay(f, 10*ms)
			f.Codes[1].Store(0)
			client := atHome(t, f, in)
			delay(f, time.Second)
			f.Delays[1].Store(0)
			f.Codes[1].Store(uint32(codes.ResourceExhausted))
			at, err := f.RecordCall(soon(t), call(client))
			require.NoError(t, err)
			assert.Equal(t, c.want, at, c.why)
		}
	})
}

func TestRetryThrottlingAppliesToTargetOfCall(t *testing.T) {
	const config = `{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2,"hedgingDelay":"0.02s","nonFatalStatusCodes":["UNAVAILABLE"]}}],
		"retryThrottling":{"maxTokens":10,"tokenRatio":0.001}}`
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		f, conns := abroad(t, 0)
		in := hedge.NewInterceptor(hedge.WithServiceConfig(config), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
		client := atHome(t, f, in)
		hedges := func(n int) (sent int) {
			for range n {
				at, _ := f.RecordCall(t.Context(), call(client))
				sent += len(at) - 1
			}
			return sent
		}
		f.Delays[0].Store(int64(50 * ms))
		f.Codes[1].Store(uint32(codes.Unavailable))
		hedges(20)
		f.Codes[1].Store(0)
		hedges(20) // one of them brings the connection back
		assert.Equal(t, 20, hedges(20), "the failures of another target are none of the call's")
		f.Delays[0].Store(0)
		f.Codes[0].Store(uint32(codes.Unavailable))
		assert.Equal(t, 20, hedges(20), "and its failures hold back no hedges to another one")
	})
}

// A bearer is a call credential.
type bearer struct{}

func (bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer secret"}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }

func TestCallCredentialsAreSentToNamedTargetsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := abroad(t, 0)
		for _, c := range []struct {
			named  []string
			hedged bool
		}{{home, true}, {nil, false}} {
			var mu sync.Mutex
			got := make(map[string]bool)
			spy := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				md, _ := metadata.FromOutgoingContext(ctx)
				has := slices.ContainsFunc(opts, func(o grpc.CallOption) bool { _, is := o.(grpc.PerRPCCredsCallOption); return is })
				mu.Lock()
				got[cc.Target()] = has && len(md["x-token"]) == 1
				mu.Unlock()
				return invoke(ctx, method, req, reply, cc, opts...)
			}
			other := f.DialBackend(t, 1, grpc.WithChainUnaryInterceptor(spy))
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(2), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(c.named, hedge.HedgeConn{Conn: other}))
			client := atHome(t, f, in, grpc.WithChainUnaryInterceptor(spy))
			delay(f, time.Second)
			clear(got)
			_, err := client.UnaryCall(metadata.AppendToOutgoingContext(soon(t), "x-token", "secret"), new(testpb.SimpleRequest), grpc.PerRPCCredentials(bearer{}))
			require.NoError(t, err)
			want := map[string]bool{home[0]: true}
			if c.hedged {
				want[other.Target()] = true
			}
			assert.Equal(t, want, got)
			delay(f, 10*ms)
		}
	})
}

// TestPanicOfEndpointObserverKeepsHedgesInFlight has an observer of endpoint events that panics or calls
// runtime.Goexit.
func TestPanicOfEndpointObserverKeepsHedgesInFlight(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	both(t, func(t *testing.T, call func(testpb.TestServiceClient) func(context.Context) error) {
		for name, end := range map[string]func(){"panic": func() { panic("observer") }, "exit": runtime.Goexit} {
			for kind, calls := range map[hedge.EndpointKind]int{hedge.EndpointHedged: 1010, hedge.EndpointFailed: 50, hedge.EndpointEjected: 50} {
				f, conns := abroad(t, 0, 0)
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...),
					hedge.WithObserver(&ending{kind: kind, end: end}))
				client := atHome(t, f, in)
				f.Delays[0].Store(int64(time.Second))
				f.Codes[1].Store(uint32(codes.Unavailable))
				for range calls { // as many hedges may be in flight as 1000
					done := make(chan error, 1)
					go func() {
						defer close(done)
						_, err := f.RecordCall(soon(t), call(client))
						done <- err
					}()
					if err, ended := <-done; ended { // or the caller's goroutine has
						require.NoError(t, err, "%s %s", name, kind)
					}
				}
				synctest.Wait()
				for _, k := range in.Snapshot().Keys {
					assert.Zero(t, k.Denied[hedge.DeniedInFlight], "%s %s: hedges that have ended count as in flight", name, kind)
				}
			}
		}
	})
}

// An ending is an observer that ends the goroutine that reports an endpoint event.
type ending struct {
	hedge.NopObserver
	kind hedge.EndpointKind
	end  func()
}

func (o *ending) EndpointEvent(_ hedge.KeyInfo, p hedge.EndpointEvent) {
	if p.Kind == o.kind {
		o.end()
	}
}
