// Package hedgeprom has metrics of hedging for Prometheus.
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

// Other is the host label of all hosts above the limit of [WithMaxHosts], and of a host
// that has this name.
const Other = "other"

// A Collector is a [observe.Observer], which counts, and a [prometheus.Collector], which
// shows the counts. It is safe for concurrent use. Use [New] to make one.
type Collector struct {
	observe.NopObserver
	maxHosts int

	requests, attempts, wins, denied, notTaken *prometheus.CounterVec

	delay, budget, share *prometheus.GaugeVec
	saved, latency       *prometheus.HistogramVec
	audited              [4]*prometheus.GaugeVec // verdict, saved, its error, confidence
	grpcHedges           *prometheus.HistogramVec
	dns                  *dnsMetrics
	recursors            *recursorMetrics
	limiters             *limiterMetrics
	stores               *storeMetrics
	byEndpoint           *endpointMetrics

	series atomic.Pointer[map[id]*series] // the map is replaced, never changed
	mu     sync.Mutex                     // held while series is replaced
	hosts  map[string]bool                // hosts with a label of their own; guarded by mu
	routes map[string]bool                // gRPC methods with one; guarded by mu
}

// Format writes the name of the type. Without it, package fmt would write all hosts, and
// read them while they are written to.
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

// WithMaxHosts gives the first n hosts labels of their own. All other hosts share the
// label [Other], for which there are no gauges; so do gRPC methods above n, as the label
// grpc_method. The default is 100. It panics if n is negative.
func WithMaxHosts(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("hedgeprom: WithMaxHosts: %d is negative", n))
	}
	return func(s *settings) { s.maxHosts = n }
}

// WithBuckets sets the upper bounds of the buckets of hedge_saved_seconds, in seconds.
// The default is 1 ms to 16 s, each twice the one before. It panics unless there is a
// bound and each is larger than the one before.
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

// WithConstLabels adds the same labels to every metric. The default is none. It panics
// if one of them is a label that metrics of this package have: client, host, protocol,
// type, reason, hedged, le, limiter, outcome, limit, security, tag, store, kind, length,
// endpoint, grpc_method or grpc_target.
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

// New returns a Collector. Register it with a registry of Prometheus, which refuses a
// second one unless the values of their [WithConstLabels] differ. A nil Option changes nothing.
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
		share:    gauge("hedge_budget_ratio", "Hedges per call that the budget pays for in the long run, by the settings."),
		saved: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hedge_saved_seconds", Help: "Estimated time that each win of a hedge saved.",
			Buckets: s.buckets, ConstLabels: s.labels,
		}, by()),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hedge_request_seconds", Help: "What callers waited, by whether a hedge was sent.",
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
			ConstLabels: s.labels,
		}, by("hedged")),
		audited: [4]*prometheus.GaugeVec{
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
	c.series.Store(&map[id]*series{})
	return c
}

func (c *Collector) all() []prometheus.Collector {
	all := []prometheus.Collector{c.requests, c.attempts, c.wins, c.denied, c.notTaken, c.delay, c.budget, c.share, c.saved, c.latency, c.grpcHedges}
	for _, g := range c.audited {
		all = append(all, g)
	}
	return append(all, c.byEndpoint.all()...)
}

// Describe sends the descriptions of all metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.all() {
		m.Describe(ch)
	}
	c.dns.describe(ch)
	c.recursors.describe(ch)
	c.limiters.describe(ch)
	c.stores.describe(ch)
}

// Collect sends all metrics.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.all() {
		m.Collect(ch)
	}
	c.dns.collect(ch)
	c.recursors.collect(ch)
	c.limiters.collect(ch)
	c.stores.collect(ch)
}

type id struct{ client, host, protocol string }

// series has the metrics of one id that every call counts. Finding a metric by its
// labels is expensive, so it is done once.
type series struct {
	id
	requests, originals  prometheus.Counter
	hedged, unhedged     prometheus.Observer
	delay, budget, share prometheus.Gauge // nil if many hosts share the label
	endpoints            endpointMap
}

func (c *Collector) of(key observe.KeyInfo) *series {
	if s := (*c.series.Load())[id{key.Client, key.Host, key.Protocol}]; s != nil {
		return s
	}
	return c.add(key)
}

// add returns the series of a key that of does not find: the key is new, or its host
// has no label of its own, or its names are not those of its labels.
func (c *Collector) add(key observe.KeyInfo) *series {
	c.mu.Lock()
	defer c.mu.Unlock()
	key = key.Printable() // or Prometheus would panic
	me := id{key.Client, key.Host, key.Protocol}
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
	s := &series{id: me}
	s.requests = c.requests.WithLabelValues(me.client, me.host, me.protocol)
	s.originals = c.attempts.WithLabelValues(me.client, me.host, me.protocol, "original")
	s.hedged = c.latency.WithLabelValues(me.client, me.host, me.protocol, "true")
	s.unhedged = c.latency.WithLabelValues(me.client, me.host, me.protocol, "false")
	if hasLabel {
		s.delay = c.delay.WithLabelValues(me.client, me.host, me.protocol)
		s.budget = c.budget.WithLabelValues(me.client, me.host, me.protocol)
		s.share = c.share.WithLabelValues(me.client, me.host, me.protocol)
	}
	more := maps.Clone(known)
	more[me] = s
	c.series.Store(&more)
	return s
}

// RequestDone counts a call and its attempts.
func (c *Collector) RequestDone(_ context.Context, key observe.KeyInfo, r observe.RequestResult) {
	s := c.of(key)
	s.requests.Inc()
	s.originals.Inc()
	if r.Attempts > 1 {
		s.hedged.Observe(r.Latency.Seconds())
	} else {
		s.unhedged.Observe(r.Latency.Seconds())
	}
	if s.delay != nil {
		s.delay.Set(r.Delay.Seconds())
		if r.Share > 0 { // calls that cannot be hedged say nothing of the budget
			s.share.Set(r.Share)
		}
	}
	if r.Attempts > 1 {
		c.attempts.WithLabelValues(s.client, s.host, s.protocol, "hedge").Add(float64(r.Attempts - 1))
		if key.Protocol == "grpc" {
			c.grpcHedges.WithLabelValues(c.method(key), s.host).Observe(float64(r.Attempts - 1))
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

// method returns the label of a gRPC method, which is its name without the slash at its head.
func (c *Collector) method(key observe.KeyInfo) string {
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

// Audited records what the audit of a host has found.
func (c *Collector) Audited(key observe.KeyInfo, a observe.Audit) {
	s := c.of(key)
	if s.budget == nil { // many hosts share the label
		return
	}
	verdict := map[observe.Verdict]float64{observe.AuditOn: 1, observe.AuditOff: -1}[a.Verdict]
	for i, v := range [...]float64{verdict, a.Saved.Seconds(), a.PlusMinus.Seconds(), a.Confidence} {
		c.audited[i].WithLabelValues(s.client, s.host, s.protocol).Set(v)
	}
}

// Denied counts a hedge that was not sent, or a call that could not be hedged.
func (c *Collector) Denied(_ context.Context, key observe.KeyInfo, reason observe.Reason) {
	s := c.of(key)
	c.denied.WithLabelValues(s.client, s.host, s.protocol, string(reason)).Inc()
}

// Budget records how many hedges the budget could pay for.
func (c *Collector) Budget(key observe.KeyInfo, tokens float64) {
	if s := c.of(key); s.budget != nil {
		s.budget.Set(tokens)
	}
}
