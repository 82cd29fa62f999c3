package hedgeprom

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge/observe"
)

// A RangeStore is a *rangeread.Store, or another type with the same Stats method. The interface avoids an import of
// rangeread in programs that do not use it.
type RangeStore interface{ Stats() observe.StoreStats }

// AddStore exports the statistics of a store of package rangeread. They are read from the store on each collection. The
// name, for example of a bucket, becomes the value of the label store. It may be empty, and is formatted as by
// [observe.KeyInfo.Printable].
//
// If several stores have the same name, values are summed; for times, the largest value is exported. Adding a store
// again with the same name has no effect. AddStore panics if s is nil.
//
// The Collector keeps the store and its series for as long as it exists. So a program should make stores once, and not
// with each change of its configuration.
func (c *Collector) AddStore(name string, s RangeStore) {
	if isNil(s) {
		panic("hedgeprom: AddStore: RangeStore is nil")
	}
	c.stores.mu.Lock()
	defer c.stores.mu.Unlock()
	c.stores.stores = appendIfNew(c.stores.stores, namedStore{observe.KeyInfo{Client: name}.Printable().Client, s})
}

// A namedStore is a store that was added by AddStore, with the value of its label store.
type namedStore struct {
	name  string
	store RangeStore
}

// storeMetrics is the [prometheus.Collector] that exports the statistics of stores. It is safe for concurrent use.
type storeMetrics struct {
	metrics []storeMetric
	labeled []labeledStoreMetric

	mu     sync.Mutex // guards stores
	stores []namedStore
}

// A storeMetric describes one metric of a store whose only variable label is store.
type storeMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*observe.StoreStats) int64 // returns the value of the metric
}

// A labeledStoreMetric describes one metric of a store that has a further label besides store, such as kind.
type labeledStoreMetric struct {
	desc      *prometheus.Desc
	kind      prometheus.ValueType
	longest   bool                                                     // whether stores with the same name export the largest value; false: the sum
	eachValue func(*observe.StoreStats, func(label string, v float64)) // calls the function for each value of the further label
}

// newStoreMetrics returns a collector without stores; AddStore adds them. All metrics have the given constant labels.
func newStoreMetrics(labels prometheus.Labels) *storeMetrics {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("hedge_store_"+name, help, append([]string{"store"}, more...), labels)
	}
	m := new(storeMetrics)
	counter := func(name, help string, of func(*observe.StoreStats) int64) {
		m.metrics = append(m.metrics, storeMetric{desc(name, help), prometheus.CounterValue, of})
	}
	gauge := func(name, help string, of func(*observe.StoreStats) int64) {
		m.metrics = append(m.metrics, storeMetric{desc(name, help), prometheus.GaugeValue, of})
	}
	counter("ranges_total", "Ranges that were asked for: parts of reads.", func(s *observe.StoreStats) int64 { return s.Ranges })
	counter("requests_total", "Requests that were sent to the store: calls of Fetch.", func(s *observe.StoreStats) int64 { return s.Requests })
	counter("hedges_denied_for_bytes_total", "Hedges that were due and that the budget of bytes did not pay for.", func(s *observe.StoreStats) int64 { return s.DeniedBytes })
	counter("asked_bytes_total", "Bytes that ranges asked for, without their hedges.", func(s *observe.StoreStats) int64 { return s.BytesAsked })
	counter("hedged_bytes_total", "Bytes that hedges asked for, which the budget of bytes pays for.", func(s *observe.StoreStats) int64 { return s.BytesHedged })
	counter("read_bytes_total", "Bytes that were read from bodies, by all attempts.", func(s *observe.StoreStats) int64 { return s.BytesRead })
	counter("skipped_bytes_total", "Bytes that were read because the server ignored the range: they came before it.", func(s *observe.StoreStats) int64 { return s.BytesSkipped })
	counter("read_twice_bytes_total", "Bytes that a hedge and the attempt that it was for have both read.", func(s *observe.StoreStats) int64 { return s.BytesTwice })
	gauge("held_bytes", "Memory of what is read ahead now.", func(s *observe.StoreStats) int64 { return s.BytesHeld })
	gauge("max_held_bytes", "Memory that may be held by what is read ahead.", func(s *observe.StoreStats) int64 { return s.MaxBytes })
	counter("panics_total", "Panics of hedges, and of Close of bodies, which were recovered.", func(s *observe.StoreStats) int64 { return s.Panics })
	m.addLabeledMetrics(desc)
	return m
}

