// Package hedgeotel has metrics and spans of hedging for OpenTelemetry. It needs the
// API only; the SDK that the program uses decides where metrics and spans go.
//
//	observer, err := hedgeotel.New()
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport,
//		hedge.WithName("shop"), hedge.WithObserver(observer))}
//
// The values are those of gRFC A96: an attempt is original or hedge.
//
// # Metrics
//
//	hedge.requests           calls
//	hedge.request            histogram: what callers waited, in seconds; hedge.hedged is true if a hedge was sent
//	hedge.attempts           attempts, by hedge.type and hedge.outcome: won, lost or failed
//	hedge.wins               hedged calls that were answered, by the hedge.type of the attempt that answered
//	hedge.denied             hedges that were due and not sent, and calls that could not be hedged, by hedge.reason
//	hedge.answers_not_taken  hedges with an answer, such as 404 or NOT_FOUND, that ends a call only if it is the primary's
//	hedge.saved              histogram: the estimated time that each win of a hedge saved, in seconds; 0 with hedge.WithAudit
//	hedge.delay              delay after which the latest call was to be hedged, in seconds; 0 if it was not
//	hedge.budget.tokens      hedges that the budget could pay for, when it was last asked
//	hedge.budget.ratio       hedges per call that the budget pays for in the long run: 0.1 by default
//
// With hedge.WithAudit there are these gauges, per host:
//
//	hedge.audit.verdict      1: hedging was measured to help; -1: to harm, so it is off; 0: neither
//	hedge.audit.saved        how much shorter it makes the 99th percentile, in seconds; negative if it makes it longer
//	hedge.audit.saved_error  half of the 95 % interval of that
//	hedge.audit.confidence   one less the probability that luck alone would ever show as much
//
// Calls that have a choice of endpoints (see hedge.WithEndpoints) have these, with the attribute hedge.endpoint, a URL or target as it was given. The host is that of
// the first endpoint:
//
//	hedge.endpoint.attempts     attempts that went there, by hedge.type
//	hedge.endpoint.bad          of those, by hedge.outcome: failed, or overtaken by one at another endpoint
//	hedge.endpoint.ejected      keys (hosts, or their routes) whose calls go to other endpoints
//
// An exporter to Prometheus gives all of these the names that module hedgeprom has. gRPC calls have one more, as gRFC A96 says, with
// the attributes grpc.method and grpc.target:
//
//	grpc.client.call.hedges  histogram: how many hedges a call had, if it had any
//
// A server's Limiter that has the Observer, by hedge.WithObserver, has two more, with the
// attributes hedge.limiter (see hedge.WithName) and hedge.outcome: worked, left or refused.
//
//	hedge.limiter.requests   requests that came to the Limiter
//	hedge.limiter.waited     histogram: how long they waited in the queue, in seconds
//
// Every other metric has the attributes server.address (for gRPC the target, for hedge.Do
// the key, for DNS the upstream) and hedge.protocol; and hedge.client (see hedge.WithName) and hedge.route,
// where there is one. Their values are made printable, see [observe.KeyInfo.Printable]. The
// cardinality limit of the SDK bounds the number of hosts.
//
// # Spans
//
// The caller's span, if it is recorded, gets an event for each hedge that is sent
// (hedge.fired) and for each that is due and not sent (hedge.denied). If there were
// hedges, it also gets the attributes hedge.attempts and hedge.winner; with hedge.WithAudit,
// it gets hedge.audit: on, off or trying. Each hedge has a
// span below the caller's, with the attribute hedge.outcome, and over HTTP http.request.resend_count; so has a primary that lost
// to a hedge. Where DNS questions share an exchange through a cache, there is no one
// caller, and no span. To lose is no error: the status Error means that the attempt itself failed.
//
// Instrumentation below hedging, such as otelhttp around the base transport, makes
// spans of its own for each attempt. It takes the cancellation of a loser for an
// error, and describes the error by its cause: another attempt won.
package hedgeotel

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/gohedge/hedge/observe"
)

