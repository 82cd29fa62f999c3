package hedgeprom

import (
	"math"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge/observe"
)

// A Resolver is a *recursor.Resolver, or another type with the same Stats method. The interface avoids an import of
// recursor in programs that do not use it.
type Resolver interface{ Stats() observe.RecursorStats }

// AddRecursor exports the statistics of a recursor. They are read from the recursor on each collection. Metrics of
// DNSSEC validation exist only for recursors that validate.
//
// If several recursors have the same Name, values are summed; for times, the largest value is exported. Adding a
// recursor again has no effect. AddRecursor panics if r is nil.
//
// The Collector keeps the recursor and its series for as long as it exists. So a program should make recursors once, and not
// with each change of its configuration.
func (c *Collector) AddRecursor(r Resolver) {
	if isNil(r) {
		panic("hedgeprom: AddRecursor: Resolver is nil")
	}
	c.recursors.mu.Lock()
	defer c.recursors.mu.Unlock()
	c.recursors.resolvers = appendIfNew(c.recursors.resolvers, r)
}

// recursorMetrics is the [prometheus.Collector] that exports the statistics of recursors. It is safe for concurrent
// use.
type recursorMetrics struct {
	metrics []recursorMetric
	labeled []labeledRecursorMetric

	mu        sync.Mutex // guards resolvers
	resolvers []Resolver
}

// A recursorMetric describes one metric of a recursor whose only variable label is client.
type recursorMetric struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	longest bool                                 // whether recursors with the same name export the value with the largest absolute value; false: the sum
	value   func(*observe.RecursorStats) float64 // returns the value of the metric
}

// A labeledRecursorMetric describes one metric of a recursor that has a further label besides client.
type labeledRecursorMetric struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	isState bool // whether the value is 1 or 0, so that recursors with the same name export the maximum; false: the sum
	// values returns the values of the metric, by the value of the further label.
	values func(*observe.RecursorStats) map[string]float64
}

// newRecursorMetrics returns a collector without recursors; AddRecursor adds them. All metrics have the given constant
// labels.
func newRecursorMetrics(labels prometheus.Labels) *recursorMetrics {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("hedge_recursor_"+name, help, append([]string{"client"}, more...), labels)
	}
	r := new(recursorMetrics)
	add := func(name, help string, kind prometheus.ValueType, of func(*observe.RecursorStats) float64) {
		r.metrics = append(r.metrics, recursorMetric{desc: desc(name, help), kind: kind, value: of})
	}
	counter := func(name, help string, of func(*observe.RecursorStats) int64) {
		add(name, help, prometheus.CounterValue, func(s *observe.RecursorStats) float64 { return float64(of(s)) })
	}
	gauge := func(name, help string, of func(*observe.RecursorStats) float64) {
		add(name, help, prometheus.GaugeValue, of)
	}
	counter("questions_total", "Questions of callers.", func(s *observe.RecursorStats) int64 { return s.Questions })
	counter("failures_total", "Questions answered with SERVFAIL or an error.", func(s *observe.RecursorStats) int64 { return s.Failures })
	counter("local_answers_total", "Questions answered without servers.", func(s *observe.RecursorStats) int64 { return s.Local })
	counter("server_lookups_total", "Names of servers that were looked up.", func(s *observe.RecursorStats) int64 { return s.Lookups })
	counter("queries_total", "Queries sent to servers, over UDP and TCP.", func(s *observe.RecursorStats) int64 { return s.Wire })
	counter("tcp_queries_total", "Queries sent to servers over TCP.", func(s *observe.RecursorStats) int64 { return s.TCP })
	counter("hedges_total", "Queries sent because an answer was late.", func(s *observe.RecursorStats) int64 { return s.Hedges })
	counter("hedge_wins_total", "Hedges that gave the answer.", func(s *observe.RecursorStats) int64 { return s.HedgeWins })
	counter("hedges_denied_total", "Hedges that were due and that the budget forbade.", func(s *observe.RecursorStats) int64 { return s.Denied })
	counter("timeouts_total", "Queries sent because the retransmission timeout had passed.", func(s *observe.RecursorStats) int64 { return s.Timeouts })
	counter("failovers_total", "Queries sent because another server could not answer.", func(s *observe.RecursorStats) int64 { return s.Failovers })
	counter("lame_responses_total", "Responses of servers that do not serve the zone that they should.", func(s *observe.RecursorStats) int64 { return s.Lame })
	counter("ignored_messages_total", "Messages that answered no query.", func(s *observe.RecursorStats) int64 { return s.Ignored })
	counter("scrubbed_records_total", "Records in responses that were not believed.", func(s *observe.RecursorStats) int64 { return s.Scrubbed })
	gauge("in_flight", "Queries that wait for answers.", func(s *observe.RecursorStats) float64 { return float64(s.InFlight) })
	gauge("servers", "Addresses of servers that are known.", func(s *observe.RecursorStats) float64 { return float64(s.Servers) })
	gauge("servers_resting", "Addresses of servers that are not asked first for a while, because they were silent.", func(s *observe.RecursorStats) float64 { return float64(s.Resting) })
	gauge("zones", "Zones whose servers are known.", func(s *observe.RecursorStats) float64 { return float64(s.Zones) })
	gauge("rrsets", "RRsets that are kept.", func(s *observe.RecursorStats) float64 { return float64(s.RRsets) })
	gauge("bytes", "Memory that all this takes, estimated.", func(s *observe.RecursorStats) float64 { return float64(s.Bytes) })
	gauge("max_bytes", "Memory that it may take.", func(s *observe.RecursorStats) float64 { return float64(s.MaxBytes) })
	gauge("budget_tokens", "Hedges that would be paid for now.", func(s *observe.RecursorStats) float64 { return s.Budget })
	gauge("first_contact_seconds", "When a server that was never asked is late.", func(s *observe.RecursorStats) float64 { return s.FirstContact.Seconds() })
	r.metrics[len(r.metrics)-1].longest = true
	counter("verifications_total", "What signatures have cost to verify: P-384 counts 10, RSA with more than 2,048 bits 5, others 1.", func(s *observe.RecursorStats) int64 { return s.Verifications })
	counter("key_queries_total", "Questions for keys that the servers of zones were asked.", func(s *observe.RecursorStats) int64 { return s.KeyQueries })
	counter("responses_passed_over_total", "Responses that were not taken for their signatures: another server was asked.", func(s *observe.RecursorStats) int64 { return s.PassedOver })
	counter("synthesized_answers_total", "Answers, or parts of them, that were made of proofs of others: no server was asked (RFC 8198).", func(s *observe.RecursorStats) int64 { return s.Synthesized })
	gauge("unknown_anchors", "Keys of the root with the SEP flag that no trust anchor knows.", func(s *observe.RecursorStats) float64 { return float64(len(s.UnknownSEP)) })
	gauge("clock_off_seconds", "By how much the clock is before (negative) or after the time in which the root's signatures are valid; 0: it is not.", func(s *observe.RecursorStats) float64 { return s.ClockOff.Seconds() })
	r.metrics[len(r.metrics)-1].longest = true
	r.addLabeledMetrics(desc)
	return r
}

