package hedgeprom

import (
	"reflect"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge/observe"
)

// A DNSClient is a *dnshedge.Client, or another type with the same Stats method. The interface avoids an import of
// dnshedge in programs that do not use it.
type DNSClient interface{ Stats() observe.DNSStats }

// AddDNS exports the statistics of a DNS client, its cache and its upstreams. They are read from the client on each
// collection, and are independent of the events that the Collector receives as an Observer of the client.
//
// If several clients have the same Name, counters and sizes are summed, but a cache that they share counts once. For
// states, times and ratios, the largest value is exported. Adding a client again has no effect. AddDNS panics if client is
// nil.
//
// A client that was closed is removed. A sum of counters does not decrease when one of the clients forgets an upstream or
// is closed. The queries that upstreams got between the last collection and Close are not counted, nor is a client that was
// closed before the first collection.
func (c *Collector) AddDNS(client DNSClient) {
	if isNil(client) {
		panic("hedgeprom: AddDNS: client is nil")
	}
	c.dns.mu.Lock()
	defer c.dns.mu.Unlock()
	c.dns.clients = appendIfNew(c.dns.clients, client)
	c.dns.counters = append(c.dns.counters, make([]map[dnsSeries]float64, len(c.dns.clients)-len(c.dns.counters))...)
}

// isNil reports whether v is a nil interface or contains a nil pointer.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil()
}

// appendIfNew returns all with v appended. If all already contains v, it returns all, because the statistics of v would
// be counted twice. Values that cannot be compared are always appended.
func appendIfNew[T any](all []T, v T) []T {
	if reflect.ValueOf(v).Comparable() && slices.ContainsFunc(all, func(old T) bool {
		return reflect.ValueOf(old).Comparable() && any(old) == any(v)
	}) {
		return all
	}
	return append(all, v)
}

// dnsMetrics is the [prometheus.Collector] that exports the statistics of DNS clients. It is safe for concurrent use.
type dnsMetrics struct {
	metrics []dnsMetric

	mu       sync.Mutex // guards the fields below; held while statistics are read, so that counters are read in order
	clients  []DNSClient
	counters []map[dnsSeries]float64 // counters of each client in clients at the latest collection
	retained map[dnsSeries]float64   // latest counters of upstreams that clients have forgotten, as long as another client has them
}

// A dnsSeries identifies a series of a metric.
type dnsSeries struct {
	metric       int // index of the metric
	client, host string
}

// A dnsMetric describes one metric of a DNS client, its cache or its upstreams. Exactly one of the functions client,
// cache and upstream is set. It returns the value of the metric.
type dnsMetric struct {
	desc     *prometheus.Desc
	kind     prometheus.ValueType
	largest  bool // whether clients with the same name export the largest value; false: the sum
	client   func(*observe.DNSStats) float64
	cache    func(*observe.DNSCacheStats) float64
	upstream func(*observe.DNSUpstreamStats) float64
}

// newDNSMetrics returns a collector without clients; AddDNS adds them. All metrics have the given constant labels.
func newDNSMetrics(labels prometheus.Labels) *dnsMetrics {
	d := new(dnsMetrics)
	add := func(name, help string, m dnsMetric) {
		by := []string{"client"}
		if m.upstream != nil {
			by = append(by, "host")
		}
		m.desc = prometheus.NewDesc("hedge_dns_"+name, help, by, labels)
		d.metrics = append(d.metrics, m)
	}
	client := func(name, help string, of func(*observe.DNSStats) int64) {
		add(name, help, dnsMetric{kind: prometheus.CounterValue, client: func(s *observe.DNSStats) float64 { return float64(of(s)) }})
	}
	cache := func(name, help string, of func(*observe.DNSCacheStats) int64) {
		add(name, help, dnsMetric{kind: prometheus.GaugeValue, cache: func(s *observe.DNSCacheStats) float64 { return float64(of(s)) }})
	}
	upstream := func(name, help string, of func(*observe.DNSUpstreamStats) int64) {
		add(name, help, dnsMetric{kind: prometheus.CounterValue, upstream: func(s *observe.DNSUpstreamStats) float64 { return float64(of(s)) }})
	}
	state := func(name, help string, of func(*observe.DNSUpstreamStats) float64) {
		add(name, help, dnsMetric{kind: prometheus.GaugeValue, largest: true, upstream: of})
	}
	client("questions_total", "Questions asked of the client.", func(s *observe.DNSStats) int64 { return s.Queries })
	client("cache_hits_total", "Questions answered from the cache.", func(s *observe.DNSStats) int64 { return s.Hits })
	client("stale_answers_total", "Questions answered with an expired answer.", func(s *observe.DNSStats) int64 { return s.Stale })
	client("local_answers_total", "Questions answered without cache and servers.", func(s *observe.DNSStats) int64 { return s.Local })
	client("search_misses_total", "Questions for names that do not exist in a search domain.", func(s *observe.DNSStats) int64 { return s.SearchMisses })
	client("failures_total", "Exchanges without any answer.", func(s *observe.DNSStats) int64 { return s.Failures })
	client("dropped_total", "Questions that ended because there were too many.", func(s *observe.DNSStats) int64 { return s.Dropped })
	client("resends_total", "Queries sent again because they were taken for lost.", func(s *observe.DNSStats) int64 { return s.Resends })
	client("failovers_total", "Queries sent because another server could not answer.", func(s *observe.DNSStats) int64 { return s.Failovers })
	client("fallbacks_total", "Questions put to a fallback server.", func(s *observe.DNSStats) int64 { return s.Fallbacks })
	client("ignored_messages_total", "Messages that answered no query.", func(s *observe.DNSStats) int64 { return s.Ignored })
	cache("cache_entries", "Answers in the cache.", func(s *observe.DNSCacheStats) int64 { return int64(s.Entries) })
	cache("cache_bytes", "Memory that the cache takes, estimated.", func(s *observe.DNSCacheStats) int64 { return s.Bytes })
	cache("cache_max_bytes", "Memory that the cache may take.", func(s *observe.DNSCacheStats) int64 { return s.MaxBytes })
	upstream("queries_total", "Queries sent to the upstream, for any reason.", func(s *observe.DNSUpstreamStats) int64 { return s.Queries })
	upstream("hedges_total", "Hedges sent to the upstream.", func(s *observe.DNSUpstreamStats) int64 { return s.Hedges })
	upstream("hedge_wins_total", "Hedges to the upstream that gave the answer.", func(s *observe.DNSUpstreamStats) int64 { return s.HedgeWins })
	state("upstream_silent", "1 if three queries in a row had no answer, and 0 otherwise.", func(s *observe.DNSUpstreamStats) float64 { return boolToFloat(s.Silent) })
	state("upstream_failing", "1 if three responses in a row were failures, and 0 otherwise.", func(s *observe.DNSUpstreamStats) float64 { return boolToFloat(s.Failing) })
	state("round_trip_seconds", "Smoothed round trip time to the upstream; 0 if it is unknown.", func(s *observe.DNSUpstreamStats) float64 { return s.SRTT.Seconds() })
	state("loss_ratio", "Share of the last queries to the upstream without an answer.", func(s *observe.DNSUpstreamStats) float64 { return s.Loss })
	return d
}

