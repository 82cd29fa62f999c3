// Package hedgeprom exports metrics of hedging to Prometheus.
//
//	metrics := hedgeprom.New()
//	prometheus.MustRegister(metrics)
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport,
//		hedge.WithName("shop"), hedge.WithObserver(metrics))}
//
// A client of package dnshedge gets the Collector as one of its Observers, and may be given
// to the Collector itself, which then shows its own numbers as well:
//
//	client := &dnshedge.Client{Name: "resolver", Observers: []observe.Observer{metrics}}
//	metrics.AddDNS(client)
//
// A store of package rangeread has no name of its own:
//
//	metrics.AddStore("tables", store)
//
// One Collector serves any number of clients, of all protocols, and the directory of this
// package has a dashboard for Grafana (dashboard.json) and alerts (alerts.yaml), too.
//
// # Metrics
//
// The [table of numbers] lists all metrics, says what is good, and how Prometheus is told to store hedge_request_seconds, a native
// histogram. The help text of each says what it counts. Times are in seconds.
//
// Calls have the labels client (see hedge.WithName), host (for gRPC the target, for hedge.Do the key, for DNS the upstream) and
// protocol. Their values are made printable, see [observe.KeyInfo.Printable]: hosts whose labels are then equal are counted
// together. The label type is original or hedge; reason is one of observe.Reason; hedged is true if a hedge was sent.
//
// What happens at endpoints (see hedge.WithEndpoints) has the host of the first one, and the label endpoint, which is a URL or target as it was given; outcome is then
// failed or overtaken. The first eight endpoints of a host have labels of their own, all others share [Other].
//
// What [Collector.AddDNS] and [Collector.AddRecursor] add has the label client, and, where it is of one upstream, host. A client
// remembers 256 upstreams at most, and all of them are shown. limit is a field of recursor.Limits. What [Collector.AddLimiter] adds
// has the label limiter (see hedge.WithName); outcome is worked (the request reached the handler), left (its caller went away
// before) or refused (a hedge).
//
// What [Collector.AddStore] adds has the label store, which is the name that AddStore is given. kind is first-byte (it was late) or
// stall (the body paused or broke off), and reason is one of observe.Reason. length is how many bytes ranges have at most, a power of
// two: there are 29 at most, so a store has fewer than 200 series.
//
// Where a host has several routes or methods, the gauges of delay and budget show the one that was
// called last. With hedge.WithShadow, hedge_denied_total{reason="shadow"} counts the
// hedges that would have been sent, and hedge_saved_seconds holds what they would have saved.
//
// [table of numbers]: https://github.com/gohedge/hedge/blob/main/docs/numbers.md
package hedgeprom

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge/observe"
)

// Other is the label of all hosts above the limit of [WithMaxHosts], and of a host with this name.
const Other = "other"

// A Collector is an [observe.Observer] that counts events, and a [prometheus.Collector] that exports the counts. It is safe for concurrent use. [New]
// makes one.
type Collector struct {
	observe.NopObserver
	maxHosts int

	requests, attempts, wins, denied, notTaken *prometheus.CounterVec

	delay, budget, ratio *prometheus.GaugeVec
	saved, latency       *prometheus.HistogramVec
	auditGauges          [4]*prometheus.GaugeVec // verdict, saved time, error of the saved time, confidence
	grpcHedges           *prometheus.HistogramVec
	dns                  *dnsMetrics
	recursors            *recursorMetrics
	limiters             *limiterMetrics
	stores               *storeMetrics
	byEndpoint           *endpointMetrics

	series atomic.Pointer[map[seriesKey]*series] // the map is replaced, never changed
	mu     sync.Mutex                            // held while series is replaced
	hosts  map[string]bool                       // hosts with a label of their own; guarded by mu
	routes map[string]bool                       // gRPC methods with a label of their own; guarded by mu
}

// Format writes the name of the type. Otherwise package fmt would print all hosts, and read them without the lock.
func (c *Collector) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "hedgeprom.Collector") }

var (
	_ observe.Observer     = (*Collector)(nil)
	_ prometheus.Collector = (*Collector)(nil)
)

// An Option adjusts [New].
type Option func(*settings)

type settings struct {
	maxHosts int
	buckets  []float64
	labels   prometheus.Labels
}

// WithMaxHosts sets the number of hosts with labels of their own, the first n. All other hosts share the label [Other], for which there are no
// gauges. The same limit applies to gRPC methods in the label grpc_method. The default is 100. It panics if n is negative.
func WithMaxHosts(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("hedgeprom: WithMaxHosts: %d is negative", n))
	}
	return func(s *settings) { s.maxHosts = n }
}

// WithBuckets sets the upper bounds of the buckets of hedge_saved_seconds, in seconds. The default is 1 ms to 16 s, each bound twice the one before.
// It panics if there is no bound, or if the bounds do not increase.
func WithBuckets(seconds ...float64) Option {
	if len(seconds) == 0 {
		panic("hedgeprom: WithBuckets: there is no bucket")
	}
	for i, bound := range seconds {
		if math.IsNaN(bound) || i > 0 && bound <= seconds[i-1] {
			panic(fmt.Sprintf("hedgeprom: WithBuckets: %v do not increase at %v", seconds, bound))
		}
	}
	seconds = slices.Clone(seconds)
	return func(s *settings) { s.buckets = seconds }
}

