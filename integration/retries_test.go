package integration

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/retry"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
)

// failing is a server that works, and then fails late: a third of its answers before a hedge is due, and the others after it.
type failing struct {
	isOut    atomic.Bool
	requests atomic.Int64
}

// fails counts a request. During the outage it waits and returns true.
func (f *failing) fails() bool {
	n := f.requests.Add(1)
	if !f.isOut.Load() {
		time.Sleep(time.Millisecond)
		return false
	}
	if n%3 > 0 {
		time.Sleep(2 * delay)
	}
	return true
}

// checkOneBudget makes calls, most of them in an outage, and checks that retries and hedges stay within the budget.
func checkOneBudget(t *testing.T, f *failing, percent, burst float64, snapshot func() hedge.Snapshot, call func(context.Context) error) {
	const calls, callers = 256, 8
	made := 0
	makeCalls := func(n int) (failed int64) {
		var wg sync.WaitGroup
		var failures atomic.Int64
		for range callers {
			wg.Go(func() {
				for range n / callers {
					if call(hedge.WithDelay(t.Context(), delay)) != nil {
						failures.Add(1)
					}
				}
			})
		}
		wg.Wait()
		made += n
		return failures.Load()
	}
	require.Zero(t, makeCalls(calls/4))
	f.isOut.Store(true)
	assert.EqualValues(t, calls, makeCalls(calls))
	f.isOut.Store(false)
	assert.Zero(t, makeCalls(calls/4))
	stats := snapshot().Stats
	assert.Positive(t, stats.HedgesSent)
	assert.Positive(t, stats.Retries)
	assert.EqualValues(t, made, stats.TotalRequests-stats.Retries)
	assert.LessOrEqual(t, float64(f.requests.Load()), float64(made)*(1+percent/100)+burst)
	t.Logf("%d calls: %d retries, %d hedges, %d requests", made, stats.Retries, stats.HedgesSent, f.requests.Load())
}

func TestRetryablehttpPaysFromHedgeBudget(t *testing.T) {
	f := new(failing)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if f.fails() {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer s.Close()
	base := base(t)

	budget := hedge.NewBudget(10, 20)
	transport := hedge.New(base, hedge.WithBudget(budget))
	client := retryablehttp.NewClient()
	client.HTTPClient.Transport = transport
	client.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
		retry, err := retryablehttp.DefaultRetryPolicy(ctx, resp, err)
		return retry && budget.Tokens() >= 1, err
	}
	client.PrepareRetry = func(req *http.Request) error {
		if !budget.Spend() {
			return errors.New("no token for a retry")
		}
		*req = *req.WithContext(hedge.MarkRetry(req.Context()))
		return nil
	}

	client.Logger, client.RetryWaitMin, client.RetryWaitMax = nil, time.Millisecond, time.Millisecond
	checkOneBudget(t, f, 10, 20, transport.Snapshot, func(ctx context.Context) error {
		req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		if err != nil {
			return err
		}
		_, err = whole(client.Do(req))
		return err
	})
}

// healthServer answers health checks, or fails.
type healthServer struct {
	*health.Server
	failing
}

func (h *healthServer) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if h.fails() {
		return nil, status.Error(codes.Unavailable, "out of order")
	}
	return h.Server.Check(ctx, req)
}

func TestRetryInterceptorPaysFromHedgeBudget(t *testing.T) {
	f := &healthServer{Server: health.NewServer()}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, f)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(lis) }()
	defer server.Stop()
	target, credentials := lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())
	methods := hedge.WithMethods("/*")

	budget := hedge.NewBudget(10, 20)
	hedged := hedge.NewInterceptor(hedge.WithBudget(budget), methods)
	pay := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(retry.AttemptMetadataKey)) > 0 {
			if !budget.Spend() {
				return status.Error(codes.Aborted, "no token for a retry")
			}
			ctx = hedge.MarkRetry(ctx)
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	isWorthRetry := func(err error) bool { return status.Code(err) == codes.Unavailable && budget.Tokens() >= 1 }
	conn, err := grpc.NewClient(target, credentials, grpc.WithDisableRetry(), grpc.WithChainUnaryInterceptor(
		retry.UnaryClientInterceptor(retry.WithMax(3), retry.WithRetriable(isWorthRetry)),
		pay, hedged.Unary()))

	require.NoError(t, err)
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	checkOneBudget(t, &f.failing, 10, 20, hedged.Snapshot, func(ctx context.Context) error {
		_, err := client.Check(ctx, new(healthpb.HealthCheckRequest))
		return err
	})
}
