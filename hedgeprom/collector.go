// Package hedgeprom exports metrics of hedging to Prometheus.
//
//	metrics := hedgeprom.New()
//	prometheus.MustRegister(metrics)
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport,
//		hedge.WithName("shop"), hedge.WithObserver(metrics))}
//
// A client of package dnshedge reports its events to the Collector as one of its Observers. [Collector.AddDNS] also
// exports its statistics:
//
//	client := &dnshedge.Client{Name: "resolver", Observers: []observe.Observer{metrics}}
//	metrics.AddDNS(client)
//
// A store of package rangeread is exported under a name:
//
//	metrics.AddStore("tables", store)
//
// One Collector serves any number of clients of all protocols. The directory of this package contains a Grafana
// dashboard (dashboard.json) and alerts (alerts.yaml).
//
// # Metrics
//
// The [table of metrics] lists all metrics and their recommended ranges. It also explains how to configure Prometheus
// for hedge_request_seconds, which is a native histogram. The help text describes each metric. Times are in seconds.
//
// Metrics of calls have the labels client (see hedge.WithName), host and protocol. The host is the gRPC target, the key
// of hedge.Do, or the DNS upstream for these protocols.
//
// Values are formatted as by [observe.KeyInfo.Printable]; hosts with equal labels are counted together. The label type
// is original, hedge, resume for a hedge that requests the remaining bytes of a body (see hedge.WithResume), or retry for
// the primary of a call that hedge.MarkRetry has marked. The label reason is an observe.Reason, and hedged is true if a
// hedge was sent.
//
// Metrics of endpoints (see hedge.WithEndpoints) have the host of the first endpoint, and the label endpoint with the
// URL or target as configured. The label outcome is failed or overtaken. The first eight endpoints of a host have their
// own labels; all further endpoints share [Other].
//
// Metrics of [Collector.AddDNS] and [Collector.AddRecursor] have the label client. Metrics of an upstream also have the
// label host. All upstreams are shown, at most 256 per client. The label limit is a field of recursor.Limits.
//
// Metrics of [Collector.AddLimiter] have the label limiter (see hedge.WithName). The label outcome is worked if the
// request reached the handler, left if it was cancelled in the queue, and refused if it was a hedge and was rejected.
//
// Metrics of [Collector.AddStore] have the label store, with the name passed to AddStore. The label kind is first-byte
// (the first byte was late) or stall (the body stalled or broke off), and reason is an observe.Reason.
//
// The label length is the upper bound of a size class in bytes. There are at most 29 classes, so a store has fewer than
// 200 series.
//
// The gauges of calls are read from the clients that exist, on each collection.
//
// If several keys (routes or methods) have equal labels, hedge_delay_seconds, hedge_budget_tokens and
// hedge_budget_ratio show the largest value of all keys. Several audits of a host can only come from clients with the
// same name. Then the audit with a verdict is shown, or the audit with more compared pairs. [Other] has no audits.
//
// In shadow mode (see hedge.WithShadow), hedge_denied_total{reason="shadow"} counts the hedges that would have
// been sent. hedge_saved_seconds contains the time that these hedges would have saved.
//
// [table of metrics]: https://github.com/gohedge/hedge/blob/main/docs/operations.md
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

// Other is the label value that all hosts beyond the limit of [WithMaxHosts] share. A host whose name is "other" shares
// it too.
const Other = "other"

// A Collector is an [observe.Observer] that counts the events of clients, and a [prometheus.Collector] that exports the
// counts. Call [New] to make a Collector. It is safe for concurrent use.
type Collector struct {
	observe.NopObserver
	maxHosts int // maximum number of hosts, and of gRPC methods, with a label of their own

	requests, attempts, wins, denied, notTaken *prometheus.CounterVec

	saved, latency *prometheus.HistogramVec
	grpcHedges     *prometheus.HistogramVec
	gauges         *stateGauges
	dns            *dnsMetrics
	recursors      *recursorMetrics
	limiters       *limiterMetrics
	stores         *storeMetrics
	endpoints      *endpointMetrics

	series atomic.Pointer[map[seriesKey]*series] // cached metrics by label values; the map is replaced, and never changed
	mu     sync.Mutex                            // held while the map in series is replaced; guards hosts and routes
	hosts  map[string]bool                       // hosts with a label of their own
	routes map[string]bool                       // gRPC methods with a label of their own
}

