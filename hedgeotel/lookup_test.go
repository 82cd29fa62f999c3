package hedgeotel_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gohedge/hedge/observe"
)

func TestLookupDurationFollowsConventionsAndNamesCall(t *testing.T) {
	r := newTelemetry(t)
	ctx, call := r.tracer.Start(t.Context(), "call")
	r.LookupDone(ctx, observe.DNSLookup{Name: "api.example.com.", Type: 1, Duration: 20 * ms})
	r.LookupDone(ctx, observe.DNSLookup{Name: "none.example.com.", Type: 1, Duration: 30 * ms, ErrorType: "host_not_found"})
	call.End()
	r.LookupDone(t.Context(), observe.DNSLookup{Name: strings.Repeat("\\007", 200) + ".", Duration: ms}) // no call

	var rm metricdata.ResourceMetrics
	require.NoError(t, r.reader.Collect(t.Context(), &rm))
	require.Len(t, rm.ScopeMetrics[0].Metrics, 1)
	m := rm.ScopeMetrics[0].Metrics[0]
	assert.Equal(t, []string{"dns.lookup.duration", "s", "Measures the time taken to perform a DNS lookup."}, []string{m.Name, m.Unit, m.Description})
	points := m.Data.(metricdata.Histogram[float64]).DataPoints
	require.Len(t, points, 3)
	spanID, withCall := call.SpanContext().SpanID(), 0
	for _, p := range points {
		assert.Equal(t, []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}, p.Bounds)
		name, _ := p.Attributes.Value("dns.question.name")
		kind, hasKind := p.Attributes.Value("error.type")
		switch name.AsString() {
		case "api.example.com":
			assert.Equal(t, 0.02, p.Sum)
			assert.False(t, hasKind)
		case "none.example.com":
			assert.Equal(t, 0.03, p.Sum)
			assert.Equal(t, "host_not_found", kind.AsString())
		default:
			assert.LessOrEqual(t, len(name.AsString()), 256)
			assert.Empty(t, p.Exemplars, "no call waited")
			continue
		}
		require.Len(t, p.Exemplars, 1)
		assert.Equal(t, spanID[:], p.Exemplars[0].SpanID)
		withCall++
	}
	assert.Equal(t, 2, withCall)

	events := r.spans.Ended()[0].Events()
	require.Len(t, events, 2)
	assert.Equal(t, "dns.lookup", events[1].Name)
	assert.Equal(t, []attribute.KeyValue{
		attribute.String("dns.question.name", "none.example.com"), attribute.String("error.type", "host_not_found"), attribute.Float64("dns.lookup.duration", 0.03),
	}, events[1].Attributes)
}
