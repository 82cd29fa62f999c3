package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// TestFailsafe has breakers that the first failure opens.
func TestFailsafe(t *testing.T) {
	const calls = 5
	for _, version := range []int{1, 2} {
		for _, order := range []string{"above", "below"} {
			t.Run(fmt.Sprintf("%s HTTP/%d", order, version), func(t *testing.T) {
				s, base := serveVersion(t, version)
				breaker := circuitbreaker.NewBuilder[*http.Response]().HandleIf(func(_ *http.Response, err error) bool {
					return err != nil && !errors.Is(err, hedge.ErrLost)
				}).Build()
				transport := hedge.New(failsafehttp.NewRoundTripper(losing{base}, breaker))
				var outermost http.RoundTripper = transport
				if order == "above" {
					transport = hedge.New(base)
					breaker = circuitbreaker.NewWithDefaults[*http.Response]()
					outermost = failsafehttp.NewRoundTripper(transport, breaker)
				}
				get := func(rt http.RoundTripper) func(context.Context) (string, error) {
					return func(ctx context.Context) (string, error) {
						req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
						if err != nil {
							return "", err
						}
						return whole((&http.Client{Transport: rt}).Do(req))
					}
				}

				for range calls {
					require.Equal(t, fmt.Sprint(version), same(t, s, transport, get(base), get(outermost)))
				}
				// Losers over HTTP/1.1 are cancelled after some time.
				assert.Eventually(t, func() bool { return s.gone.Load() == calls }, limit, time.Millisecond)
				assert.Never(t, breaker.IsOpen, 100*time.Millisecond, time.Millisecond, "a loser opens it")
				s.Listener.Close()
				s.CloseClientConnections()
				_, err := get(outermost)(t.Context())
				require.Error(t, err)
				assert.True(t, breaker.IsOpen(), "a failure does not open it")
			})
		}
	}
}