// addLabeledMetrics adds the metrics that have a further label besides store. The function desc makes the description
// of a metric; more is the name of the further label.
func (m *storeMetrics) addLabeledMetrics(desc func(name, help string, more ...string) *prometheus.Desc) {
	add := func(name, help, label string, kind prometheus.ValueType, longest bool, of func(*observe.StoreStats, func(string, float64))) {
		m.labeled = append(m.labeled, labeledStoreMetric{desc(name, help, label), kind, longest, of})
	}
	byKind := func(name, help string, of func(*observe.StoreStats) (firstByte, stall int64)) {
		add(name, help, "kind", prometheus.CounterValue, false, func(s *observe.StoreStats, show func(string, float64)) {
			firstByte, stall := of(s)
			show("first-byte", float64(firstByte))
			show("stall", float64(stall))
		})
	}
	byLength := func(name, help string, kind prometheus.ValueType, of func(*observe.StoreClass) float64) {
		add(name, help, "length", kind, kind == prometheus.GaugeValue, func(s *observe.StoreStats, show func(string, float64)) {
			for i := range s.Classes {
				show(strconv.FormatInt(s.Classes[i].Length, 10), of(&s.Classes[i]))
			}
		})
	}
	byKind("hedges_total", "Second requests for ranges, by why: the first byte was late, or the body paused or broke off.",
		func(s *observe.StoreStats) (int64, int64) { return s.FirstByteHedges, s.StallHedges })
	byKind("hedge_wins_total", "Hedges that were read, by why they were sent.",
		func(s *observe.StoreStats) (int64, int64) { return s.FirstByteWins, s.StallWins })
	add("hedges_denied_total", "Hedges that were due and not sent, by reason.", "reason", prometheus.CounterValue, false,
		func(s *observe.StoreStats, show func(string, float64)) {
			for reason, n := range s.DeniedBy {
				show(string(reason), float64(n))
			}
		})
	byLength("class_ranges_total", "Ranges that were read, by their length in bytes at most.", prometheus.CounterValue,
		func(c *observe.StoreClass) float64 { return float64(c.Ranges) })
	byLength("class_hedges_total", "Hedges of ranges, by their length in bytes at most.", prometheus.CounterValue,
		func(c *observe.StoreClass) float64 { return float64(c.Hedges) })
	byLength("first_byte_p50_seconds", "Median of the time to the first byte, of recent ranges of the length; 0 if it is unknown.", prometheus.GaugeValue,
		func(c *observe.StoreClass) float64 { return c.P50.Seconds() })
	byLength("first_byte_p99_seconds", "99th percentile of the time to the first byte, of recent ranges of the length; 0 if it is unknown.", prometheus.GaugeValue,
		func(c *observe.StoreClass) float64 { return c.P99.Seconds() })
	byLength("delay_seconds", "Delay after which a range of the length is asked for again; 0 if it is not.", prometheus.GaugeValue,
		func(c *observe.StoreClass) float64 { return c.Delay.Seconds() })
	byLength("stall_seconds", "Pause after which a body of the length has stalled; 0 if it is unknown.", prometheus.GaugeValue,
		func(c *observe.StoreClass) float64 { return c.Stall.Seconds() })
}

// Describe implements [prometheus.Collector]: it sends the descriptions of the metrics to ch.
func (m *storeMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range m.metrics {
		ch <- one.desc
	}
	for _, one := range m.labeled {
		ch <- one.desc
	}
}

// Collect implements [prometheus.Collector]: it reads the statistics of all stores, and sends the values of the metrics
// to ch.
func (m *storeMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	all := m.stores[:len(m.stores):len(m.stores)]
	m.mu.Unlock()
	type id struct {
		metric       int
		store, label string
	}
	values := make(map[string][]int64)
	labeled := make(map[id]float64)
	for _, one := range all {
		s := one.store.Stats()
		if values[one.name] == nil {
			values[one.name] = make([]int64, len(m.metrics))
		}
		for i, metric := range m.metrics {
			values[one.name][i] += metric.value(&s)
		}
		for i, metric := range m.labeled {
			metric.eachValue(&s, func(label string, v float64) {
				if me := (id{i, one.name, label}); metric.longest {
					labeled[me] = max(labeled[me], v)
				} else {
					labeled[me] += v
				}
			})
		}
	}
	for name, all := range values {
		for i, metric := range m.metrics {
			ch <- prometheus.MustNewConstMetric(metric.desc, metric.kind, float64(all[i]), name)
		}
	}
	for me, v := range labeled {
		metric := m.labeled[me.metric]
		ch <- prometheus.MustNewConstMetric(metric.desc, metric.kind, v, me.store, me.label)
	}
}
