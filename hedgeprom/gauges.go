package hedgeprom

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge/observe"
)

// stateGauges describes the metrics that are read from clients on each collection, and holds the clients.
type stateGauges struct {
	clients              observe.Clients
	delay, tokens, ratio *prometheus.Desc
	audit                [4]*prometheus.Desc // verdict, saved time, error of the saved time, confidence
	ejected              *prometheus.Desc    // number of latency keys that have ejected an endpoint
}

// newStateGauges returns the gauges without clients. All metrics have the given constant labels.
func newStateGauges(labels prometheus.Labels) *stateGauges {
	by := []string{"client", "host", "protocol"}
	gauge := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append(by[:len(by):len(by)], more...), labels)
	}
	return &stateGauges{
		delay:  gauge("hedge_delay_seconds", "Delay after which the next call will be hedged; 0 if it will not."),
		tokens: gauge("hedge_budget_tokens", "Hedges that the budget can pay for now."),
		ratio:  gauge("hedge_budget_ratio", "Hedges per call that the budget pays for in the long run, by the settings."),
		audit: [4]*prometheus.Desc{
			gauge("hedge_audit_verdict", "1 if hedging was measured to help, -1 if it was measured to harm and is off, 0 if no difference was found, or not yet."),
			gauge("hedge_audit_saved_seconds", "Measured time by which hedging reduces the 99th percentile of latency; negative if it increases it."),
			gauge("hedge_audit_saved_error_seconds", "Half the width of the 95 % confidence interval of hedge_audit_saved_seconds."),
			gauge("hedge_audit_confidence", "One minus the probability that chance alone ever shows such an effect."),
		},
		ejected: gauge("hedge_endpoint_ejected", "Keys (hosts, or their routes) whose calls go to other endpoints.", "endpoint"),
	}
}

// sendDescriptions sends the descriptions of the gauges to ch.
func (g *stateGauges) sendDescriptions(ch chan<- *prometheus.Desc) {
	for _, d := range append(g.audit[:], g.delay, g.tokens, g.ratio, g.ejected) {
		ch <- d
	}
}

// ClientCreated implements [observe.Observer]: it adds a client whose state is exported for as long as the client exists.
func (c *Collector) ClientCreated(s observe.ClientState) { c.gauges.clients.Add(s) }

// collectGauges sends the current values of the gauges to ch. Only hosts with calls have gauges.
func (c *Collector) collectGauges(ch chan<- prometheus.Metric) {
	states := make(map[*series]*observe.KeyState)
	for _, k := range c.gauges.clients.KeyStates() {
		s := c.findSeries(k.KeyInfo)
		if s == nil {
			continue
		}
		k.Endpoints = slices.Clone(k.Endpoints)
		for i := range k.Endpoints {
			k.Endpoints[i].Endpoint = c.endpointSeriesFor(s, k.Endpoints[i].Endpoint).label
		}
		if s.host == Other { // hosts that share a label have different audits
			k.Audit = observe.Audit{}
		}
		if states[s] == nil {
			states[s] = new(observe.KeyState)
		}
		states[s].Merge(k)
	}
	for s, state := range states {
		c.gauges.sendValues(ch, s, state)
	}
}

// sendValues sends the values of the gauges with the labels of s to ch.
func (g *stateGauges) sendValues(ch chan<- prometheus.Metric, s *series, state *observe.KeyState) {
	set := func(d *prometheus.Desc, value float64, more ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{s.client, s.host, s.protocol}, more...)...)
	}
	set(g.delay, state.Delay.Seconds())
	if state.Share > 0 {
		set(g.tokens, state.Tokens)
		set(g.ratio, state.Share)
	}
	if a := &state.Audit; a.Verdict != "" {
		verdict := map[observe.Verdict]float64{observe.AuditOn: 1, observe.AuditOff: -1}[a.Verdict]
		for i, value := range [...]float64{verdict, a.Saved.Seconds(), a.PlusMinus.Seconds(), a.Confidence} {
			set(g.audit[i], value)
		}
	}
	for _, e := range state.Endpoints {
		set(g.ejected, float64(e.Ejected), e.Endpoint)
	}
}

// findSeries returns the metrics for the client, host and protocol of a latency key. It returns nil if they have no calls.
func (c *Collector) findSeries(key observe.KeyInfo) *series {
	if s := (*c.series.Load())[seriesKey{key.Client, key.Host, key.Protocol}]; s != nil {
		return s
	}
	key = key.Printable()
	c.mu.Lock()
	defer c.mu.Unlock()
	return (*c.series.Load())[seriesKey{key.Client, c.hostLabel(key.Host), key.Protocol}]
}