const scope = "github.com/gohedge/hedge/hedgeotel"

// An Observer is a [observe.Observer] for any number of clients, of all
// protocols. It is safe for concurrent use. Use [New] to make one.
type Observer struct {
	observe.NopObserver
	tracer trace.Tracer

	requests, attempts, wins, denied, notTaken metric.Int64Counter
	request, saved                             metric.Float64Histogram
	delay, tokens, ratio                       metric.Float64Gauge
	audited                                    [4]metric.Float64Gauge // verdict, saved, its error, confidence
	hedges                                     metric.Int64Histogram  // of gRPC calls

	endpointAttempts, endpointBad metric.Int64Counter
	endpointsEjected              metric.Int64UpDownCounter

	limited metric.Int64Counter
	waited  metric.Float64Histogram

	sets atomic.Pointer[map[observe.KeyInfo]*sets] // the map is replaced, never changed
	mu   sync.Mutex                                // held while sets is replaced
}

var _ observe.Observer = (*Observer)(nil)

// An Option adjusts [New].
type Option func(*settings)

type settings struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
}

// WithMeterProvider sends metrics to mp. The default, nil, is the global one.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return func(s *settings) { s.meters = mp }
}

// WithTracerProvider sends spans to tp. The default, nil, is the global one.
func WithTracerProvider(tp trace.TracerProvider) Option {
	return func(s *settings) { s.tracers = tp }
}

// New returns an Observer, or the error of a provider that refuses an instrument. A nil
// Option changes nothing.
func New(opts ...Option) (*Observer, error) {
	var s settings
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	if s.meters == nil {
		s.meters = otel.GetMeterProvider()
	}
	if s.tracers == nil {
		s.tracers = otel.GetTracerProvider()
	}
	o := &Observer{tracer: s.tracers.Tracer(scope)}
	o.sets.Store(&map[observe.KeyInfo]*sets{})
	m := maker{meter: s.meters.Meter(scope)}
	o.requests = m.counter("hedge.requests", "{request}", "Calls.")
	o.request = m.times("hedge.request", "What callers waited, by whether a hedge was sent.", times...)
	o.attempts = m.counter("hedge.attempts", "{attempt}", "Attempts that were sent for the calls, by type.")
	o.wins = m.counter("hedge.wins", "{request}", "Hedged calls that were answered, by the type of the attempt that answered.")
	o.denied = m.counter("hedge.denied", "{hedge}", "Hedges that were due and not sent, and calls that could not be hedged, by reason.")
	o.notTaken = m.counter("hedge.answers_not_taken", "{hedge}", "Hedges with an answer that ends a call only if it is the primary's.")
	o.saved = m.times("hedge.saved", "Estimated time that each win of a hedge saved.", savings...)
	o.delay = m.gauge("hedge.delay", "s", "Delay after which the latest call was to be hedged; 0 if it was not.")
	o.tokens = m.gauge("hedge.budget.tokens", "{hedge}", "Hedges that the budget could pay for, when it was last asked.")
	o.ratio = m.gauge("hedge.budget.ratio", "1", "Hedges per call that the budget pays for in the long run, by the settings.")
	o.audited = [4]metric.Float64Gauge{
		m.gauge("hedge.audit.verdict", "", "1 if hedging was measured to help, -1 if it was measured to harm and is off, 0 if no difference was found, or not yet."),
		m.gauge("hedge.audit.saved", "s", "How much shorter hedging makes the 99th percentile, as measured; negative if it makes it longer."),
		m.gauge("hedge.audit.saved_error", "s", "Half of the 95 % interval of hedge_audit_saved_seconds."),
		m.gauge("hedge.audit.confidence", "", "One less the probability that luck alone would ever show as much, however often one looks."),
	}
	o.endpointAttempts = m.counter("hedge.endpoint.attempts", "{attempt}", "Attempts that went to an endpoint, of calls that have a choice of endpoints, by type.")
	o.endpointBad = m.counter("hedge.endpoint.bad", "{attempt}", "Of those, the ones that failed, or that were overtaken by one at another endpoint.")
	o.limited = m.counter("hedge.limiter.requests", "{request}", "Requests that came to the Limiter, by outcome.")
	o.waited = m.times("hedge.limiter.waited", "How long requests waited in a Limiter's queue, by outcome.", times...)
	var err, out error
	o.endpointsEjected, out = m.meter.Int64UpDownCounter("hedge.endpoint.ejected", metric.WithUnit("{key}"),
		metric.WithDescription("Keys (hosts, or their routes) whose calls go to other endpoints."))
	o.hedges, err = m.meter.Int64Histogram("grpc.client.call.hedges", metric.WithUnit("{hedge}"),
		metric.WithDescription("Hedges of gRPC calls that had any, by method and target, as gRFC A96 says."), metric.WithExplicitBucketBoundaries(1, 2, 3, 4, 5))
	if err := errors.Join(append(m.errs, err, out)...); err != nil {
		return nil, err
	}
	return o, nil
}

