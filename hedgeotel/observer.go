// Package hedgeotel exports metrics and spans of hedging to OpenTelemetry. It depends only on the API; the SDK of the
// program determines where metrics and spans go.
//
//	observer, err := hedgeotel.New()
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport,
//		hedge.WithName("shop"), hedge.WithObserver(observer))}
//
// The type of an attempt is original or hedge, as in gRFC A96.
//
// # Metrics
//
//	hedge.requests           calls
//	hedge.request            histogram: latency of calls in seconds; hedge.hedged is true if a hedge was sent
//	hedge.attempts           attempts, by hedge.type (original, hedge, resume for the rest of a body, or retry for primaries
//	                         marked by hedge.MarkRetry) and hedge.outcome: won, lost or failed; over DNS at the preferred upstream
//	hedge.wins               hedged calls that succeeded, and resumed bodies, by the hedge.type of the winner
//	hedge.denied             hedges that were due and not sent, and calls that could not be hedged, by hedge.reason
//	hedge.answers_not_taken  hedges whose status, such as 404 or NOT_FOUND, ends a call only if the primary returns it
//	hedge.saved              histogram: estimated time in seconds that a winning hedge saved; 0 with hedge.WithAudit
//	hedge.delay              hedge delay of the next call in seconds; 0 if it will not be hedged
//	hedge.budget.tokens      hedges that the budget can pay for now
//	hedge.budget.ratio       hedges per call that the budget pays for in the long run: 0.1 by default
//
// With hedge.WithAudit, there are the following gauges per host:
//
//	hedge.audit.verdict      1: hedging helps; -1: hedging harms, and is disabled; 0: neither
//	hedge.audit.saved        reduction of the 99th percentile in seconds; negative if hedging increases it
//	hedge.audit.saved_error  half the width of the 95 % confidence interval of hedge.audit.saved
//	hedge.audit.confidence   one minus the probability that chance alone ever shows such an effect
//
// Calls with a choice of endpoints (see hedge.WithEndpoints) have the following metrics. The server.address is the host
// of the first endpoint. The attribute hedge.endpoint is the URL or target of an endpoint as configured:
//
//	hedge.endpoint.attempts     attempts at the endpoint, by hedge.type
//	hedge.endpoint.bad          bad attempts at the endpoint, by hedge.outcome: failed or overtaken
//	hedge.endpoint.ejected      keys (hosts or routes) that have ejected the endpoint
//
// A Prometheus exporter converts these names to the names in module hedgeprom, with other labels. The directory of this
// package contains alerts for them (alerts.yaml). The gauges are read from the clients that exist. gRPC calls have one more metric, defined
// by gRFC A96, with the attributes grpc.method and grpc.target:
//
//	grpc.client.call.hedges  histogram: number of hedges of a call that has any
//
// A Limiter with the Observer (see hedge.WithObserver) has two metrics with the attributes hedge.limiter (see
// hedge.WithName) and hedge.outcome: worked, left or refused.
//
//	hedge.limiter.requests   requests at the Limiter
//	hedge.limiter.waited     histogram: time in the queue in seconds
//
// A dnshedge.Client whose Trace.Lookup is [Observer.LookupDone] has the metric of OpenTelemetry's conventions, with the
// attributes dns.question.name and error.type. Its exemplars, and the event dns.lookup, name the call that waited:
//
//	dns.lookup.duration  histogram: duration of each DNS question in seconds, including answers from the cache
//
// All other metrics have the attributes server.address and hedge.protocol and, if not empty, hedge.client (see
// hedge.WithName) and hedge.route. The server.address is the gRPC target, the key of hedge.Do, or the DNS upstream for
// these protocols. Values are formatted as by [observe.KeyInfo.Printable]. The cardinality limit of the SDK bounds the
// number of hosts.
//
// # Spans
//
// If the caller's span is recorded, it gets the event hedge.fired for each hedge that is sent. It gets hedge.denied for
// each hedge that was due and not sent. If there were hedges, it also gets the attributes hedge.attempts and
// hedge.winner. With hedge.WithAudit, it gets hedge.audit: on, off or trying.
//
// Each hedge has a child span of the caller's span, with the attribute hedge.outcome, and over HTTP
// http.request.resend_count. A primary that lost to a hedge also has a child span.
//
// A span has the status Error only if the attempt itself failed, not because it lost. DNS questions that share an
// exchange through a cache have no single caller, and therefore no span.
//
// Instrumentation of the wrapped transport, such as otelhttp, creates its own span for each attempt. It reports the
// cancellation of a loser as an error, whose description is the cause: another attempt won.
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