// WithConstLabels adds labels with constant values to every metric. The default is none. It panics on a label that metrics of this package have:
// client, host, protocol, type, reason, hedged, le, limiter, outcome, limit, security, tag, store, kind, length, endpoint, grpc_method or
// grpc_target.
func WithConstLabels(labels prometheus.Labels) Option {
	for _, name := range [...]string{
		"client", "host", "protocol", "type", "reason", "hedged", "le", "limiter", "outcome", "limit", "security", "tag", "store", "kind", "length",
		"endpoint", "grpc_method", "grpc_target",
	} {
		if _, taken := labels[name]; taken {
			panic(fmt.Sprintf("hedgeprom: WithConstLabels: metrics have a label %s of their own", name))
		}
	}
	labels = maps.Clone(labels)
	return func(s *settings) { s.labels = labels }
}

// New returns a Collector. Register it with a registry of Prometheus, which rejects a second one unless their [WithConstLabels] differ. A nil Option
// has no effect.
func New(opts ...Option) *Collector {
	s := settings{maxHosts: 100, buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
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
		attempts: counter("hedge_attempts_total", "Attempts that were sent for the calls, by type.", by("type")),
		wins:     counter("hedge_wins_total", "Hedged calls that were answered, by the type of the attempt that answered.", by("type")),
		denied:   counter("hedge_denied_total", "Hedges that were due and not sent, and calls that could not be hedged, by reason.", by("reason")),
		notTaken: counter("hedge_answers_not_taken_total", "Hedges with an answer that ends a call only if it is the primary's.", by()),
		delay:    gauge("hedge_delay_seconds", "Delay after which the latest call was to be hedged; 0 if it was not."),
		budget:   gauge("hedge_budget_tokens", "Hedges that the budget could pay for, when it was last asked."),
		ratio:    gauge("hedge_budget_ratio", "Hedges per call that the budget pays for in the long run, by the settings."),
		saved: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hedge_saved_seconds", Help: "Estimated time that each win of a hedge saved.",
			Buckets: s.buckets, ConstLabels: s.labels,
		}, by()),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hedge_request_seconds", Help: "What callers waited, by whether a hedge was sent.",
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
			ConstLabels: s.labels,
		}, by("hedged")),
		auditGauges: [4]*prometheus.GaugeVec{
			gauge("hedge_audit_verdict", "1 if hedging was measured to help, -1 if it was measured to harm and is off, 0 if no difference was found, or not yet."),
			gauge("hedge_audit_saved_seconds", "How much shorter hedging makes the 99th percentile, as measured; negative if it makes it longer."),
			gauge("hedge_audit_saved_error_seconds", "Half of the 95 % interval of hedge_audit_saved_seconds."),
			gauge("hedge_audit_confidence", "One less the probability that luck alone would ever show as much, however often one looks."),
		},
		grpcHedges: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "grpc_client_call_hedges", Help: "Hedges of gRPC calls that had any, by method and target, as gRFC A96 says.",
			Buckets: []float64{1, 2, 3, 4, 5}, ConstLabels: s.labels,
		}, []string{"grpc_method", "grpc_target"}),
		dns:        newDNSMetrics(s.labels),
		recursors:  newRecursorMetrics(s.labels),
		limiters:   newLimiterMetrics(s.labels),
		stores:     newStoreMetrics(s.labels),
		byEndpoint: newEndpointMetrics(s.labels),
		hosts:      make(map[string]bool),
		routes:     make(map[string]bool),
	}
	c.series.Store(&map[seriesKey]*series{})
	return c
}

// metrics returns the metrics that the Collector counts itself.
func (c *Collector) metrics() []prometheus.Collector {
	all := []prometheus.Collector{c.requests, c.attempts, c.wins, c.denied, c.notTaken, c.delay, c.budget, c.ratio, c.saved, c.latency, c.grpcHedges}
	for _, g := range c.auditGauges {
		all = append(all, g)
	}
	return append(all, c.byEndpoint.collectors()...)
}

// Describe sends the descriptions of all metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics() {
		m.Describe(ch)
	}
	c.dns.Describe(ch)
	c.recursors.Describe(ch)
	c.limiters.Describe(ch)
	c.stores.Describe(ch)
}

// Collect sends all metrics.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.metrics() {
		m.Collect(ch)
	}
	c.dns.Collect(ch)
	c.recursors.Collect(ch)
	c.limiters.Collect(ch)
	c.stores.Collect(ch)
}

// A seriesKey has the labels that all metrics of calls have.
type seriesKey struct{ client, host, protocol string }

// A series has the metrics of one seriesKey that every call updates. Metrics are looked up once, because the lookup by labels is slow.
type series struct {
	seriesKey
	requests, originals  prometheus.Counter
	hedged, unhedged     prometheus.Observer
	delay, budget, ratio prometheus.Gauge // nil if many hosts share the label
	endpoints            endpointMap
}