// boolToFloat returns 1 for true and 0 for false, as a gauge shows a state.
func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements [prometheus.Collector]: it sends the descriptions of the metrics to ch.
func (d *dnsMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range d.metrics {
		ch <- m.desc
	}
}

// Collect implements [prometheus.Collector]: it reads the statistics of all clients, and sends the values of the
// metrics to ch.
func (d *dnsMetrics) Collect(ch chan<- prometheus.Metric) {
	for one, v := range d.readValues() {
		m, labels := &d.metrics[one.metric], []string{one.client}
		if m.upstream != nil {
			labels = append(labels, one.host)
		}
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
	}
}

// readValues reads the statistics of all clients, and returns the values of all series.
func (d *dnsMetrics) readValues() map[dnsSeries]float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	values, caches := make(map[dnsSeries]float64), make(map[clientCache]bool)
	for n := 0; n < len(d.clients); n++ {
		s := d.clients[n].Stats()
		name := observe.KeyInfo{Client: s.Name}.Printable().Client
		if k := s.Cache; k != nil && k.ID != 0 && !s.Closed {
			if me := (clientCache{name, k.ID}); caches[me] {
				s.Cache = nil // it was counted with another client
			} else {
				caches[me] = true
			}
		}
		counters := make(map[dnsSeries]float64)
		d.eachValue(&s, func(metric int, host string, v float64) {
			me := dnsSeries{metric, name, host}
			switch m := &d.metrics[metric]; {
			case m.kind == prometheus.CounterValue:
				counters[me] += v
			case s.Closed:
			case m.largest:
				values[me] = max(values[me], v)
			default:
				values[me] += v
			}
		})
		if s.Closed {
			d.removeClient(n, counters)
			n--
			continue
		}
		for me, v := range counters {
			values[me] += v
		}
		d.retainCounters(n, counters)
	}
	for me, v := range d.retained {
		if _, exists := values[me]; exists {
			values[me] += v
		} else {
			delete(d.retained, me)
		}
	}
	return values
}

// A clientCache identifies a cache that clients of the same name may share.
type clientCache struct {
	client string
	id     uint64
}

// eachValue calls add for each value that the statistics s of a client contain. The argument host is the label of an
// upstream, or "".
func (d *dnsMetrics) eachValue(s *observe.DNSStats, add func(metric int, host string, v float64)) {
	for i, m := range d.metrics {
		switch {
		case m.client != nil:
			add(i, "", m.client(s))
		case m.upstream != nil:
			for j := range s.Upstreams {
				u := &s.Upstreams[j]
				add(i, observe.KeyInfo{Host: u.Upstream}.Printable().Host, m.upstream(u))
			}
		case s.Cache != nil:
			add(i, "", m.cache(s.Cache))
		}
	}
}

// retainCounters replaces the latest counters of client n. Counters that are missing now, or start again at 0, are
// added to retained: Prometheus would take a lower sum for a restart of all clients. The caller must hold mu.
func (d *dnsMetrics) retainCounters(n int, counters map[dnsSeries]float64) {
	for me, before := range d.counters[n] {
		if now, exists := counters[me]; !exists || now < before {
			if d.retained == nil {
				d.retained = make(map[dnsSeries]float64)
			}
			d.retained[me] += before
		}
	}
	d.counters[n] = counters
}

// removeClient removes client n, which was closed with the given counters, and retains them. It retains nothing if the client
// was closed before the first collection: it may have been added again after it was removed. The caller must hold mu.
func (d *dnsMetrics) removeClient(n int, counters map[dnsSeries]float64) {
	if d.counters[n] != nil {
		d.retainCounters(n, counters)
		d.retainCounters(n, nil)
	}
	d.clients, d.counters = slices.Delete(d.clients, n, n+1), slices.Delete(d.counters, n, n+1)
}
