// Package hedgeprom shows what hedging does to Prometheus.
//
//	metrics := hedgeprom.New()
//	prometheus.MustRegister(metrics)
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport,
//		hedge.WithName("shop"), hedge.WithObserver(metrics))}
//
// One Collector serves any number of clients, of all protocols. Beside the code
// are a dashboard for Grafana (dashboard.json) and rules for alerts (alerts.yaml).
//
// # Metrics
//
// All have the labels client (see [hedge.WithName]), host (or gRPC target, or the
// key of [hedge.Do]) and protocol.
//
//	hedge_requests_total         calls
//	hedge_attempts_total{type}   what was sent for them; type is original or hedge
//	hedge_wins_total{type}       hedged calls that were answered, by what answered them
//	hedge_denied_total{reason}   hedges, or calls, that were not allowed; see hedge.Reason
//	hedge_delay_seconds          after which the latest call was to be hedged; 0: not at all
//	hedge_saved_seconds          histogram of what each win of a hedge saved, estimated
//	hedge_budget_tokens          hedges that the budget would pay for, when last asked
//
// Where a host has several routes or methods, the two gauges are the latest
// call's, whichever that was. With [hedge.WithShadow], hedge_saved_seconds holds
// what hedges would have saved, and hedge_denied_total{reason="shadow"} counts them.
package hedgeprom

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge"
)

// Other is the host label of all hosts above the limit.
const Other = "other"

// A Collector is both: a hedge.Observer that counts, and a prometheus.Collector
// that shows. It is safe for concurrent use.
type Collector struct {
	hedge.NopObserver
	maxHosts int

	requests, attempts, wins, denied *prometheus.CounterVec
	delay, budget                    *prometheus.GaugeVec
	saved                            *prometheus.HistogramVec

	series atomic.Pointer[map[id]*series] // replaced, never changed
	mu     sync.Mutex                     // held to replace it
	hosts  map[string]bool                // that have a label of their own; guarded by mu
}

var (
	_ hedge.Observer       = (*Collector)(nil)
	_ prometheus.Collector = (*Collector)(nil)
)

// An Option adjusts [New].
type Option func(*settings)

type settings struct {
	maxHosts int
	buckets  []float64
	labels   prometheus.Labels
}

// WithMaxHosts gives the first n hosts a label of their own, and all others the
// label [Other], without the two gauges. The default is 100. It panics if n is negative.
func WithMaxHosts(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("hedgeprom: WithMaxHosts: %d is negative", n))
	}
	return func(s *settings) { s.maxHosts = n }
}

// WithBuckets replaces the buckets of hedge_saved_seconds. The default is 1 ms to
// 16 s, each twice the one before.
func WithBuckets(seconds ...float64) Option {
	return func(s *settings) { s.buckets = seconds }
}

// WithConstLabels adds labels that are the same on every metric. The default is none.
func WithConstLabels(labels prometheus.Labels) Option {
	return func(s *settings) { s.labels = labels }
}

// New returns a Collector, which has to be registered to be seen.
func New(opts ...Option) *Collector {
	s := settings{maxHosts: 100, buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}
	for _, o := range opts {
		o(&s)
	}
	by := func(more ...string) []string { return append([]string{"client", "host", "protocol"}, more...) }
	counter := func(name, help string, labels []string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: s.labels}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: s.labels}, by())
	}
	c := &Collector{
		maxHosts: s.maxHosts,
		requests: counter("hedge_requests_total", "Calls.", by()),
		attempts: counter("hedge_attempts_total", "What was sent for the calls: originals and hedges.", by("type")),
		wins:     counter("hedge_wins_total", "Hedged calls that were answered, by what answered them.", by("type")),
		denied:   counter("hedge_denied_total", "Hedges that were due, or calls, that were not allowed, by reason.", by("reason")),
		delay:    gauge("hedge_delay_seconds", "After which the latest call was to be hedged; 0: not at all."),
		budget:   gauge("hedge_budget_tokens", "Hedges that the budget would pay for, when last asked."),
		saved: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hedge_saved_seconds", Help: "What each win of a hedge saved, estimated.",
			Buckets: s.buckets, ConstLabels: s.labels,
		}, by()),
		hosts: make(map[string]bool),
	}
	c.series.Store(&map[id]*series{})
	return c
}

func (c *Collector) all() [7]prometheus.Collector {
	return [...]prometheus.Collector{c.requests, c.attempts, c.wins, c.denied, c.delay, c.budget, c.saved}
}

// Describe sends the descriptions of all metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.all() {
		m.Describe(ch)
	}
}

// Collect sends all metrics.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.all() {
		m.Collect(ch)
	}
}

type id struct{ client, host, protocol string }

// series is what is counted for one id. Finding a labelled metric is what
// counting costs, so it is done once.
type series struct {
	id
	requests, originals prometheus.Counter
	delay, budget       prometheus.Gauge // nil where many hosts share one
}

func (c *Collector) of(key hedge.KeyInfo) *series {
	if s := (*c.series.Load())[id{key.Client, key.Host, key.Protocol}]; s != nil {
		return s
	}
	return c.add(key)
}

// add returns the series of a key that is new, or whose host has no label of its own.
func (c *Collector) add(key hedge.KeyInfo) *series {
	c.mu.Lock()
	defer c.mu.Unlock()
	me := id{key.Client, key.Host, key.Protocol}
	own := c.hosts[me.host] || len(c.hosts) < c.maxHosts
	if own {
		c.hosts[me.host] = true
	} else {
		me.host = Other
	}
	known := *c.series.Load()
	if s := known[me]; s != nil {
		return s
	}
	s := &series{id: me}
	s.requests = c.requests.WithLabelValues(me.client, me.host, me.protocol)
	s.originals = c.attempts.WithLabelValues(me.client, me.host, me.protocol, "original")
	if own {
		s.delay = c.delay.WithLabelValues(me.client, me.host, me.protocol)
		s.budget = c.budget.WithLabelValues(me.client, me.host, me.protocol)
	}
	more := maps.Clone(known)
	more[me] = s
	c.series.Store(&more)
	return s
}

// RequestDone counts a call and its attempts.
func (c *Collector) RequestDone(_ context.Context, key hedge.KeyInfo, r hedge.RequestResult) {
	s := c.of(key)
	s.requests.Inc()
	s.originals.Inc()
	if s.delay != nil {
		s.delay.Set(r.Delay.Seconds())
	}
	if r.Attempts > 1 {
		c.attempts.WithLabelValues(s.client, s.host, s.protocol, "hedge").Add(float64(r.Attempts - 1))
		switch {
		case r.Winner > 0:
			c.wins.WithLabelValues(s.client, s.host, s.protocol, "hedge").Inc()
		case r.Winner == 0:
			c.wins.WithLabelValues(s.client, s.host, s.protocol, "original").Inc()
		}
	}
	if r.Winner > 0 || r.Saved > 0 { // by a hedge that was not sent
		c.saved.WithLabelValues(s.client, s.host, s.protocol).Observe(r.Saved.Seconds())
	}
}

// Denied counts a refusal.
func (c *Collector) Denied(_ context.Context, key hedge.KeyInfo, why hedge.Reason) {
	s := c.of(key)
	c.denied.WithLabelValues(s.client, s.host, s.protocol, string(why)).Inc()
}

// Budget remembers what is left.
func (c *Collector) Budget(key hedge.KeyInfo, tokens float64) {
	if s := c.of(key); s.budget != nil {
		s.budget.Set(tokens)
	}
}
