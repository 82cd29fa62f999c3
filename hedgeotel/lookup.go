package hedgeotel

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/gohedge/hedge/observe"
)

// lookupBounds are the upper bounds of the buckets of dns.lookup.duration in OpenTelemetry's conventions, in seconds.
var lookupBounds = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}

// LookupDone records a DNS question in the metric dns.lookup.duration. If the span of the call that waited for it is
// recorded, the span gets the event dns.lookup. A [dnshedge.Client] calls it if it is its Trace.Lookup:
//
//	client := &dnshedge.Client{Trace: &dnshedge.Trace{Lookup: observer.LookupDone}}
//
// [dnshedge.Client]: https://pkg.go.dev/github.com/gohedge/hedge/dnshedge#Client
func (o *Observer) LookupDone(ctx context.Context, l observe.DNSLookup) {
	name := observe.KeyInfo{Host: strings.TrimSuffix(l.Name, ".")}.Printable().Host
	attributes := []attribute.KeyValue{attribute.String("dns.question.name", name)}
	if l.ErrorType != "" {
		attributes = append(attributes, attribute.String("error.type", l.ErrorType))
	}
	o.lookup.Record(ctx, l.Duration.Seconds(), metric.WithAttributes(attributes...))
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent("dns.lookup", trace.WithAttributes(attributes...),
			trace.WithAttributes(attribute.Float64("dns.lookup.duration", l.Duration.Seconds())))
	}
}
