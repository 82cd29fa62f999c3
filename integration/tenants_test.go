package integration

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// tenantKey is the key of a tenant's name in a context.
type tenantKey struct{}

// delayedByTenant is a transport that answers small tenants after 10 ms, and large ones after 100 ms.
type delayedByTenant struct{}

func (delayedByTenant) RoundTrip(req *http.Request) (*http.Response, error) {
	wait := 10 * time.Millisecond
	if req.Context().Value(tenantKey{}) == "large" {
		wait *= 10
	}
	time.Sleep(wait)
	return &http.Response{StatusCode: http.StatusOK, Request: req, Body: io.NopCloser(strings.NewReader(""))}, nil
}

// TestTenants calls one host for a small and a large tenant. Each gets a latency key.
func TestTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := delayedByTenant{}

		perTenant := func(ctx context.Context, host, _ string) string {
			tenant, _ := ctx.Value(tenantKey{}).(string)
			return host + " " + tenant
		}
		budget := hedge.NewBudget(5, 20) // of all tenants
		transport := hedge.New(base, hedge.WithKeyFunc(perTenant), hedge.WithBudget(budget))

		client := &http.Client{Transport: transport}
		for range 1000 {
			for _, tenant := range []string{"small", "large"} {
				req, err := http.NewRequestWithContext(context.WithValue(t.Context(), tenantKey{}, tenant), http.MethodGet, "http://shop.test/", nil)
				require.NoError(t, err)
				resp, err := client.Do(req)
				require.NoError(t, err)
				resp.Body.Close()
			}
		}
		medians := make(map[string]time.Duration)
		for _, k := range transport.Snapshot().Keys {
			medians[k.Host] = k.P50
		}
		assert.Len(t, medians, 2)
		assert.InDelta(t, 10*time.Millisecond, medians["shop.test small"], float64(time.Millisecond))
		assert.InDelta(t, 100*time.Millisecond, medians["shop.test large"], float64(5*time.Millisecond))
		assert.LessOrEqual(t, transport.Snapshot().Stats.HedgedRequests, int64(2000/20+20), "hedges of all tenants")
	})
}
