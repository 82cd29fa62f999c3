package hedgeotel_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gohedge/hedge/internal/metricstest"
)

// labels has the attribute for each label of module hedgeprom.
var labels = map[string]attribute.Key{"host": "server.address", "endpoint": "hedge.endpoint", "type": "hedge.type", "reason": "hedge.reason"}

// prometheusName returns the name that a Prometheus exporter gives to a metric.
func prometheusName(m metricdata.Metrics) string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	if m.Unit == "s" {
		name += "_seconds"
	}
	if sum, isCounter := m.Data.(metricdata.Sum[int64]); isCounter && sum.IsMonotonic {
		name += "_total"
	}
	return name
}

// TestObserverAgreesWithHedgeprom has a counterpart in module hedgeprom, which expects the same values.
func TestObserverAgreesWithHedgeprom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTelemetry(t)
		metricstest.Play(t, r, func(want metricstest.Values) {
			var rm metricdata.ResourceMetrics
			require.NoError(t, r.reader.Collect(t.Context(), &rm))
			got := make(metricstest.Values)
			for _, m := range rm.ScopeMetrics[0].Metrics {
				add := func(set attribute.Set, value float64) {
					got.Add(prometheusName(m), func(name string) string {
						v, _ := set.Value(labels[name])
						return v.AsString()
					}, value)
				}
				switch data := m.Data.(type) {
				case metricdata.Sum[int64]:
					for _, p := range data.DataPoints {
						add(p.Attributes, float64(p.Value))
					}
				case metricdata.Gauge[float64]:
					for _, p := range data.DataPoints {
						add(p.Attributes, p.Value)
					}
				case metricdata.Histogram[float64]:
					for _, p := range data.DataPoints {
						add(p.Attributes, float64(p.Count))
					}
				}
			}
			assert.Equal(t, want, got)
		})
	})
}