// scopeName is the name of the OpenTelemetry instrumentation scope of all metrics and spans.
const scopeName = "github.com/gohedge/hedge/hedgeotel"

// An Observer is an [observe.Observer] that exports metrics and spans to OpenTelemetry. It serves any number of clients
// of all protocols, and is safe for concurrent use. Call [New] to make an Observer.
type Observer struct {
	observe.NopObserver
	tracer trace.Tracer

	requests, attempts, wins, denied, notTaken metric.Int64Counter
	request, saved                             metric.Float64Histogram
	hedges                                     metric.Int64Histogram // number of hedges of a gRPC call, as defined by gRFC A96
	endpointAttempts, endpointBad              metric.Int64Counter
	gauges                                     *stateGauges

	lookup  metric.Float64Histogram // duration of DNS questions, as OpenTelemetry's conventions define it
	limited metric.Int64Counter     // requests at Limiters
	waited  metric.Float64Histogram // time in the queues of Limiters

	attributesByKey atomic.Pointer[map[observe.KeyInfo]*keyAttributes] // cached attributes by latency key; the map is replaced, and never changed
	mu              sync.Mutex                                         // held while the map in attributesByKey is replaced
}

var _ observe.Observer = (*Observer)(nil)

// An Option changes a setting of a new Observer. Pass it to [New].
type Option func(*settings)

// settings holds the values that Options have set; a nil provider means the global one.
type settings struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
}

// WithMeterProvider sets the provider through which metrics are exported. The default, nil, is the global provider of
// package otel.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return func(s *settings) { s.meters = mp }
}

// WithTracerProvider sets the provider through which spans are exported. The default, nil, is the global provider of
// package otel.
func WithTracerProvider(tp trace.TracerProvider) Option {
	return func(s *settings) { s.tracers = tp }
}

// New returns an Observer. Pass it to each client with hedge.WithObserver. New returns an error if the meter provider
// rejects an instrument. A nil Option has no effect.
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
	o := &Observer{tracer: s.tracers.Tracer(scopeName)}
	o.attributesByKey.Store(&map[observe.KeyInfo]*keyAttributes{})
	m := instrumentMaker{meter: s.meters.Meter(scopeName)}
	o.requests = m.newCounter("hedge.requests", "{request}", "Calls.")
	o.request = m.newTimeHistogram("hedge.request", "Latency of calls, by whether a hedge was sent.", timeBounds...)
	o.attempts = m.newCounter("hedge.attempts", "{attempt}", "Attempts that were sent for the calls, by type.")
	o.wins = m.newCounter("hedge.wins", "{request}", "Hedged calls that were answered, and bodies that were resumed, by the type of the attempt that answered.")
	o.denied = m.newCounter("hedge.denied", "{hedge}", "Hedges that were due and not sent, and calls that could not be hedged, by reason.")
	o.notTaken = m.newCounter("hedge.answers_not_taken", "{hedge}", "Hedges with an answer that ends a call only if it is the primary's.")
	o.saved = m.newTimeHistogram("hedge.saved", "Estimated time that each win of a hedge saved.", savedBounds...)
	o.endpointAttempts = m.newCounter("hedge.endpoint.attempts", "{attempt}", "Attempts that went to an endpoint, of calls that have a choice of endpoints, by type.")
	o.endpointBad = m.newCounter("hedge.endpoint.bad", "{attempt}", "Attempts at an endpoint that failed, or that were slower than an attempt at another endpoint.")
	o.lookup = m.newTimeHistogram("dns.lookup.duration", "Measures the time taken to perform a DNS lookup.", lookupBounds...)
	o.limited = m.newCounter("hedge.limiter.requests", "{request}", "Requests that came to the Limiter, by outcome.")
	o.waited = m.newTimeHistogram("hedge.limiter.waited", "How long requests waited in a Limiter's queue, by outcome.", timeBounds...)
	var err error
	o.hedges, err = m.meter.Int64Histogram("grpc.client.call.hedges", metric.WithUnit("{hedge}"),
		metric.WithDescription("Hedges of gRPC calls that had any, by method and target, as gRFC A96 says."), metric.WithExplicitBucketBoundaries(1, 2, 3, 4, 5))
	o.gauges = m.newStateGauges()
	if err := errors.Join(append(m.errs, err)...); err != nil {
		return nil, err
	}
	return o, o.registerGauges(m.meter)
}

