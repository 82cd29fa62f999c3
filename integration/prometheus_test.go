package integration

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestPrometheus(t *testing.T) {
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/query" || r.FormValue("query") != "up" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = w.Write([]byte(`{"status":"success","data":{"resultType":"vector","result":[{"metric":{"job":"shop"},"value":[1700000000,"1"]}]}}`))
	}))
	base := base(t)
	url := s.URL
	plain, err := api.NewClient(api.Config{Address: url, RoundTripper: base})
	require.NoError(t, err)

	transport := hedge.New(base,
		hedge.WithRoute("POST /api/v1/query", hedge.Policy{Hedgeable: true}),
		hedge.WithRoute("POST /api/v1/query_range", hedge.Policy{Hedgeable: true}))
	client, err := api.NewClient(api.Config{Address: url, RoundTripper: transport})

	require.NoError(t, err)
	query := func(c api.Client) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			v, _, _, err := v1.NewAPI(c).Query(ctx, "up", time.Unix(1700000000, 0))
			if err != nil {
				return "", err
			}
			return v.String(), nil
		}
	}
	got := same(t, s, transport, query(plain), query(client))
	assert.Equal(t, `{job="shop"} => 1 @[1700000000]`, got)

	once(t, s, func(ctx context.Context) error { return v1.NewAPI(client).CleanTombstones(ctx) })
}
