// Package hedgeotel tells OpenTelemetry what hedging does. It needs the API
// only; what becomes of metrics and spans is the program's SDK's business.
//
//	observer, err := hedgeotel.New()
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport,
//		hedge.WithName("shop"), hedge.WithObserver(observer))}
//
// The words are those of gRFC A96: an attempt is original or hedge.
//
// # Metrics
//
//	hedge.requests   calls
//	hedge.attempts   by hedge.type and hedge.outcome: won, lost or failed
//	hedge.denied     hedges, or calls, that were not allowed, by hedge.reason
//	hedge.saved      histogram of what each win of a hedge saved, estimated, in seconds
//	hedge.delay      after which the latest call was to be hedged, in seconds
//	hedge.budget     hedges that the budget would pay for, when last asked
//
// All have server.address (or the gRPC target, or the key of [hedge.Do]),
// hedge.protocol, hedge.client (see [hedge.WithName]) and hedge.route, the last
// two where there is one. Many hosts are the business of the SDK's cardinality limit.
//
// # Spans
//
// The caller's span, if it is recorded, gets an event for each hedge that is sent
// (hedge.fired) or was due and not allowed (hedge.denied), and if there were
// hedges, the attributes hedge.attempts and hedge.winner. Each hedge, and a
// primary that lost to one, is a span below it, with hedge.outcome. Losing is no
// error: only an attempt that failed by itself has the status.
//
// Instrumentation below the hedging, such as otelhttp around the base transport,
// makes spans of its own for each attempt. It takes the cancellation of a loser for
// an error; its description says that another attempt won.
package hedgeotel

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/gohedge/hedge"
)

const scope = "github.com/gohedge/hedge/hedgeotel"

// An Observer is a [hedge.Observer] for any number of clients, of all
// protocols. It is safe for concurrent use.
type Observer struct {
	hedge.NopObserver
	tracer trace.Tracer

	requests, attempts, denied metric.Int64Counter
	saved                      metric.Float64Histogram
	delay, budget              metric.Float64Gauge

	sets atomic.Pointer[map[hedge.KeyInfo]*sets] // replaced, never changed
	mu   sync.Mutex                              // held to replace it
}

var _ hedge.Observer = (*Observer)(nil)

// An Option adjusts [New].
type Option func(*settings)

type settings struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
}

// WithMeterProvider sends metrics to mp. The default is the global one.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return func(s *settings) { s.meters = mp }
}

// WithTracerProvider sends spans to tp. The default is the global one.
func WithTracerProvider(tp trace.TracerProvider) Option {
	return func(s *settings) { s.tracers = tp }
}

// New returns an Observer, or the error of a provider that refuses an instrument.
func New(opts ...Option) (*Observer, error) {
	s := settings{otel.GetMeterProvider(), otel.GetTracerProvider()}
	for _, o := range opts {
		o(&s)
	}
	m := s.meters.Meter(scope)
	o := &Observer{tracer: s.tracers.Tracer(scope)}
	o.sets.Store(&map[hedge.KeyInfo]*sets{})
	var errs [6]error
	o.requests, errs[0] = m.Int64Counter("hedge.requests", metric.WithUnit("{request}"), metric.WithDescription("Calls."))
	o.attempts, errs[1] = m.Int64Counter("hedge.attempts", metric.WithUnit("{attempt}"),
		metric.WithDescription("What was sent for the calls, by type and outcome."))
	o.denied, errs[2] = m.Int64Counter("hedge.denied", metric.WithUnit("{hedge}"),
		metric.WithDescription("Hedges that were due, or calls, that were not allowed, by reason."))
	o.saved, errs[3] = m.Float64Histogram("hedge.saved", metric.WithUnit("s"),
		metric.WithDescription("What each win of a hedge saved, estimated."),
		metric.WithExplicitBucketBoundaries(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20))
	o.delay, errs[4] = m.Float64Gauge("hedge.delay", metric.WithUnit("s"),
		metric.WithDescription("After which the latest call was to be hedged; 0: not at all."))
	o.budget, errs[5] = m.Float64Gauge("hedge.budget", metric.WithUnit("{hedge}"),
		metric.WithDescription("Hedges that the budget would pay for, when last asked."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return o, nil
}

// sets are the attributes of one key, as options that need not be made again.
type sets struct {
	common []attribute.KeyValue
	add    []metric.AddOption
	record []metric.RecordOption
	won    []metric.AddOption // of an original that won, which most attempts are
}

// maxSets bounds the keys whose attributes are kept; those of others are made each time.
const maxSets = 4096

func (o *Observer) of(key hedge.KeyInfo) *sets {
	if s := (*o.sets.Load())[key]; s != nil {
		return s
	}
	s := new(sets)
	for _, kv := range [...]attribute.KeyValue{
		attribute.String("server.address", key.Host), attribute.String("hedge.protocol", key.Protocol),
		attribute.String("hedge.client", key.Client), attribute.String("hedge.route", key.Route),
	} {
		if kv.Value.AsString() != "" {
			s.common = append(s.common, kv)
		}
	}
	set := metric.WithAttributeSet(attribute.NewSet(s.common...))
	s.add, s.record = []metric.AddOption{set}, []metric.RecordOption{set}
	s.won = s.with(attempt(0, hedge.Won)...)
	o.mu.Lock()
	defer o.mu.Unlock()
	if known := *o.sets.Load(); len(known) < maxSets {
		more := maps.Clone(known)
		more[key] = s
		o.sets.Store(&more)
	}
	return s
}

// with returns the attributes and more.
func (s *sets) with(more ...attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributes(append(s.common[:len(s.common):len(s.common)], more...)...)}
}

// kind is A96's word for attempt n.
func kind(n int) string {
	if n > 0 {
		return "hedge"
	}
	return "original"
}

func attempt(n int, how hedge.Outcome) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("hedge.type", kind(n)), attribute.String("hedge.outcome", string(how))}
}