// An instrumentMaker creates metric instruments, and collects the errors of instruments that the meter rejects, so that
// New checks them once.
type instrumentMaker struct {
	meter metric.Meter
	errs  []error // one entry per instrument; nil: accepted
}

// newCounter creates a counter. An error of the meter is added to errs.
func (m *instrumentMaker) newCounter(name, unit, description string) metric.Int64Counter {
	c, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return c
}

// timeBounds and savedBounds are upper bounds of histogram buckets, in seconds. The bounds for the saved time,
// savedBounds, are also the default of module hedgeprom.
var (
	timeBounds  = []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20}
	savedBounds = []float64{0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384}
)

// newTimeHistogram creates a histogram of times in seconds; bounds are the upper bounds of its buckets. An error of the
// meter is added to errs.
func (m *instrumentMaker) newTimeHistogram(name, description string, bounds ...float64) metric.Float64Histogram {
	h, err := m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	m.errs = append(m.errs, err)
	return h
}

// A keyAttributes holds the metric attributes of one latency key. They are stored as options of package metric, because
// making options for each call would allocate memory.
type keyAttributes struct {
	common     []attribute.KeyValue  // attributes of every metric of the key
	observed   metric.ObserveOption  // option of gauges, with the common attributes
	add        []metric.AddOption    // option of counters, with the common attributes
	record     []metric.RecordOption // option of histograms, with the common attributes
	unhedged   []metric.RecordOption // option for calls without a hedge, which are most calls
	primaryWon []metric.AddOption    // option for primaries that won, which are most attempts
	grpcCall   []metric.RecordOption // option with the attributes of gRFC A96; nil: the key is not for gRPC

	endpoints sync.Map // cached options: maps an observe.EndpointEvent to a []metric.AddOption
}

// maxKeys is the maximum number of latency keys whose attributes are cached. For further keys, the attributes are
// created for each call.
const maxKeys = 4096

// attributesFor returns the attributes of a latency key. It creates them for a new key, and caches them unless the
// cache is full or a name of the key is not printable.
func (o *Observer) attributesFor(key observe.KeyInfo) *keyAttributes {
	if s := (*o.attributesByKey.Load())[key]; s != nil {
		return s
	}
	s := new(keyAttributes)
	text := key.Printable() // exporters reject a whole batch with invalid UTF-8
	for _, kv := range [...]attribute.KeyValue{
		attribute.String("server.address", text.Host), attribute.String("hedge.protocol", text.Protocol),
		attribute.String("hedge.client", text.Client), attribute.String("hedge.route", text.Route),
	} {
		if kv.Value.AsString() != "" {
			s.common = append(s.common, kv)
		}
	}
	set := metric.WithAttributeSet(attribute.NewSet(s.common...))
	s.add, s.record, s.observed = []metric.AddOption{set}, []metric.RecordOption{set}, set
	s.unhedged = s.recordOptions(hedgedAttribute(false))
	s.primaryWon = s.addOptions(attemptAttributes(observe.AttemptInfo{}, observe.Won)...)
	if key.Protocol == "grpc" {
		s.grpcCall = []metric.RecordOption{metric.WithAttributes(
			attribute.String("grpc.method", strings.TrimPrefix(text.Route, "/")), attribute.String("grpc.target", text.Host))}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if known := *o.attributesByKey.Load(); len(known) < maxKeys && key == text { // a name may be very long
		more := maps.Clone(known)
		more[key] = s
		o.attributesByKey.Store(&more)
	}
	return s
}

// addOptions returns options for counters, with the common attributes of the key and the attributes more.
func (s *keyAttributes) addOptions(more ...attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributes(append(s.common[:len(s.common):len(s.common)], more...)...)}
}

