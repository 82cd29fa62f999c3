package hedgeprom

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge/observe"
)

// A Limiter is a *hedge.Limiter, or another type with the same Snapshot method.
type Limiter interface {
	Snapshot() observe.LimiterSnapshot // Snapshot returns the limit and the counters at one time.
}

// AddLimiter exports the statistics of the Limiter of a server. They are read from the Limiter on each collection. If
// several Limiters have the same name, their values are summed. Adding a Limiter again has no effect. AddLimiter panics
// if l is nil.
//
// The Collector keeps the Limiter and its series for as long as it exists. So a program should make Limiters once, and not
// with each change of its configuration.
func (c *Collector) AddLimiter(l Limiter) {
	if isNil(l) {
		panic("hedgeprom: AddLimiter: Limiter is nil")
	}
	c.limiters.mu.Lock()
	defer c.limiters.mu.Unlock()
	c.limiters.limiters = appendIfNew(c.limiters.limiters, l)
}

// limiterMetrics is the [prometheus.Collector] that exports the statistics of Limiters. It is safe for concurrent use.
type limiterMetrics struct {
	limit, working, waiting, requests *prometheus.Desc

	mu       sync.Mutex // guards limiters
	limiters []Limiter
}

// newLimiterMetrics returns a collector without Limiters; AddLimiter adds them. All metrics have the given constant
// labels.
func newLimiterMetrics(labels prometheus.Labels) *limiterMetrics {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("hedge_limiter_"+name, help, append([]string{"limiter"}, more...), labels)
	}
	return &limiterMetrics{
		limit:    desc("limit", "Requests that may be worked on at a time."),
		working:  desc("working", "Requests that are worked on."),
		waiting:  desc("waiting", "Requests that wait in the queue."),
		requests: desc("requests_total", "Requests that came to the Limiter, by outcome.", "outcome"),
	}
}

// Describe implements [prometheus.Collector]: it sends the descriptions of the metrics to ch.
func (m *limiterMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{m.limit, m.working, m.waiting, m.requests} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]: it reads the snapshots of all Limiters, and sends the values of the
// metrics to ch.
func (m *limiterMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	all := m.limiters[:len(m.limiters):len(m.limiters)]
	m.mu.Unlock()
	sums := make(map[string]observe.LimiterSnapshot)
	for _, l := range all {
		s := l.Snapshot()
		name := observe.KeyInfo{Client: s.Name}.Printable().Client
		sum := sums[name]
		sum.Limit += s.Limit
		sum.Working, sum.Waiting = sum.Working+s.Working, sum.Waiting+s.Waiting
		sum.Worked, sum.Left, sum.Refused = sum.Worked+s.Worked, sum.Left+s.Left, sum.Refused+s.Refused
		sums[name] = sum
	}
	for name, s := range sums {
		gauge := func(d *prometheus.Desc, v int64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), name)
		}
		counter := func(outcome observe.LimiterOutcome, v int64) {
			ch <- prometheus.MustNewConstMetric(m.requests, prometheus.CounterValue, float64(v), name, string(outcome))
		}
		gauge(m.limit, int64(s.Limit))
		gauge(m.working, s.Working)
		gauge(m.waiting, s.Waiting)
		counter(observe.LimiterWorked, s.Worked)
		counter(observe.LimiterLeft, s.Left)
		counter(observe.LimiterRefused, s.Refused)
	}
}