// A maker makes instruments, and keeps the errors of those that are refused.
type maker struct {
	meter metric.Meter
	errs  []error
}

func (m *maker) counter(name, unit, description string) metric.Int64Counter {
	c, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) gauge(name, unit, description string) metric.Float64Gauge {
	g, err := m.meter.Float64Gauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return g
}

// Upper bounds of buckets, in seconds. Those of savings are the default of module hedgeprom, whose metric has the same name.
var (
	times   = []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20}
	savings = []float64{0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384}
)

// times makes a histogram of seconds.
func (m *maker) times(name, description string, bounds ...float64) metric.Float64Histogram {
	h, err := m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	m.errs = append(m.errs, err)
	return h
}

// sets has the attributes of one key, as options that are made once.
type sets struct {
	common []attribute.KeyValue
	add    []metric.AddOption
	record []metric.RecordOption
	alone  []metric.RecordOption // of calls that no hedge was sent for, as most are
	won    []metric.AddOption    // of originals that won, as most attempts do
	call   []metric.RecordOption // of a gRPC call, in the words of A96; nil: it is none

	endpoints sync.Map // of observe.EndpointEvent to []metric.AddOption
}

// maxSets is the number of keys whose attributes are kept at most. The attributes of
// other keys are made for each call.
const maxSets = 4096

func (o *Observer) of(key observe.KeyInfo) *sets {
	if s := (*o.sets.Load())[key]; s != nil {
		return s
	}
	s := new(sets)
	text := key.Printable() // or exporters would refuse what is not UTF-8, and all that they send with it
	for _, kv := range [...]attribute.KeyValue{
		attribute.String("server.address", text.Host), attribute.String("hedge.protocol", text.Protocol),
		attribute.String("hedge.client", text.Client), attribute.String("hedge.route", text.Route),
	} {
		if kv.Value.AsString() != "" {
			s.common = append(s.common, kv)
		}
	}
	set := metric.WithAttributeSet(attribute.NewSet(s.common...))
	s.add, s.record = []metric.AddOption{set}, []metric.RecordOption{set}
	s.alone = s.recorded(hedged(false))
	s.won = s.with(attempt(0, observe.Won)...)
	if key.Protocol == "grpc" {
		s.call = []metric.RecordOption{metric.WithAttributes(
			attribute.String("grpc.method", strings.TrimPrefix(text.Route, "/")), attribute.String("grpc.target", text.Host))}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if known := *o.sets.Load(); len(known) < maxSets && key == text { // a name may be very long
		more := maps.Clone(known)
		more[key] = s
		o.sets.Store(&more)
	}
	return s
}

// with returns the attributes of the key and more.
func (s *sets) with(more ...attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributes(append(s.common[:len(s.common):len(s.common)], more...)...)}
}

