package integration

import (
	"context"
	"fmt"
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

// TestOtelhttp has spans of otelhttp below the hedging, where losers are errors, and above.
func TestOtelhttp(t *testing.T) {
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP/%d", version), func(t *testing.T) {
			s, base := serveVersion(t, version)
			below, above := tracetest.NewSpanRecorder(), tracetest.NewSpanRecorder()
			tracing := []otelhttp.Option{otelhttp.WithTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(below)))}

			transport := hedge.New(otelhttp.NewTransport(losing{base}, tracing...))
			client := &http.Client{Transport: otelhttp.NewTransport(transport,
				otelhttp.WithTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(above))))}

			same(t, s, transport, get(&http.Client{Transport: base}, s.URL), get(client, s.URL))

			// There is one span for each attempt of the two calls. The span of a primary that lost may end late.
			attempts := 2 + int(transport.Snapshot().Stats.HedgesSent)
			require.Eventually(t, func() bool { return len(below.Ended()) == attempts }, limit, time.Millisecond)
			lost := 0
			for _, span := range below.Ended() {
				if span.Status().Code == codes.Error {
					lost++
					assert.Equal(t, "hedge: another attempt won", span.Status().Description)
					assert.Contains(t, span.Attributes(), attribute.String("error.type", "github.com/gohedge/hedge/internal/race.errLost"))
				}
			}
			assert.Positive(t, lost)
			require.Eventually(t, func() bool { return len(above.Ended()) == 2 }, limit, time.Millisecond)
			for _, span := range above.Ended() {
				assert.NotEqual(t, codes.Error, span.Status().Code)
			}
		})
	}
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
