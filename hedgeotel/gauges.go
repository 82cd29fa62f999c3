package hedgeotel

import (
	"context"
	"runtime"
	"slices"
	"weak"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gohedge/hedge/observe"
)

// stateGauges holds the instruments whose values are read from clients on each collection, and the clients.
type stateGauges struct {
	clients              observe.Clients
	delay, tokens, ratio metric.Float64ObservableGauge
	audit                [4]metric.Float64ObservableGauge // verdict, saved time, error of the saved time, confidence
	ejected              metric.Int64ObservableUpDownCounter
}

// newStateGauges creates the gauges. Errors of the meter are added to errs.
func (m *instrumentMaker) newStateGauges() *stateGauges {
	g := new(stateGauges)
	gauge := func(name, unit, description string) metric.Float64ObservableGauge {
		i, err := m.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		m.errs = append(m.errs, err)
		return i
	}
	g.delay = gauge("hedge.delay", "s", "Delay after which the next call will be hedged; 0 if it will not.")
	g.tokens = gauge("hedge.budget.tokens", "{hedge}", "Hedges that the budget can pay for now.")
	g.ratio = gauge("hedge.budget.ratio", "1", "Hedges per call that the budget pays for in the long run, by the settings.")
	g.audit = [4]metric.Float64ObservableGauge{
		gauge("hedge.audit.verdict", "", "1 if hedging was measured to help, -1 if it was measured to harm and is off, 0 if no difference was found, or not yet."),
		gauge("hedge.audit.saved", "s", "Measured time by which hedging reduces the 99th percentile of latency; negative if it increases it."),
		gauge("hedge.audit.saved_error", "s", "Half the width of the 95 % confidence interval of hedge_audit_saved_seconds."),
		gauge("hedge.audit.confidence", "", "One minus the probability that chance alone ever shows such an effect."),
	}
	var err error
	g.ejected, err = m.meter.Int64ObservableUpDownCounter("hedge.endpoint.ejected", metric.WithUnit("{key}"),
		metric.WithDescription("Keys (hosts, or their routes) whose calls go to other endpoints."))
	m.errs = append(m.errs, err)
	return g
}

// registerGauges registers the callback that reads the gauges. The callback does not keep o alive, and is unregistered
// when o is garbage collected.
func (o *Observer) registerGauges(meter metric.Meter) error {
	observer, g := weak.Make(o), o.gauges
	registration, err := meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		if o := observer.Value(); o != nil {
			o.observeGauges(to)
		}
		return nil
	}, g.delay, g.tokens, g.ratio, g.audit[0], g.audit[1], g.audit[2], g.audit[3], g.ejected)
	if err == nil {
		runtime.AddCleanup(o, func(r metric.Registration) { _ = r.Unregister() }, registration)
	}
	return err
}

// ClientCreated implements [observe.Observer]: it adds a client whose state is exported for as long as the client exists.
func (o *Observer) ClientCreated(s observe.ClientState) { o.gauges.clients.Add(s) }

// observeGauges passes the current values of the gauges to the meter.
func (o *Observer) observeGauges(to metric.Observer) {
	states, audits := make(map[observe.KeyInfo]*observe.KeyState), make(map[observe.KeyInfo]*observe.KeyState)
	merge := func(into map[observe.KeyInfo]*observe.KeyState, key observe.KeyInfo, k observe.KeyState) {
		if into[key] == nil {
			into[key] = new(observe.KeyState)
		}
		into[key].Merge(k)
	}
	for _, k := range o.gauges.clients.KeyStates() {
		key := k.KeyInfo.Printable()
		k.Endpoints = slices.Clone(k.Endpoints)
		for i := range k.Endpoints {
			k.Endpoints[i].Endpoint = observe.KeyInfo{Host: k.Endpoints[i].Endpoint}.Printable().Host
		}
		merge(states, key, k)
		key.Route = "" // all routes of a host share an audit
		merge(audits, key, observe.KeyState{Audit: k.Audit})
	}
	for key, k := range states {
		o.observeKey(to, key, k)
	}
	for key, k := range audits {
		if a := &k.Audit; a.Verdict != "" {
			verdict := map[observe.Verdict]float64{observe.AuditOn: 1, observe.AuditOff: -1}[a.Verdict]
			for i, value := range [...]float64{verdict, a.Saved.Seconds(), a.PlusMinus.Seconds(), a.Confidence} {
				to.ObserveFloat64(o.gauges.audit[i], value, o.attributesFor(key).observed)
			}
		}
	}
}

// observeKey passes the values of one key, without its audit, to the meter.
func (o *Observer) observeKey(to metric.Observer, key observe.KeyInfo, k *observe.KeyState) {
	s, g := o.attributesFor(key), o.gauges
	to.ObserveFloat64(g.delay, k.Delay.Seconds(), s.observed)
	if k.Share > 0 {
		to.ObserveFloat64(g.tokens, k.Tokens, s.observed)
		to.ObserveFloat64(g.ratio, k.Share, s.observed)
	}
	for _, e := range k.Endpoints {
		endpoint := attribute.String("hedge.endpoint", e.Endpoint)
		to.ObserveInt64(g.ejected, int64(e.Ejected), metric.WithAttributes(append(s.common[:len(s.common):len(s.common)], endpoint)...))
	}
}
