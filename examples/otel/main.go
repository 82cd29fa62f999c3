// Otel makes one hedged call under a span and prints the spans: the caller's, and
// below it one for each attempt. The span of the loser ends with the call, and is not
// an error. The SDK keeps the spans in memory, where a program would have an exporter.
//
//	go -C examples/otel run .
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeotel"
)

func main() {
	log.SetFlags(0)
	var asked atomic.Bool // whether the item was
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := 5 * time.Millisecond
		if r.URL.Path == "/item" && !asked.Swap(true) {
			d = 100 * time.Millisecond // the first attempt is slow
		}
		select {
		case <-time.After(d):
			fmt.Fprint(w, "hello")
		case <-r.Context().Done():
		}
	}))
	server.EnableHTTP2 = true // over which a loser is cancelled at once
	server.StartTLS()
	defer server.Close()

	memory := tracetest.NewInMemoryExporter() // or otlptracegrpc.New(ctx)
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(memory))
	observer, err := hedgeotel.New(hedgeotel.WithTracerProvider(tracers))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: hedge.New(server.Client().Transport,
		hedge.WithName("shop"), hedge.WithObserver(observer), hedge.WithMaxHedges(1))}

	for range 20 { // teach it how long a call takes
		if err := get(context.Background(), client, server.URL); err != nil {
			log.Fatal(err)
		}
	}
	ctx, span := tracers.Tracer("shop").Start(context.Background(), "show item")
	err = get(ctx, client, server.URL+"/item")
	span.End()
	if err != nil {
		log.Fatal(err)
	}
	for end := time.Now().Add(time.Second); len(memory.GetSpans()) < 3 && time.Now().Before(end); { // the loser's ends a moment later
		time.Sleep(time.Millisecond)
	}
	print(memory.GetSpans())
}

// print shows the caller's span and those below it, in the order of their start.
func print(spans tracetest.SpanStubs) {
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int {
		return cmp.Or(a.StartTime.Compare(b.StartTime), b.EndTime.Compare(a.EndTime))
	})
	start := spans[0].StartTime
	at := func(t time.Time) time.Duration { return t.Sub(start).Round(100 * time.Microsecond) }
	for _, s := range spans {
		loser := ""
		if slices.Contains(s.Attributes, attribute.String("hedge.outcome", string(hedge.Lost))) {
			loser = "   <- the loser"
		}
		indent := ""
		if s.Parent.IsValid() {
			indent = "  "
		}
		fmt.Printf("%-16s %6v to %6v  status %v%s\n", indent+s.Name, at(s.StartTime), at(s.EndTime), s.Status.Code, loser)
		for _, e := range s.Events {
			fmt.Printf("  event %s at %v%s\n", e.Name, at(e.Time), list(e.Attributes))
		}
		fmt.Printf("%s %s\n", indent, list(s.Attributes))
	}
}

func list(attributes []attribute.KeyValue) string {
	var b strings.Builder
	for _, a := range attributes {
		fmt.Fprintf(&b, " %s=%s", a.Key, a.Value.Emit())
	}
	return b.String()
}

func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