// recordOptions returns options for histograms, with the common attributes of the key and the attribute more.
func (s *keyAttributes) recordOptions(more attribute.KeyValue) []metric.RecordOption {
	return []metric.RecordOption{metric.WithAttributes(append(s.common[:len(s.common):len(s.common)], more)...)}
}

// hedgedAttribute returns the attribute hedge.hedged, which says whether a call had a hedge.
func hedgedAttribute(yes bool) attribute.KeyValue { return attribute.Bool("hedge.hedged", yes) }

// attemptType returns the attempt type of gRFC A96: "original" for the primary (n is 0), and "hedge" for a hedge.
func attemptType(n int) string {
	if n > 0 {
		return "hedge"
	}
	return "original"
}

// resumeType is the attempt type of a hedge that requests the remaining bytes of a body.
const resumeType = "resume"

// attemptAttributes returns the attributes hedge.type and hedge.outcome of the attempt a. The type of a retry is "retry", and
// the type of a request for the remaining bytes of a body is "resume".
func attemptAttributes(a observe.AttemptInfo, outcome observe.Outcome) []attribute.KeyValue {
	kind := attemptType(a.Number)
	switch {
	case a.IsRetry:
		kind = "retry"
	case a.IsResumption:
		kind = resumeType
	}
	return []attribute.KeyValue{attribute.String("hedge.type", kind), attribute.String("hedge.outcome", string(outcome))}
}

// AttemptStart implements [observe.Observer]: if the attempt is a hedge, it adds the event hedge.fired to the caller's
// span.
func (o *Observer) AttemptStart(ctx context.Context, _ observe.KeyInfo, a observe.AttemptInfo) {
	if !a.Hedge() {
		return
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent("hedge.fired", trace.WithAttributes(attribute.Int("hedge.attempt", a.Number)))
	}
}