// seriesFor returns the series of a key.
func (c *Collector) seriesFor(key observe.KeyInfo) *series {
	if s := (*c.series.Load())[seriesKey{key.Client, key.Host, key.Protocol}]; s != nil {
		return s
	}
	return c.addSeries(key)
}

// addSeries returns the series of a key that seriesFor does not find. The key is new, or its host shares the label Other, or its names are not
// printable.
func (c *Collector) addSeries(key observe.KeyInfo) *series {
	c.mu.Lock()
	defer c.mu.Unlock()
	key = key.Printable() // Prometheus panics on invalid UTF-8
	me := seriesKey{key.Client, key.Host, key.Protocol}
	hasLabel := c.hosts[me.host] || len(c.hosts) < c.maxHosts && me.host != Other
	if hasLabel {
		c.hosts[me.host] = true
	} else {
		me.host = Other
	}
	known := *c.series.Load()
	if s := known[me]; s != nil {
		return s
	}
	s := &series{seriesKey: me}
	s.requests = c.requests.WithLabelValues(me.client, me.host, me.protocol)
	s.originals = c.attempts.WithLabelValues(me.client, me.host, me.protocol, "original")
	s.hedged = c.latency.WithLabelValues(me.client, me.host, me.protocol, "true")
	s.unhedged = c.latency.WithLabelValues(me.client, me.host, me.protocol, "false")
	if hasLabel {
		s.delay = c.delay.WithLabelValues(me.client, me.host, me.protocol)
		s.budget = c.budget.WithLabelValues(me.client, me.host, me.protocol)
		s.ratio = c.ratio.WithLabelValues(me.client, me.host, me.protocol)
	}
	more := maps.Clone(known)
	more[me] = s
	c.series.Store(&more)
	return s
}

// RequestDone counts a call and its attempts.
func (c *Collector) RequestDone(_ context.Context, key observe.KeyInfo, r observe.RequestResult) {
	s := c.seriesFor(key)
	s.requests.Inc()
	s.originals.Inc()
	if r.Attempts > 1 {
		s.hedged.Observe(r.Latency.Seconds())
	} else {
		s.unhedged.Observe(r.Latency.Seconds())
	}
	if s.delay != nil {
		s.delay.Set(r.Delay.Seconds())
		if r.Share > 0 { // 0 for calls that cannot be hedged
			s.ratio.Set(r.Share)
		}
	}
	if r.Attempts > 1 {
		c.attempts.WithLabelValues(s.client, s.host, s.protocol, "hedge").Add(float64(r.Attempts - 1))
		if key.Protocol == "grpc" {
			c.grpcHedges.WithLabelValues(c.methodLabel(key), s.host).Observe(float64(r.Attempts - 1))
		}
		switch {
		case r.HeldBack:
			c.wins.WithLabelValues(s.client, s.host, s.protocol, "held_back").Inc()
		case r.Winner > 0:
			c.wins.WithLabelValues(s.client, s.host, s.protocol, "hedge").Inc()
		case r.Winner == 0:
			c.wins.WithLabelValues(s.client, s.host, s.protocol, "original").Inc()
		}
	}
	if r.AnswersNotTaken > 0 {
		c.notTaken.WithLabelValues(s.client, s.host, s.protocol).Add(float64(r.AnswersNotTaken))
	}
	if r.Winner > 0 && !r.HeldBack || r.Saved > 0 { // a hedge won, or would have won
		c.saved.WithLabelValues(s.client, s.host, s.protocol).Observe(r.Saved.Seconds())
	}
}

// methodLabel returns the label of a gRPC method: its name without the leading slash.
func (c *Collector) methodLabel(key observe.KeyInfo) string {
	name := strings.TrimPrefix(key.Printable().Route, "/")
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.routes[name] {
		if len(c.routes) >= c.maxHosts {
			return Other
		}
		c.routes[name] = true
	}
	return name
}

// Audited records the result of the audit of a host.
func (c *Collector) Audited(key observe.KeyInfo, a observe.Audit) {
	s := c.seriesFor(key)
	if s.budget == nil { // many hosts share the label
		return
	}
	verdict := map[observe.Verdict]float64{observe.AuditOn: 1, observe.AuditOff: -1}[a.Verdict]
	for i, v := range [...]float64{verdict, a.Saved.Seconds(), a.PlusMinus.Seconds(), a.Confidence} {
		c.auditGauges[i].WithLabelValues(s.client, s.host, s.protocol).Set(v)
	}
}

// Denied counts a hedge that was not sent, or a call that could not be hedged.
func (c *Collector) Denied(_ context.Context, key observe.KeyInfo, reason observe.Reason) {
	s := c.seriesFor(key)
	c.denied.WithLabelValues(s.client, s.host, s.protocol, string(reason)).Inc()
}

// Budget records the number of hedges that the budget can pay for.
func (c *Collector) Budget(key observe.KeyInfo, tokens float64) {
	if s := c.seriesFor(key); s.budget != nil {
		s.budget.Set(tokens)
	}
}