// Format implements [fmt.Formatter]. It writes only the name of the type. Otherwise package fmt would print all hosts,
// and read them without holding the lock.
func (c *Collector) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "hedgeprom.Collector") }

var (
	_ observe.Observer     = (*Collector)(nil)
	_ prometheus.Collector = (*Collector)(nil)
)

// An Option changes a setting of a new Collector. Pass it to [New].
type Option func(*settings)

// settings holds the values that Options have set, or the defaults.
type settings struct {
	maxHosts int
	buckets  []float64
	labels   prometheus.Labels
}

// WithMaxHosts limits the number of values of the label host to the first n hosts, so that the number of time series
// stays small. All further hosts share the label [Other]. The same limit applies to gRPC methods in the label
// grpc_method. The default is 100. It panics if n is negative.
func WithMaxHosts(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("hedgeprom: WithMaxHosts: %d is negative", n))
	}
	return func(s *settings) { s.maxHosts = n }
}

// WithBuckets sets the upper bounds of the buckets of hedge_saved_seconds, in seconds. The default is 1 ms, 2 ms, 4 ms
// and so on, up to 16 s. It panics if there are no bounds, or if the bounds do not increase.
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

// WithConstLabels adds labels with constant values to every metric, for example to register several Collectors. The
// default is none. It panics if a metric of this package has a label of the same name: client, host, protocol, type,
// reason, hedged, le, limiter, outcome, limit, security, tag, store, kind, length, endpoint, grpc_method or
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

// New returns a Collector. The caller must register it with a Prometheus registry, and pass it to each client with
// hedge.WithObserver. A registry accepts several Collectors only if their [WithConstLabels] differ. A nil Option has no
// effect.
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
	c := &Collector{
		maxHosts: s.maxHosts,
		requests: counter("hedge_requests_total", "Calls.", by()),
		attempts: counter("hedge_attempts_total", "Attempts that were sent for the calls, by type.", by("type")),
		wins:     counter("hedge_wins_total", "Hedged calls that were answered, and bodies that were resumed, by the type of the attempt that answered.", by("type")),
		denied:   counter("hedge_denied_total", "Hedges that were due and not sent, and calls that could not be hedged, by reason.", by("reason")),
		notTaken: counter("hedge_answers_not_taken_total", "Hedges with an answer that ends a call only if it is the primary's.", by()),
		gauges:   newStateGauges(s.labels),
		saved: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hedge_saved_seconds", Help: "Estimated time that each win of a hedge saved.",
			Buckets: s.buckets, ConstLabels: s.labels,
		}, by()),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hedge_request_seconds", Help: "Latency of calls, by whether a hedge was sent.",
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
			ConstLabels: s.labels,
		}, by("hedged")),
		grpcHedges: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "grpc_client_call_hedges", Help: "Hedges of gRPC calls that had any, by method and target, as gRFC A96 says.",
			Buckets: []float64{1, 2, 3, 4, 5}, ConstLabels: s.labels,
		}, []string{"grpc_method", "grpc_target"}),
		dns:       newDNSMetrics(s.labels),
		recursors: newRecursorMetrics(s.labels),
		limiters:  newLimiterMetrics(s.labels),
		stores:    newStoreMetrics(s.labels),
		endpoints: newEndpointMetrics(s.labels),
		hosts:     make(map[string]bool),
		routes:    make(map[string]bool),
	}
	c.series.Store(&map[seriesKey]*series{})
	return c
}

// metrics returns the metrics whose values the Collector counts from events. Metrics that it reads from clients on each
// collection are not included.
func (c *Collector) metrics() []prometheus.Collector {
	return []prometheus.Collector{
		c.requests, c.attempts, c.wins, c.denied, c.notTaken, c.saved, c.latency, c.grpcHedges, c.endpoints.attempts, c.endpoints.bad,
	}
}