// AttemptDone implements [observe.Observer]: it counts the attempt, except over DNS. If the attempt is a hedge or has lost, it also
// records a span for the attempt.
func (o *Observer) AttemptDone(ctx context.Context, key observe.KeyInfo, a observe.AttemptResult) {
	s := o.attributesFor(key)
	if !a.Hedge() && !a.IsRetry && a.Outcome == observe.Won {
		if key.Protocol != "dns" {
			o.attempts.Add(ctx, 1, s.primaryWon...)
		}
		return
	}
	if a.Outcome != observe.Withdrawn && key.Protocol != "dns" {
		o.attempts.Add(ctx, 1, s.addOptions(attemptAttributes(a.AttemptInfo, a.Outcome)...)...)
	}
	if a.IsResumption && a.Outcome == observe.Won {
		o.wins.Add(ctx, 1, s.addOptions(attribute.String("hedge.type", resumeType))...)
	}
	if (a.Hedge() || a.Outcome == observe.Lost) && trace.SpanContextFromContext(ctx).IsValid() {
		end := time.Now()
		_, span := o.tracer.Start(ctx, "hedge attempt", trace.WithTimestamp(end.Add(-a.Latency)),
			trace.WithAttributes(s.common...), trace.WithAttributes(attemptAttributes(a.AttemptInfo, a.Outcome)...),
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

// RequestDone implements [observe.Observer]: it counts a call that has ended, and records its latency. If the call was
// hedged or its host is audited, it adds attributes to the caller's span.
func (o *Observer) RequestDone(ctx context.Context, key observe.KeyInfo, r observe.RequestResult) {
	s := o.attributesFor(key)
	o.requests.Add(ctx, 1, s.add...)
	if key.Protocol == "dns" {
		o.countQueries(ctx, s, r)
	}
	if r.Attempts > 1 {
		o.recordHedgedCall(ctx, s, r)
	} else {
		o.request.Record(ctx, r.Latency.Seconds(), s.unhedged...)
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
			span.SetAttributes(attribute.String("hedge.winner", attemptType(r.Winner)))
		}
	}
}

// countQueries counts the attempts of a DNS question, whose attributes are s, at the preferred upstream. It replaces
// AttemptDone for DNS. AttemptDone would count a hedge at the upstream that it is sent to, and retransmissions and
// failovers as further primaries.
func (o *Observer) countQueries(ctx context.Context, s *keyAttributes, r observe.RequestResult) {
	for n := range r.Attempts {
		outcome := observe.Lost
		switch {
		case r.Winner < 0:
			outcome = observe.Failed
		case n == r.Winner:
			outcome = observe.Won
		}
		o.attempts.Add(ctx, 1, s.addOptions(attemptAttributes(observe.AttemptInfo{Number: n}, outcome)...)...)
	}
}

// recordHedgedCall records the latency, the winner and the number of hedges of a call that was hedged. s holds the
// attributes of its latency key.
func (o *Observer) recordHedgedCall(ctx context.Context, s *keyAttributes, r observe.RequestResult) {
	o.request.Record(ctx, r.Latency.Seconds(), s.recordOptions(hedgedAttribute(true))...)
	switch {
	case r.HeldBack:
		o.wins.Add(ctx, 1, s.addOptions(attribute.String("hedge.type", "held_back"))...)
	case r.Winner >= 0:
		o.wins.Add(ctx, 1, s.addOptions(attribute.String("hedge.type", attemptType(r.Winner)))...)
	}
	if s.grpcCall != nil {
		o.hedges.Record(ctx, int64(r.Attempts-1), s.grpcCall...)
	}
}

// Denied implements [observe.Observer]: it counts a hedge that was not sent, or a call that could not be hedged, by
// reason. For a hedge that was due, it also adds the event hedge.denied to the caller's span.
func (o *Observer) Denied(ctx context.Context, key observe.KeyInfo, denied observe.Reason) {
	reason := attribute.String("hedge.reason", string(denied))
	o.denied.Add(ctx, 1, o.attributesFor(key).addOptions(reason)...)
	switch denied {
	case observe.DeniedMethod, observe.DeniedBody, observe.DeniedDisabled, observe.DeniedWarming, observe.DeniedNested:
		return // no hedge was due
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent("hedge.denied", trace.WithAttributes(reason))
	}
}

// EndpointEvent implements [observe.Observer]: it counts an attempt at an endpoint, by the kind of the event. Ejections are read
// from the clients.
func (o *Observer) EndpointEvent(key observe.KeyInfo, p observe.EndpointEvent) {
	s := o.attributesFor(key)
	switch ctx := context.Background(); p.Kind {
	case observe.EndpointCalled:
		o.endpointAttempts.Add(ctx, 1, s.endpointAttributes(p, attribute.String("hedge.type", attemptType(0)))...)
	case observe.EndpointHedged:
		o.endpointAttempts.Add(ctx, 1, s.endpointAttributes(p, attribute.String("hedge.type", attemptType(1)))...)
	case observe.EndpointFailed, observe.EndpointOvertaken:
		o.endpointBad.Add(ctx, 1, s.endpointAttributes(p, attribute.String("hedge.outcome", string(p.Kind)))...)
	}
}

// endpointAttributes returns options for counters, with the common attributes of the key, the endpoint of p, and the
// attributes more. The options are cached by p, so the caller must always pass the same attributes for the same p.
func (s *keyAttributes) endpointAttributes(p observe.EndpointEvent, more ...attribute.KeyValue) []metric.AddOption {
	if known, ok := s.endpoints.Load(p); ok {
		return known.([]metric.AddOption)
	}
	endpoint := observe.KeyInfo{Host: p.Endpoint}.Printable().Host
	all := s.addOptions(append(more, attribute.String("hedge.endpoint", endpoint))...)
	s.endpoints.Store(p, all)
	return all
}

// Limited implements [observe.Observer]: it counts a request at a hedge.Limiter by outcome, and records its time in the
// queue.
func (o *Observer) Limited(ctx context.Context, limiter string, r observe.LimiterResult) {
	name := observe.KeyInfo{Client: limiter}.Printable().Client
	outcome := metric.WithAttributes(attribute.String("hedge.limiter", name), attribute.String("hedge.outcome", string(r.Outcome)))
	o.limited.Add(ctx, 1, outcome)
	o.waited.Record(ctx, r.Waited.Seconds(), outcome)
}
