package endpoints_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestEjectedEndpointOfEqualSpeedIsRestored has two equal endpoints, so that every second probe is overtaken.
func TestEjectedEndpointOfEqualSpeedIsRestored(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		down := true
		alike := func(r *http.Request, n int) (*http.Response, error) {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			return after(rt, time.Duration((16+8*random.Float64())*float64(ms)))(r, n)
		}
		rt.Answer = inEndpoints(rt, func(r *http.Request, n int) (*http.Response, error) {
			if down {
				return fails(r, n)
			}
			return alike(r, n)
		}, alike)
		tr := hedge.New(rt, toFar(hedge.Endpoint{}))
		call := func(calls int) {
			for range calls {
				if resp, err := get(t, tr, site); err == nil {
					text(t, resp)
				}
			}
		}
		down = false
		call(300)
		require.False(t, firstEndpoint(tr).Ejected)
		down = true
		call(50)
		require.True(t, firstEndpoint(tr).Ejected)
		down = false
		call(5000)
		assert.False(t, firstEndpoint(tr).Ejected)
	})
}

// TestEjectedEndpointIsRestoredAtAnyBudget has hedges that spend all tokens. A denied probe must not count as a probe.
func TestEjectedEndpointIsRestoredAtAnyBudget(t *testing.T) {
	for _, percent := range []float64{1, 2, 3, 5, 10} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				down := false
				rt.Answer = inEndpoints(rt, func(r *http.Request, n int) (*http.Response, error) {
					if down {
						return fails(r, n)
					}
					return quick(rt)(r, n)
				}, after(rt, 80*ms))
				tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithBudgetPercent(percent), hedge.WithMaxHedges(1))
				call := func(calls int) {
					for range calls {
						resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 40*ms), "GET", site, nil))
						if err == nil {
							text(t, resp)
						}
					}
				}
				call(100)
				down = true
				call(1000)
				require.True(t, firstEndpoint(tr).Ejected)
				down = false
				call(2000 + int(10_000/percent))
				assert.False(t, firstEndpoint(tr).Ejected)
			})
		})
	}
}

// firstEndpoint returns the snapshot of the first endpoint.
func firstEndpoint(tr *hedge.Transport) (p hedge.EndpointSnapshot) {
	for _, k := range tr.Snapshot().Keys {
		if len(k.Endpoints) > 0 {
			p = k.Endpoints[0]
		}
	}
	return p
}
