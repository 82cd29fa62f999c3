package integration

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestRetryablehttp(t *testing.T) {
	var down atomic.Bool // when set, one request fails
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(number) == "" && down.CompareAndSwap(true, false) {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		catalog(w, r)
	}))
	base := base(t)
	plain := retryablehttp.NewClient()
	plain.HTTPClient.Transport = base

	transport := hedge.New(base)
	client := retryablehttp.NewClient()
	client.HTTPClient.Transport = transport

	plain.Logger, client.Logger = nil, nil
	client.RetryWaitMin, client.RetryWaitMax = delay, delay
	fetch := func(c *retryablehttp.Client) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
			if err != nil {
				return "", err
			}
			return whole(c.Do(req))
		}
	}
	want := same(t, s, transport, fetch(plain), fetch(client))

	// A failed request is retried and not hedged, and no latency is learned from it.
	samples, requests := transport.Snapshot().Keys[0].Samples, transport.Snapshot().Stats.TotalRequests
	down.Store(true)
	got, err := fetch(client)(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.EqualValues(t, 2, transport.Snapshot().Stats.TotalRequests-requests)
	assert.Equal(t, 1, transport.Snapshot().Keys[0].Samples-samples)
}
