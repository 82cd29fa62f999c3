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

	"github.com/gohedge/hedge"
)

type breaking struct {
	http.RoundTripper
	breaker *gobreaker.CircuitBreaker[*http.Response]
}

func (b breaking) RoundTrip(req *http.Request) (*http.Response, error) {
	return b.breaker.Execute(func() (*http.Response, error) {
		resp, err := b.RoundTripper.RoundTrip(req)
		if err != nil && errors.Is(context.Cause(req.Context()), hedge.ErrLost) {
			err = hedge.ErrLost // over HTTP/2 it is context.Canceled
		}
		return resp, err
	})
}

func (b breaking) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

func TestGobreaker(t *testing.T) {
	const calls = 5
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP/%d", version), func(t *testing.T) {
			s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.ProtoMajor) }), func(s *httptest.Server) {
				s.EnableHTTP2 = version == 2
				s.StartTLS()
			})
			base := numbered{s.Client().Transport}
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
				transport := hedge.New(breaking{base, breaker})
				client := &http.Client{Transport: transport}

				for range calls {
					require.Equal(t, fmt.Sprint(version), same(t, s, transport, plain, get(client)))
				}
				// Losers over HTTP/1.1 are cancelled after some time.
				assert.Eventually(t, func() bool { return breaker.Counts().TotalExclusions == calls }, limit, time.Millisecond)
				assert.EqualValues(t, 2*calls, breaker.Counts().TotalSuccesses)
				assert.Zero(t, breaker.Counts().TotalFailures, "a loser counts as a failure")
				s.Listener.Close()
				s.CloseClientConnections()
				_, err := get(client)(t.Context())
				require.Error(t, err)
				assert.Positive(t, breaker.Counts().TotalFailures, "a failure is not counted")
			})
		})
	}
}
