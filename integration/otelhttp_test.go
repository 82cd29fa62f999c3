package integration

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/gohedge/hedge"
)

func TestOtelhttp(t *testing.T) {
	s := serve(t, http.HandlerFunc(catalog))
	base := base(t)
	spans := tracetest.NewSpanRecorder()
	tracing := []otelhttp.Option{otelhttp.WithTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans)))}

	transport := hedge.New(otelhttp.NewTransport(base, tracing...))
	client := &http.Client{Transport: transport}

	same(t, s, transport, get(&http.Client{Transport: base}, s.URL), get(client, s.URL))

	// There is one span for each attempt of the two calls. The span of a primary that lost ends late.
	attempts := 2 + int(transport.Snapshot().Stats.HedgesSent)
	require.Eventually(t, func() bool { return len(spans.Ended()) == attempts }, limit, time.Millisecond)
	lost := 0
	for _, span := range spans.Ended() {
		if span.Status().Code == codes.Error {
			lost++
			assert.Equal(t, "hedge: another attempt won", span.Status().Description)
			assert.Contains(t, span.Attributes(), attribute.String("error.type", "github.com/gohedge/hedge/internal/race.errLost"))
		}
	}
	assert.Positive(t, lost)
	_, closes := any(otelhttp.NewTransport(nil)).(interface{ CloseIdleConnections() })
	assert.False(t, closes)
}

// catalog answers a GET.
func catalog(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"items":["book","lamp"]}`))
}

// get returns a function that gets a URL.
func get(c *http.Client, url string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return "", err
		}
		return whole(c.Do(req))
	}
}