// addLabeledMetrics sets the metrics that have a further label besides client. The function desc makes the description
// of a metric; more is the name of the further label.
func (r *recursorMetrics) addLabeledMetrics(desc func(name, help string, more ...string) *prometheus.Desc) {
	r.labeled = []labeledRecursorMetric{
		{desc("limited_total", "Questions that ended at a limit, by the field of recursor.Limits, or by what validation limits.", "limit"), prometheus.CounterValue, false,
			func(s *observe.RecursorStats) map[string]float64 {
				all := make(map[string]float64)
				for limit, n := range s.Limited {
					all[limit] = float64(n)
				}
				return all
			}},
		{desc("answers_total", "Answers by what their signatures say: secure, insecure or bogus.", "security"), prometheus.CounterValue, false,
			func(s *observe.RecursorStats) map[string]float64 {
				if s.Bogus == nil {
					return nil // validation is off
				}
				all := map[string]float64{"secure": float64(s.Secure), "insecure": float64(s.Insecure), "bogus": 0}
				for _, n := range s.Bogus {
					all["bogus"] += float64(n)
				}
				return all
			}},
		{desc("bogus_total", "Answers that are bogus, by the name of their extended error (RFC 8914).", "reason"), prometheus.CounterValue, false,
			func(s *observe.RecursorStats) map[string]float64 {
				all := make(map[string]float64)
				for code, n := range s.Bogus {
					all[observe.ExtendedError(code)] += float64(n)
				}
				return all
			}},
		{desc("anchor_signs", "1 if the root's keys are signed by the one of this trust anchor.", "tag"), prometheus.GaugeValue, true,
			func(s *observe.RecursorStats) map[string]float64 {
				all := make(map[string]float64)
				for _, a := range s.Anchors {
					tag := strconv.Itoa(int(a.Tag))
					all[tag] = max(all[tag], 0)
					if a.Signs {
						all[tag] = 1
					}
				}
				return all
			}},
	}
}

// Describe implements [prometheus.Collector]: it sends the descriptions of the metrics to ch.
func (r *recursorMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range r.metrics {
		ch <- m.desc
	}
	for _, m := range r.labeled {
		ch <- m.desc
	}
}

// Collect implements [prometheus.Collector]: it reads the statistics of all recursors, and sends the values of the
// metrics to ch.
func (r *recursorMetrics) Collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	all := r.resolvers[:len(r.resolvers):len(r.resolvers)]
	r.mu.Unlock()
	type id struct {
		metric        int
		client, label string
	}
	values := make(map[string][]float64)
	labeled := make(map[id]float64)
	for _, one := range all {
		s := one.Stats()
		name := observe.KeyInfo{Client: s.Name}.Printable().Client
		if values[name] == nil {
			values[name] = make([]float64, len(r.metrics))
		}
		for i, m := range r.metrics {
			v := &values[name][i]
			switch n := m.value(&s); {
			case !m.longest:
				*v += n
			case math.Abs(n) > math.Abs(*v):
				*v = n
			}
		}
		for i, m := range r.labeled {
			for label, n := range m.values(&s) {
				if me := (id{i, name, label}); m.isState {
					labeled[me] = max(labeled[me], n)
				} else {
					labeled[me] += n
				}
			}
		}
	}
	for name, all := range values {
		for i, m := range r.metrics {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, all[i], name)
		}
	}
	for me, n := range labeled {
		ch <- prometheus.MustNewConstMetric(r.labeled[me.metric].desc, r.labeled[me.metric].kind, n, me.client, me.label)
	}
}
