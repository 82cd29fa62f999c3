package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sony/gobreaker/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gohedge/hedge"
)

// losing is a transport that returns hedge.ErrLost for an attempt that has lost. Over HTTP/2, the transport below
// returns context.Canceled.
type losing struct{ http.RoundTripper }

func (l losing) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(req)
	if err != nil && errors.Is(context.Cause(req.Context()), hedge.ErrLost) {
		err = hedge.ErrLost
	}
	return resp, err
}

func (l losing) WrappedRoundTripper() http.RoundTripper { return l.RoundTripper }

type breaking struct {
	http.RoundTripper
	breaker *gobreaker.CircuitBreaker[*http.Response]
}

func (b breaking) RoundTrip(req *http.Request) (*http.Response, error) {
	return b.breaker.Execute(func() (*http.Response, error) { return b.RoundTripper.RoundTrip(req) })
}

func (b breaking) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

// serveVersion starts a site with a version of HTTP, which is its answer. It also returns a transport for the site.
func serveVersion(t *testing.T, version int) (*site, http.RoundTripper) {
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.ProtoMajor) }), func(s *httptest.Server) {
		s.EnableHTTP2 = version == 2
		s.StartTLS()
	})
	return s, numbered{s.Client().Transport}
}

func TestGobreaker(t *testing.T) {
	const calls = 5
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP/%d", version), func(t *testing.T) {
			s, base := serveVersion(t, version)
			get := func(c *http.Client) func(context.Context) (string, error) {
				return func(ctx context.Context) (string, error) {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
					if err != nil {
						return "", err
					}
					return whole(c.Do(req))
				}
			}
			plain := get(&http.Client{Transport: base})
			t.Run("above", func(t *testing.T) {
				transport := hedge.New(base)
				client := &http.Client{Transport: transport}
				breaker := gobreaker.NewCircuitBreaker[*http.Response](gobreaker.Settings{})
				do := func(req *http.Request) (*http.Response, error) {
					return breaker.Execute(func() (*http.Response, error) { return client.Do(req) })
				}

				for range calls {
					require.Equal(t, fmt.Sprint(version), same(t, s, transport, plain, func(ctx context.Context) (string, error) {
						req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
						if err != nil {
							return "", err
						}
						return whole(do(req))
					}))
				}
				assert.Equal(t, gobreaker.Counts{Requests: 2 * calls, TotalSuccesses: 2 * calls, ConsecutiveSuccesses: 2 * calls}, breaker.Counts())
			})
			t.Run("below", func(t *testing.T) {
				breaker := gobreaker.NewCircuitBreaker[*http.Response](gobreaker.Settings{
					IsExcluded: func(err error) bool { return errors.Is(err, hedge.ErrLost) },
				})
				transport := hedge.New(breaking{losing{base}, breaker})
				client := &http.Client{Transport: transport}

				for range calls {
					require.Equal(t, fmt.Sprint(version), same(t, s, transport, plain, get(client)))
				}
				// Losers over HTTP/1.1 are cancelled after some time.
				assert.Eventually(t, func() bool { return breaker.Counts().TotalExclusions == calls }, limit, time.Millisecond)
				assert.EqualValues(t, 2*calls, breaker.Counts().TotalSuccesses)
				assert.Zero(t, breaker.Counts().TotalFailures, "a loser counts as a failure")
				assert.Equal(t, gobreaker.StateClosed, breaker.State())
				s.Listener.Close()
				s.CloseClientConnections()
				_, err := get(client)(t.Context())
				require.Error(t, err)
				assert.Positive(t, breaker.Counts().TotalFailures, "a failure is not counted")
			})
		})
	}
}

// TestGobreakerOverGRPC has a breaker below and one above, which the first failure opens.
func TestGobreakerOverGRPC(t *testing.T) {
	f := startFleet(t)
	newBreaker := func() (*gobreaker.CircuitBreaker[any], grpc.UnaryClientInterceptor) {
		breaker := gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.TotalFailures > 0 },
			IsExcluded:  func(err error) bool { return errors.Is(err, hedge.ErrLost) },
		})
		return breaker, func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			_, err := breaker.Execute(func() (any, error) {
				err := invoke(ctx, method, req, reply, cc, opts...)
				if err != nil && errors.Is(context.Cause(ctx), hedge.ErrLost) {
					err = hedge.ErrLost
				}
				return nil, err
			})
			return err
		}
	}
	above, breakingAbove := newBreaker()
	below, breakingBelow := newBreaker()
	hedged := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(100))
	client := f.dial(t, `{"loadBalancingConfig":[{"hedge_elsewhere":{}}]}`, grpc.WithChainUnaryInterceptor(breakingAbove, hedged.Unary(), breakingBelow))
	check := func() error {
		ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 10*time.Millisecond), limit)
		defer cancel()
		_, err := client.Check(ctx, new(healthpb.HealthCheckRequest))
		return err
	}
	f.backends[0].slow.Store(int64(time.Second))
	for hedged.Snapshot().Stats.HedgeWins < 5 { // the backends connect one after another
		require.NoError(t, check())
	}
	assert.Eventually(t, func() bool { return below.Counts().TotalExclusions > 0 }, limit, time.Millisecond)
	assert.Zero(t, above.Counts().TotalExclusions)
	for _, b := range []*gobreaker.CircuitBreaker[any]{above, below} {
		assert.Equal(t, gobreaker.StateClosed, b.State())
	}
	for _, b := range f.backends {
		b.fails.Store(true)
	}
	require.Error(t, check())
	for _, b := range []*gobreaker.CircuitBreaker[any]{above, below} {
		assert.Equal(t, gobreaker.StateOpen, b.State())
	}
}
