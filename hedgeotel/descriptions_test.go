package hedgeotel_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gohedge/hedge/hedgeotel"
	"github.com/gohedge/hedge/internal/metricstest"
	"github.com/gohedge/hedge/observe"
)

// A promMetric is a metric of module hedgeprom, as its source declares it.
type promMetric struct{ kind, help string }

// promMetrics returns the metrics that the source of hedgeprom declares for calls, endpoints and Limiters, by name.
func promMetrics(t *testing.T) (all map[string]promMetric, source string) {
	all = make(map[string]promMetric)
	short := regexp.MustCompile(`\b(counter|gauge)\("((?:hedge|grpc)_\w+)", "([^"]*)"`)
	long := regexp.MustCompile(`prometheus\.(Histogram|Gauge)Opts\{\s*Name: "(\w+)", Help: "([^"]*)"`)
	limiter := regexp.MustCompile(`desc\("(\w+)", "([^"]*)"`)
	for _, file := range []string{"collector.go", "gauges.go", "endpoint.go", "limiter.go"} {
		b, err := os.ReadFile("../hedgeprom/" + file)
		require.NoError(t, err)
		for _, m := range append(short.FindAllStringSubmatch(string(b), -1), long.FindAllStringSubmatch(string(b), -1)...) {
			all[m[2]] = promMetric{strings.ToLower(m[1]), m[3]}
		}
		if file == "limiter.go" {
			for _, m := range limiter.FindAllStringSubmatch(string(b), -1) {
				all["hedge_limiter_"+m[1]] = promMetric{map[bool]string{true: "counter", false: "gauge"}[strings.HasSuffix(m[1], "_total")], m[2]}
			}
		}
		source += string(b)
	}
	return all, source
}

// fullState has a value for each gauge.
var fullState = observe.KeyState{
	Share: 0.1, Audit: observe.Audit{Verdict: observe.AuditTrying}, Endpoints: []observe.EndpointState{{Endpoint: "http://near.test"}},
}

// TestObserverHasMetricsOfHedgeprom compares help, type, unit and buckets of all metrics whose names are equal in Prometheus: a registry with both
// modules refuses metrics of one name that differ.
func TestObserverHasMetricsOfHedgeprom(t *testing.T) {
	prom, source := promMetrics(t)
	reader := metric.NewManualReader()
	o, err := hedgeotel.New(hedgeotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))
	require.NoError(t, err)
	o.RequestDone(t.Context(), observe.KeyInfo{Protocol: "grpc"}, observe.RequestResult{Attempts: 2, Winner: 1, Saved: 1, AnswersNotTaken: 1})
	o.AttemptDone(t.Context(), observe.KeyInfo{}, observe.AttemptResult{Outcome: observe.Won})
	o.Denied(t.Context(), observe.KeyInfo{}, observe.DeniedBudget)
	o.ClientCreated(metricstest.StateOf(fullState))
	o.Limited(t.Context(), "limiter", observe.LimiterResult{})
	for _, kind := range []observe.EndpointKind{observe.EndpointCalled, observe.EndpointFailed} {
		o.EndpointEvent(observe.KeyInfo{}, observe.EndpointEvent{Kind: kind})
	}
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	buckets := map[string]string{
		"hedge_saved_seconds":     "prometheus.ExponentialBuckets(0.001, 2, 15)",
		"grpc_client_call_hedges": "Buckets: []float64{1, 2, 3, 4, 5}",
	}
	bounds := make(map[string][]float64)
	compared := 0
	for _, m := range rm.ScopeMetrics[0].Metrics {
		name, kind := strings.ReplaceAll(m.Name, ".", "_"), "gauge"
		if m.Unit == "s" {
			name += "_seconds"
		}
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			if data.IsMonotonic {
				name, kind = name+"_total", "counter"
			}
		case metricdata.Histogram[float64]:
			kind, bounds[name] = "histogram", data.DataPoints[0].Bounds
		case metricdata.Histogram[int64]:
			kind, bounds[name] = "histogram", data.DataPoints[0].Bounds
		}
		if name == "hedge_limiter_waited_seconds" { // hedgeprom has none
			continue
		}
		compared++
		assert.Equal(t, prom[name], promMetric{kind, m.Description}, name)
	}
	assert.Equal(t, 19, compared)
	for name, text := range buckets {
		assert.Contains(t, source, text, name)
	}
	assert.Equal(t, []float64{1, 2, 3, 4, 5}, bounds["grpc_client_call_hedges"])
	require.Len(t, bounds["hedge_saved_seconds"], 15)
	for i, bound := range bounds["hedge_saved_seconds"] {
		assert.Equal(t, 0.001*float64(int(1)<<i), bound)
	}
}