// recorded returns the same for histograms.
func (s *sets) recorded(more attribute.KeyValue) []metric.RecordOption {
	return []metric.RecordOption{metric.WithAttributes(append(s.common[:len(s.common):len(s.common)], more)...)}
}

func hedged(yes bool) attribute.KeyValue { return attribute.Bool("hedge.hedged", yes) }

// kind returns the type of attempt n in the words of A96.
func kind(n int) string {
	if n > 0 {
		return "hedge"
	}
	return "original"
}

// attempt returns the attributes of attempt n.
func attempt(n int, outcome observe.Outcome) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("hedge.type", kind(n)), attribute.String("hedge.outcome", string(outcome))}
}

// AttemptStart adds an event to the caller's span if the attempt is a hedge.
func (o *Observer) AttemptStart(ctx context.Context, _ observe.KeyInfo, a observe.AttemptInfo) {
	if !a.Hedge() {
		return
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent("hedge.fired", trace.WithAttributes(attribute.Int("hedge.attempt", a.Number)))
	}
}

// AttemptDone counts an attempt, and makes a span of it if it is a hedge or lost.
func (o *Observer) AttemptDone(ctx context.Context, key observe.KeyInfo, a observe.AttemptResult) {
	s := o.of(key)
	if !a.Hedge() && a.Outcome == observe.Won {
		o.attempts.Add(ctx, 1, s.won...)
		return
	}
	o.attempts.Add(ctx, 1, s.with(attempt(a.Number, a.Outcome)...)...)
	if (a.Hedge() || a.Outcome == observe.Lost) && trace.SpanContextFromContext(ctx).IsValid() {
		end := time.Now()
		_, span := o.tracer.Start(ctx, "hedge attempt", trace.WithTimestamp(end.Add(-a.Latency)),
			trace.WithAttributes(s.common...), trace.WithAttributes(attempt(a.Number, a.Outcome)...),
			trace.WithAttributes(attribute.Int("hedge.attempt", a.Number)))
		if a.Hedge() && key.Protocol == "http" {
			span.SetAttributes(attribute.Int("http.request.resend_count", a.Number)) // as OpenTelemetry's conventions for HTTP say
		}
		if a.Outcome == observe.Failed {
			span.SetStatus(codes.Error, "attempt failed")
		}
		span.End(trace.WithTimestamp(end))
	}
}

// RequestDone counts a call, and adds attributes to the caller's span if the call was hedged.
func (o *Observer) RequestDone(ctx context.Context, key observe.KeyInfo, r observe.RequestResult) {
	s := o.of(key)
	o.requests.Add(ctx, 1, s.add...)
	o.delay.Record(ctx, r.Delay.Seconds(), s.record...)
	if r.Share > 0 { // calls that cannot be hedged say nothing of the budget
		o.ratio.Record(ctx, r.Share, s.record...)
	}
	if r.Attempts > 1 {
		o.hedgedDone(ctx, s, r)
	} else {
		o.request.Record(ctx, r.Latency.Seconds(), s.alone...)
	}
	if r.AnswersNotTaken > 0 {
		o.notTaken.Add(ctx, int64(r.AnswersNotTaken), s.add...)
	}
	if r.Winner > 0 && !r.HeldBack || r.Saved > 0 { // a hedge won, or would have won
		o.saved.Record(ctx, r.Saved.Seconds(), s.record...)
	}
	span := trace.SpanFromContext(ctx)
	if r.Audit != "" && span.IsRecording() {
		span.SetAttributes(attribute.String("hedge.audit", r.Audit))
	}
	if r.Attempts > 1 && span.IsRecording() {
		span.SetAttributes(attribute.Int("hedge.attempts", r.Attempts))
		if r.Winner >= 0 {
			span.SetAttributes(attribute.String("hedge.winner", kind(r.Winner)))
		}
	}
}