// AttemptStart tells the caller's span of a hedge.
func (o *Observer) AttemptStart(ctx context.Context, _ hedge.KeyInfo, a hedge.AttemptInfo) {
	if !a.Hedge() {
		return
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent("hedge.fired", trace.WithAttributes(attribute.Int("hedge.attempt", a.Number)))
	}
}

// AttemptDone counts an attempt, and makes it a span if it is a hedge or lost.
func (o *Observer) AttemptDone(ctx context.Context, key hedge.KeyInfo, a hedge.AttemptResult) {
	s := o.of(key)
	if !a.Hedge() && a.Outcome == hedge.Won {
		o.attempts.Add(ctx, 1, s.won...)
		return
	}
	o.attempts.Add(ctx, 1, s.with(attempt(a.Number, a.Outcome)...)...)
	if (a.Hedge() || a.Outcome == hedge.Lost) && trace.SpanContextFromContext(ctx).IsValid() {
		end := time.Now()
		_, span := o.tracer.Start(ctx, "hedge attempt", trace.WithTimestamp(end.Add(-a.Latency)),
			trace.WithAttributes(s.common...), trace.WithAttributes(attempt(a.Number, a.Outcome)...),
			trace.WithAttributes(attribute.Int("hedge.attempt", a.Number)))
		if a.Outcome == hedge.Failed {
			span.SetStatus(codes.Error, "attempt failed")
		}
		span.End(trace.WithTimestamp(end))
	}
}

// RequestDone counts a call, and tells its span if it was hedged.
func (o *Observer) RequestDone(ctx context.Context, key hedge.KeyInfo, r hedge.RequestResult) {
	s := o.of(key)
	o.requests.Add(ctx, 1, s.add...)
	o.delay.Record(ctx, r.Delay.Seconds(), s.record...)
	if r.Winner > 0 || r.Saved > 0 { // by a hedge that was not sent
		o.saved.Record(ctx, r.Saved.Seconds(), s.record...)
	}
	if span := trace.SpanFromContext(ctx); r.Attempts > 1 && span.IsRecording() {
		span.SetAttributes(attribute.Int("hedge.attempts", r.Attempts))
		if r.Winner >= 0 {
			span.SetAttributes(attribute.String("hedge.winner", kind(r.Winner)))
		}
	}
}

// Denied counts a refusal, and tells the caller's span if a hedge was due.
func (o *Observer) Denied(ctx context.Context, key hedge.KeyInfo, why hedge.Reason) {
	reason := attribute.String("hedge.reason", string(why))
	o.denied.Add(ctx, 1, o.of(key).with(reason)...)
	switch why {
	case hedge.DeniedMethod, hedge.DeniedBody, hedge.DeniedDisabled, hedge.DeniedWarming, hedge.DeniedNested:
		return // as every such call is: no news
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent("hedge.denied", trace.WithAttributes(reason))
	}
}

// Budget remembers what is left.
func (o *Observer) Budget(key hedge.KeyInfo, tokens float64) {
	o.budget.Record(context.Background(), tokens, o.of(key).record...)
}
