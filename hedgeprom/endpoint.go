package hedgeprom

import (
	"maps"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge/observe"
)

// maxEndpoints is the maximum number of endpoints of a host with a label of their own. More can only occur if several
// clients with the same name have different endpoints, because a client has at most eight.
const maxEndpoints = 8

// endpointMetrics holds the counters of endpoints: attempts and bad attempts.
type endpointMetrics struct{ attempts, bad *prometheus.CounterVec }

// newEndpointMetrics returns the metrics of endpoints without values. All metrics have the given constant labels.
func newEndpointMetrics(labels prometheus.Labels) *endpointMetrics {
	by := func(more ...string) []string {
		return append([]string{"client", "host", "protocol", "endpoint"}, more...)
	}
	counter := func(name, help string, labelNames []string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, labelNames)
	}
	return &endpointMetrics{
		attempts: counter("hedge_endpoint_attempts_total", "Attempts that went to an endpoint, of calls that have a choice of endpoints, by type.", by("type")),
		bad:      counter("hedge_endpoint_bad_total", "Attempts at an endpoint that failed, or that were slower than an attempt at another endpoint.", by("outcome")),
	}
}

// An endpointSeries holds the metrics with the label values of one endpoint of one host.
type endpointSeries struct {
	label                             string // value of the label endpoint
	called, hedged, failed, overtaken prometheus.Counter
}

// An endpointMap points to an immutable map from endpoint name to endpointSeries, for one host. The pointer is nil if
// the host has no endpoints. The caller must hold mu of the Collector to replace the map.
type endpointMap = atomic.Pointer[map[string]*endpointSeries]

// EndpointEvent implements [observe.Observer]: it counts an attempt at an endpoint, by the kind of the event. It
// ignores ejections, because Collect reads them from the states of the clients.
func (c *Collector) EndpointEvent(key observe.KeyInfo, p observe.EndpointEvent) {
	at := c.endpointSeriesFor(c.seriesFor(key), p.Endpoint)
	switch p.Kind {
	case observe.EndpointCalled:
		at.called.Inc()
	case observe.EndpointHedged:
		at.hedged.Inc()
	case observe.EndpointFailed:
		at.failed.Inc()
	case observe.EndpointOvertaken:
		at.overtaken.Inc()
	}
}

// endpointSeriesFor returns the metrics of the named endpoint of the host of s, and creates them if there are none.
// Endpoints beyond maxEndpoints share the label Other.
func (c *Collector) endpointSeriesFor(s *series, name string) *endpointSeries {
	if s.host == Other { // many hosts share the label
		name = Other
	}
	if all := s.endpoints.Load(); all != nil && (*all)[name] != nil {
		return (*all)[name]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var known map[string]*endpointSeries
	if all := s.endpoints.Load(); all != nil {
		known = *all
	}
	if len(known) >= maxEndpoints {
		name = Other
	}
	if known[name] != nil {
		return known[name]
	}
	label := observe.KeyInfo{Host: name}.Printable().Host
	of := func(v *prometheus.CounterVec, value string) prometheus.Counter {
		return v.WithLabelValues(s.client, s.host, s.protocol, label, value)
	}
	at := &endpointSeries{
		label: label, called: of(c.endpoints.attempts, "original"), hedged: of(c.endpoints.attempts, "hedge"),
		failed: of(c.endpoints.bad, "failed"), overtaken: of(c.endpoints.bad, "overtaken"),
	}
	more := make(map[string]*endpointSeries, len(known)+1)
	maps.Copy(more, known)
	more[name] = at
	s.endpoints.Store(&more)
	return at
}