// Describe implements [prometheus.Collector]: it sends the descriptions of all metrics to ch. The Prometheus registry
// calls it.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics() {
		m.Describe(ch)
	}
	c.gauges.sendDescriptions(ch)
	c.dns.Describe(ch)
	c.recursors.Describe(ch)
	c.limiters.Describe(ch)
	c.stores.Describe(ch)
}

// Collect implements [prometheus.Collector]: it sends the current values of all metrics to ch. The Prometheus registry
// calls it for each scrape.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.metrics() {
		m.Collect(ch)
	}
	c.collectGauges(ch)
	c.dns.Collect(ch)
	c.recursors.Collect(ch)
	c.limiters.Collect(ch)
	c.stores.Collect(ch)
}

// A seriesKey holds the label values of a call: client, host and protocol. All metrics of calls have these labels.
type seriesKey struct{ client, host, protocol string }

// A series holds, for the label values of one seriesKey, the metrics that every call updates. It caches them, because
// Prometheus looks up metrics by label values slowly.
type series struct {
	seriesKey
	requests, originals prometheus.Counter
	hedged, unhedged    prometheus.Observer
	endpoints           endpointMap // metrics of endpoints of the host
}

// seriesFor returns the cached metrics for the client, host and protocol of a call. If there are none, it creates them.
func (c *Collector) seriesFor(key observe.KeyInfo) *series {
	if s := (*c.series.Load())[seriesKey{key.Client, key.Host, key.Protocol}]; s != nil {
		return s
	}
	return c.addSeries(key)
}

// addSeries returns the metrics for the client, host and protocol of a call, if seriesFor has not found them in the
// cache. It creates them for a new host. A host beyond the limit, or with strings that are not printable, may have
// metrics already.
func (c *Collector) addSeries(key observe.KeyInfo) *series {
	c.mu.Lock()
	defer c.mu.Unlock()
	key = key.Printable() // Prometheus panics on invalid UTF-8
	me := seriesKey{key.Client, c.hostLabel(key.Host), key.Protocol}
	if me.host != Other {
		c.hosts[me.host] = true
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
	more := maps.Clone(known)
	more[me] = s
	c.series.Store(&more)
	return s
}

// AttemptDone implements [observe.Observer]: it counts a request for the remaining bytes of a body, and whether the body
// continued with its response. RequestDone counts all other attempts.
func (c *Collector) AttemptDone(_ context.Context, key observe.KeyInfo, a observe.AttemptResult) {
	if !a.IsResumption {
		return
	}
	s := c.seriesFor(key)
	c.attempts.WithLabelValues(s.client, s.host, s.protocol, "resume").Inc()
	if a.Outcome == observe.Won {
		c.wins.WithLabelValues(s.client, s.host, s.protocol, "resume").Inc()
	}
}

// hostLabel returns the label for a host: the host itself, or Other if it is beyond the limit of WithMaxHosts. The caller
// must hold mu.
func (c *Collector) hostLabel(host string) string {
	if c.hosts[host] || len(c.hosts) < c.maxHosts {
		return host
	}
	return Other
}

// RequestDone implements [observe.Observer]: it counts a call that has ended, its attempts, its latency and the time
// that hedging saved.
func (c *Collector) RequestDone(_ context.Context, key observe.KeyInfo, r observe.RequestResult) {
	s := c.seriesFor(key)
	s.requests.Inc()
	if r.IsRetry {
		c.attempts.WithLabelValues(s.client, s.host, s.protocol, "retry").Inc()
	} else {
		s.originals.Inc()
	}
	if r.Attempts > 1 {
		s.hedged.Observe(r.Latency.Seconds())
	} else {
		s.unhedged.Observe(r.Latency.Seconds())
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

// methodLabel returns the label for the gRPC method in the Route of key: its name without the leading slash. Beyond the
// limit of WithMaxHosts, it returns Other.
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

// Denied implements [observe.Observer]: it counts a hedge that was not sent, or a call that could not be hedged, by
// reason.
func (c *Collector) Denied(_ context.Context, key observe.KeyInfo, reason observe.Reason) {
	s := c.seriesFor(key)
	c.denied.WithLabelValues(s.client, s.host, s.protocol, string(reason)).Inc()
}
