//go:build !hedge_nogrpc

package livetests_test

// A connection that goes dead under the requests in flight, over a network in
// memory and in fake time.

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
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
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	served      = 10 * ms // what the servers take
	oneWay      = 2 * ms
	inFlight    = 8
	callTimeout = time.Second // of callers
)

// planned notes after which delay the last request was to be hedged.
type planned struct {
	hedge.NopObserver
	delay atomic.Int64
}

func (p *planned) RequestDone(_ context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	p.delay.Store(int64(r.Delay))
}

// frozen makes calls until they are known, freezes the client's own connection
// under some more, and returns the learned delay, what those took and how they ended.
func frozen(t *testing.T, network *netsim.Network, p *planned, call func(context.Context) error) (delay time.Duration, took []time.Duration, errs []error) {
	for range 100 {
		require.NoError(t, call(t.Context()))
	}
	delay = time.Duration(p.delay.Load())
	require.GreaterOrEqual(t, delay, served)
	took, errs = make([]time.Duration, inFlight), make([]error, inFlight)
	var wg sync.WaitGroup
	for i := range inFlight {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
			defer cancel()
			start := time.Now()
			errs[i] = call(ctx)
			took[i] = time.Since(start)
		})
	}
	time.Sleep(served / 2)
	network.Set("client", "server", netsim.Profile{BlackHole: true})
	wg.Wait()
	return delay, took, errs
}

func distances(n *netsim.Network) {
	for _, from := range []string{"client", "detour"} {
		n.Set(from, "server", netsim.Profile{Delay: netsim.Constant(oneWay)})
	}
}

func TestRequestsInFlightOnAFrozenHTTP2ConnectionAreAnswered(t *testing.T) {
	doubles.SkipWithoutHTTP2InBubble(t)
	const dial = 4 * oneWay // TCP and TLS 1.3
	run := func(t *testing.T, opts func(base *http.Transport) []hedge.HTTPOption) (time.Duration, []time.Duration, []error) {
		network, err := netsim.NewMemory(1, "client", "detour", "server")
		require.NoError(t, err)
		distances(network)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if doubles.Sleep(r.Context(), served) == nil {
				_, _ = io.WriteString(w, r.Proto)
			}
		}))
		require.NoError(t, s.Listener.Close())
		s.Listener, err = network.Host("server").Listen("tcp", ":443")
		require.NoError(t, err)
		s.EnableHTTP2 = true
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		var dials atomic.Int64
		base := &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs},
			ForceAttemptHTTP2: true,
			DialContext: func(ctx context.Context, proto, _ string) (net.Conn, error) {
				from := "detour"
				if dials.Add(1) == 1 {
					from = "client"
				}
				return network.Host(from).DialContext(ctx, proto, "server:443")
			},
		}
		p := new(planned)
		tr := hedge.New(base, append(opts(base), hedge.WithObserver(p))...)
		delay, took, errs := frozen(t, network, p, func(ctx context.Context) error {
			got, err := fetch(ctx, tr, "https://example.com")
			if err == nil {
				assert.Equal(t, "HTTP/2.0", got)
			}
			return err
		})
		network.Set("client", "server", netsim.Profile{})
		time.Sleep(time.Minute) // what was lost is sent again
		tr.CloseIdleConnections()
		s.Close()
		synctest.Wait()
		require.NoError(t, network.Close())
		return delay, took, errs
	}
	synctest.Test(t, func(t *testing.T) {
		delay, took, errs := run(t, func(*http.Transport) []hedge.HTTPOption { return nil })
		for i := range took {
			require.NoError(t, errs[i])
			assert.LessOrEqual(t, took[i], 3*delay+dial, "hedged after %v", delay)
		}
		t.Logf("delay %v, dial %v: %v", delay, dial, took)
	})
	synctest.Test(t, func(t *testing.T) { // without the second pool
		_, _, errs := run(t, func(base *http.Transport) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithHedgeTransport(base)}
		})
		for _, err := range errs {
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		}
	})
}

// steadyServer takes the same for every call.
type steadyServer struct {
	testpb.UnimplementedTestServiceServer
}

func (steadyServer) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return new(testpb.SimpleResponse), doubles.Sleep(ctx, served)
}

func TestCallsInFlightOnAFrozenGRPCConnectionAreAnswered(t *testing.T) {
	run := func(t *testing.T, opts func(second *grpc.ClientConn) []hedge.GRPCOption) (time.Duration, []time.Duration, []error) {
		network, dial := overMemory(t, steadyServer{})
		distances(network)
		p := new(planned)
		cc := dial("client", grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor(
			append(opts(dial("detour")), hedge.WithMethods("/*"), hedge.WithObserver(p))...)))
		client := testpb.NewTestServiceClient(cc)
		return frozen(t, network, p, func(ctx context.Context) error {
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
			return err
		})
	}
	synctest.Test(t, func(t *testing.T) {
		delay, took, errs := run(t, func(second *grpc.ClientConn) []hedge.GRPCOption {
			return []hedge.GRPCOption{hedge.WithHedgeConn(second)}
		})
		for i := range took {
			require.NoError(t, errs[i])
			assert.LessOrEqual(t, took[i], 3*delay, "hedged after %v; the connection is there", delay)
		}
		t.Logf("delay %v: %v", delay, took)
	})
	synctest.Test(t, func(t *testing.T) { // without the hedge connection
		_, _, errs := run(t, func(*grpc.ClientConn) []hedge.GRPCOption { return nil })
		for _, err := range errs {
			assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
		}
	})
}
