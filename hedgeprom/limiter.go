package hedgeprom

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge/observe"
)

// A Limiter is a *hedge.Limiter, or anything else that has its Snapshot.
type Limiter interface {
	Snapshot() observe.LimiterSnapshot
}

// AddLimiter shows what a server's Limiter does. The numbers are the Limiter's own, read
// when metrics are collected. Limiters that have the same name are shown as one: their
// numbers are added up. A Limiter that was added is not added again. AddLimiter panics if l is nil.
func (c *Collector) AddLimiter(l Limiter) {
	if isNil(l) {
		panic("hedgeprom: AddLimiter: Limiter is nil")
	}
	c.limiters.mu.Lock()
	defer c.limiters.mu.Unlock()
	c.limiters.all = appendNew(c.limiters.all, l)
}

// limiterMetrics shows the Snapshots of Limiters.
type limiterMetrics struct {
	limit, working, waiting, requests *prometheus.Desc

	mu  sync.Mutex // guards all
	all []Limiter
}

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

func (m *limiterMetrics) describe(ch chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{m.limit, m.working, m.waiting, m.requests} {
		ch <- d
	}
}

func (m *limiterMetrics) collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	all := m.all[:len(m.all):len(m.all)]
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