// hedgedDone counts a call that a hedge was sent for.
func (o *Observer) hedgedDone(ctx context.Context, s *sets, r observe.RequestResult) {
	o.request.Record(ctx, r.Latency.Seconds(), s.recorded(hedged(true))...)
	switch {
	case r.HeldBack:
		o.wins.Add(ctx, 1, s.with(attribute.String("hedge.type", "held_back"))...)
	case r.Winner >= 0:
		o.wins.Add(ctx, 1, s.with(attribute.String("hedge.type", kind(r.Winner)))...)
	}
	if s.call != nil {
		o.hedges.Record(ctx, int64(r.Attempts-1), s.call...)
	}
}

// Audited records what the audit of a host has found.
func (o *Observer) Audited(key observe.KeyInfo, a observe.Audit) {
	verdict := map[observe.Verdict]float64{observe.AuditOn: 1, observe.AuditOff: -1}[a.Verdict]
	for i, v := range [...]float64{verdict, a.Saved.Seconds(), a.PlusMinus.Seconds(), a.Confidence} {
		o.audited[i].Record(context.Background(), v, o.of(key).record...)
	}
}

// Denied counts a hedge that was not sent, or a call that could not be hedged. In the
// first case it adds an event to the caller's span.
func (o *Observer) Denied(ctx context.Context, key observe.KeyInfo, denied observe.Reason) {
	reason := attribute.String("hedge.reason", string(denied))
	o.denied.Add(ctx, 1, o.of(key).with(reason)...)
	switch denied {
	case observe.DeniedMethod, observe.DeniedBody, observe.DeniedDisabled, observe.DeniedWarming, observe.DeniedNested:
		return // no hedge was due
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent("hedge.denied", trace.WithAttributes(reason))
	}
}

// Budget records how many hedges the budget could pay for.
func (o *Observer) Budget(key observe.KeyInfo, tokens float64) {
	o.tokens.Record(context.Background(), tokens, o.of(key).record...)
}

// EndpointEvent counts what happens at an endpoint.
func (o *Observer) EndpointEvent(key observe.KeyInfo, p observe.EndpointEvent) {
	s := o.of(key)
	switch ctx := context.Background(); p.Kind {
	case observe.EndpointCalled:
		o.endpointAttempts.Add(ctx, 1, s.endpointAttributes(p, attribute.String("hedge.type", kind(0)))...)
	case observe.EndpointHedged:
		o.endpointAttempts.Add(ctx, 1, s.endpointAttributes(p, attribute.String("hedge.type", kind(1)))...)
	case observe.EndpointFailed, observe.EndpointOvertaken:
		o.endpointBad.Add(ctx, 1, s.endpointAttributes(p, attribute.String("hedge.outcome", string(p.Kind)))...)
	case observe.EndpointEjected:
		o.endpointsEjected.Add(ctx, 1, s.endpointAttributes(p)...)
	case observe.EndpointRestored:
		o.endpointsEjected.Add(ctx, -1, s.endpointAttributes(p)...)
	}
}

// endpointAttributes returns the attributes of the key, an endpoint and more, which depends on the kind of the event alone.
func (s *sets) endpointAttributes(p observe.EndpointEvent, more ...attribute.KeyValue) []metric.AddOption {
	if known, ok := s.endpoints.Load(p); ok {
		return known.([]metric.AddOption)
	}
	endpoint := observe.KeyInfo{Host: p.Endpoint}.Printable().Host
	all := s.with(append(more, attribute.String("hedge.endpoint", endpoint))...)
	s.endpoints.Store(p, all)
	return all
}

// Limited counts a request that came to a Limiter, and how long it waited.
func (o *Observer) Limited(ctx context.Context, limiter string, r observe.LimiterResult) {
	name := observe.KeyInfo{Client: limiter}.Printable().Client
	outcome := metric.WithAttributes(attribute.String("hedge.limiter", name), attribute.String("hedge.outcome", string(r.Outcome)))
	o.limited.Add(ctx, 1, outcome)
	o.waited.Record(ctx, r.Waited.Seconds(), outcome)
}
