package integration

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/elastic/go-elasticsearch/v9"
	"github.com/elastic/go-elasticsearch/v9/esutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestElasticsearch(t *testing.T) {
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		query, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(map[string]string{"path": r.URL.Path, "query": string(query)})
	}))
	base := base(t)
	url := s.URL
	plain, err := elasticsearch.New(elasticsearch.WithAddresses(url), elasticsearch.WithTransportOptions(elastictransport.WithTransport(base)))
	require.NoError(t, err)

	transport := hedge.New(base,
		hedge.WithRoute("POST /_search", hedge.Policy{Hedgeable: true}),
		hedge.WithRoute("POST /{index}/_search", hedge.Policy{Hedgeable: true}))
	client, err := elasticsearch.New(elasticsearch.WithAddresses(url),
		elasticsearch.WithTransportOptions(elastictransport.WithTransport(transport)))

	require.NoError(t, err)
	search := func(c *elasticsearch.Client, query func() io.Reader) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			resp, err := c.Search(c.Search.WithContext(ctx), c.Search.WithIndex("shop"),
				c.Search.WithBody(query()))
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			return string(b), err
		}
	}
	query := func() io.Reader { return strings.NewReader(`{"query":{"match":{"name":"lamp"}}}`) }
	got := same(t, s, transport, search(plain, query), search(client, query))
	assert.Contains(t, got, "lamp")

	// HTTP does not know the length of such a body.
	once(t, s, func(ctx context.Context) error {
		_, err := search(client, func() io.Reader { return esutil.NewJSONReader(map[string]int{"size": 1}) })(ctx)
		return err
	})

	once(t, s, func(ctx context.Context) error {
		resp, err := client.Bulk(strings.NewReader("{\"index\":{}}\n{\"name\":\"lamp\"}\n"), client.Bulk.WithContext(ctx), client.Bulk.WithIndex("shop"))
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
}
