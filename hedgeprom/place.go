package hedgeprom

import (
	"maps"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge/observe"
)

// maxPlaces is how many places of one host have labels of their own: as many as a client can have.
const maxPlaces = 8

// placeMetrics counts what happens at places.
type placeMetrics struct {
	attempts, bad *prometheus.CounterVec
	out           *prometheus.GaugeVec
}

func newPlaceMetrics(labels prometheus.Labels) *placeMetrics {
	by := func(more ...string) []string { return append([]string{"client", "host", "protocol", "place"}, more...) }
	counter := func(name, help string, labelNames []string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, labelNames)
	}
	return &placeMetrics{
		attempts: counter("hedge_place_attempts_total", "Attempts that went to a place, of calls that have a choice of places, by type.", by("type")),
		bad:      counter("hedge_place_bad_total", "Of those, the ones that failed, or that were overtaken by one at another place.", by("outcome")),
		out: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "hedge_place_out", Help: "Keys (hosts, or their routes) whose calls go to other places.", ConstLabels: labels,
		}, by()),
	}
}

// all returns the collectors of m.
func (m *placeMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.attempts, m.bad, m.out}
}

// placeSeries has the metrics of one place of one host.
type placeSeries struct {
	called, hedged, failed, overtaken prometheus.Counter
	out                               prometheus.Gauge // nil if many hosts or places share the label
}

// places has the metrics of a host's places, by their names; nil: there are none. The map is replaced with the Collector's mu
// held, and never changed.
type places = atomic.Pointer[map[string]*placeSeries]

// Placed counts what happens at a place.
func (c *Collector) Placed(key observe.KeyInfo, p observe.PlaceEvent) {
	at := c.place(c.of(key), p.Place)
	switch p.Kind {
	case observe.PlaceCalled:
		at.called.Inc()
	case observe.PlaceHedged:
		at.hedged.Inc()
	case observe.PlaceFailed:
		at.failed.Inc()
	case observe.PlaceOvertaken:
		at.overtaken.Inc()
	case observe.PlaceOut:
		at.turn(1)
	case observe.PlaceBack:
		at.turn(-1)
	}
}

// turn adds to how many keys take the place for out.
func (s *placeSeries) turn(n float64) {
	if s.out != nil {
		s.out.Add(n)
	}
}

// place returns the metrics of a place.
func (c *Collector) place(s *series, name string) *placeSeries {
	if s.delay == nil { // many hosts share the label
		name = Other
	}
	if all := s.places.Load(); all != nil && (*all)[name] != nil {
		return (*all)[name]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var known map[string]*placeSeries
	if all := s.places.Load(); all != nil {
		known = *all
	}
	if len(known) >= maxPlaces {
		name = Other
	}
	if known[name] != nil {
		return known[name]
	}
	label := observe.KeyInfo{Host: name}.Printable().Host
	of := func(v *prometheus.CounterVec, value string) prometheus.Counter {
		return v.WithLabelValues(s.client, s.host, s.protocol, label, value)
	}
	at := &placeSeries{
		called: of(c.placed.attempts, "original"), hedged: of(c.placed.attempts, "hedge"),
		failed: of(c.placed.bad, "failed"), overtaken: of(c.placed.bad, "overtaken"),
	}
	if name != Other {
		at.out = c.placed.out.WithLabelValues(s.client, s.host, s.protocol, label)
	}
	more := make(map[string]*placeSeries, len(known)+1)
	maps.Copy(more, known)
	more[name] = at
	s.places.Store(&more)
	return at
}
