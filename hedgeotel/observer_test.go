package hedgeotel_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeotel"
	"github.com/gohedge/hedge/internal/doubles"

	"github.com/gohedge/hedge/internal/metricstest"
)

const ms = time.Millisecond

var errDown = errors.New("connection refused")

// telemetry is an Observer with an SDK that keeps its metrics and spans.
type telemetry struct {
	*hedgeotel.Observer
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer
	reader *sdkmetric.ManualReader
}

func newTelemetry(t *testing.T) *telemetry {
	r := &telemetry{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	r.tracer = tracers.Tracer("test")
	var err error
	r.Observer, err = hedgeotel.New(hedgeotel.WithTracerProvider(tracers),
		hedgeotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))))
	require.NoError(t, err)
	return r
}

// metrics returns sums, counts and gauges by name and attributes. For a metric of single calls it returns the sum.
func (r *telemetry) metrics(t *testing.T) map[string]float64 {
	var rm metricdata.ResourceMetrics
	require.NoError(t, r.reader.Collect(t.Context(), &rm))
	all := make(map[string]float64)
	name := func(m metricdata.Metrics, set attribute.Set) string {
		return m.Name + " " + set.Encoded(attribute.DefaultEncoder())
	}
	if len(rm.ScopeMetrics) == 0 { // no metric has a value yet
		return all
	}
	for _, m := range rm.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				all[name(m, p.Attributes)] = float64(p.Value)
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				all[name(m, p.Attributes)] = p.Value
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				all[name(m, p.Attributes)] = float64(p.Count)
			}
		case metricdata.Histogram[int64]:
			for _, p := range data.DataPoints {
				all[name(m, p.Attributes)] = float64(p.Sum)
			}
		}
	}
	return all
}

// call makes a call under a span. Its attempt n takes the n-th duration, and fails if that is negative.
func (r *telemetry) call(ctx context.Context, h *hedge.Hedger, takes ...time.Duration) {
	ctx, span := r.tracer.Start(ctx, "caller")
	defer span.End()
	_, _ = hedge.Do(ctx, h, "db", func(ctx context.Context) (int, error) {
		a, _ := hedge.AttemptFromContext(ctx)
		d := takes[a.Number]
		if err := doubles.Sleep(ctx, max(d, -d)); err != nil {
			return 0, err
		}
		if d < 0 {
			return 0, errDown
		}
		return 0, nil
	})
}

func TestObserverCountsRequestsToLimiterByOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTelemetry(t)
		l := hedge.NewLimiter(1, hedge.WithObserver(r), hedge.WithName("shop"))
		h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(100 * ms) }))
		for i := range 7 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
			defer cancel()
			req := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
			if i == 6 {
				req.Header.Set(hedge.AttemptHeader, "1")
			}
			go h.ServeHTTP(httptest.NewRecorder(), req)
			synctest.Wait()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		all := r.metrics(t)
		for outcome, want := range map[string]float64{"worked": 1, "left": 5, "refused": 1} {
			assert.Equal(t, want, all["hedge.limiter.requests hedge.limiter=shop,hedge.outcome="+outcome], all)
			assert.Equal(t, want, all["hedge.limiter.waited hedge.limiter=shop,hedge.outcome="+outcome], all)
		}
	})
}

func TestObserverAcceptsAnyHost(t *testing.T) {
	r := newTelemetry(t)
	h := hedge.NewHedger(hedge.WithObserver(r))
	for _, key := range []string{"user-\xff", "user-\xfe", strings.Repeat("a", 10000), "a\nb"} {
		ctx, span := r.tracer.Start(t.Context(), "caller")
		_, err := hedge.Do(ctx, h, key, func(context.Context) (int, error) { return 0, nil })
		require.NoError(t, err)
		span.End()
	}
	all := r.metrics(t)
	for key, n := range map[string]float64{"user-�": 2, hedge.KeyInfo{Host: strings.Repeat("a", 10000)}.Printable().Host: 1, "a�b": 1} {
		assert.Equal(t, n, all["hedge.requests hedge.protocol=func,server.address="+key], "%.300v", all)
	}
}

func TestNewIgnoresNilOptionsAndProviders(t *testing.T) {
	o, err := hedgeotel.New(nil, hedgeotel.WithMeterProvider(nil), hedgeotel.WithTracerProvider(nil))
	require.NoError(t, err)
	o.RequestDone(t.Context(), hedge.KeyInfo{}, hedge.RequestResult{Attempts: 1})
}

func TestObserverCountsAnswersNotTaken(t *testing.T) {
	r := newTelemetry(t)
	r.RequestDone(t.Context(), hedge.KeyInfo{Host: "db"}, hedge.RequestResult{Attempts: 3, AnswersNotTaken: 2})
	assert.EqualValues(t, 2, r.metrics(t)["hedge.answers_not_taken server.address=db"])
}

func TestObserverUsesAttributeValuesOfA96(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTelemetry(t)
		h := hedge.NewHedger(hedge.WithName("shop"), hedge.WithObserver(r), hedge.WithMaxHedges(1))
		for range 10 {
			r.call(t.Context(), h, 10*ms)
		}
		r.call(t.Context(), h, 90*ms, 20*ms) // the hedge wins
		r.call(t.Context(), h, 90*ms, -ms)   // it fails
		got := r.metrics(t)
		key := func(name string) string { return name + " hedge.client=shop,hedge.protocol=func,server.address=db" }
		assert.InDelta(t, h.Snapshot().Keys[0].Budget, got[key("hedge.budget.tokens")], 0.2)
		assert.InDelta(t, 0.1, got[key("hedge.budget.ratio")], 1e-9)
		assert.InDelta(t, 0.010, got[key("hedge.delay")], 0.001)
		for _, gauge := range []string{"hedge.budget.tokens", "hedge.budget.ratio", "hedge.delay"} {
			delete(got, key(gauge))
		}
		of := func(name, attribute, more string) string {
			return fmt.Sprintf("%s hedge.client=shop,%shedge.protocol=func,%sserver.address=db", name, attribute, more)
		}
		attempts := func(kind, outcome string) string {
			return fmt.Sprintf("hedge.attempts hedge.client=shop,hedge.outcome=%s,hedge.protocol=func,hedge.type=%s,server.address=db", outcome, kind)
		}
		assert.Equal(t, map[string]float64{
			key("hedge.requests"): 12,
			key("hedge.saved"):    1,

			of("hedge.request", "hedge.hedged=false,", ""): 10,
			of("hedge.request", "hedge.hedged=true,", ""):  2,
			of("hedge.wins", "", "hedge.type=original,"):   1,
			of("hedge.wins", "", "hedge.type=hedge,"):      1,

			attempts("original", "won"):  11,
			attempts("original", "lost"): 1,
			attempts("hedge", "won"):     1,
			attempts("hedge", "failed"):  1,
			"hedge.denied hedge.client=shop,hedge.protocol=func,hedge.reason=warming,server.address=db": 10,
		}, got)
	})
}

func TestObserverCountsHedgesOfGRPCCalls(t *testing.T) {
	r := newTelemetry(t)
	grpc := hedge.KeyInfo{Protocol: "grpc", Host: "dns:///shop", Route: "/shop.v1.Catalog/GetItem"}
	for _, attempts := range []int{1, 2, 3, 3} {
		r.RequestDone(t.Context(), grpc, hedge.RequestResult{Attempts: attempts, Winner: -1})
		r.RequestDone(t.Context(), hedge.KeyInfo{Protocol: "http", Host: "shop"}, hedge.RequestResult{Attempts: attempts, Winner: -1})
	}
	got := make(map[string]float64)
	for name, value := range r.metrics(t) {
		if strings.HasPrefix(name, "grpc.") || strings.HasPrefix(name, "hedge.wins") {
			got[name] = value
		}
	}
	assert.Equal(t, map[string]float64{"grpc.client.call.hedges grpc.method=shop.v1.Catalog/GetItem,grpc.target=dns:///shop": 1 + 2 + 2}, got)
}

// TestPrometheusExporterUsesNamesOfHedgeprom turns the names into those of Prometheus, as OpenTelemetry's
// compatibility specification says, and compares them with the first table of docs/operations.md.
func TestPrometheusExporterUsesNamesOfHedgeprom(t *testing.T) {
	r := newTelemetry(t)
	call := hedge.RequestResult{Attempts: 2, Winner: 1, Saved: ms, AnswersNotTaken: 1}
	r.RequestDone(t.Context(), hedge.KeyInfo{Protocol: "grpc"}, call)
	r.AttemptDone(t.Context(), hedge.KeyInfo{}, hedge.AttemptResult{Outcome: hedge.Won})
	r.Denied(t.Context(), hedge.KeyInfo{}, hedge.DeniedBudget)
	r.ClientCreated(metricstest.StateOf(fullState))
	for _, kind := range []hedge.EndpointKind{hedge.EndpointCalled, hedge.EndpointFailed} {
		r.EndpointEvent(hedge.KeyInfo{}, hedge.EndpointEvent{Kind: kind})
	}
	var rm metricdata.ResourceMetrics
	require.NoError(t, r.reader.Collect(t.Context(), &rm))
	doc, err := os.ReadFile("observer.go")
	require.NoError(t, err)
	var exported []string
	for _, m := range rm.ScopeMetrics[0].Metrics {
		assert.Contains(t, string(doc), "\n//\t"+m.Name+" ", "the package doc lacks a metric")
		name := strings.ReplaceAll(m.Name, ".", "_")
		if m.Unit == "s" {
			name += "_seconds"
		}
		if _, isGauge := m.Data.(metricdata.Gauge[float64]); isGauge && m.Unit == "1" && !strings.HasSuffix(name, "_ratio") {
			name += "_ratio"
		}
		if sum, isCounter := m.Data.(metricdata.Sum[int64]); isCounter && sum.IsMonotonic {
			name += "_total"
		}
		exported = append(exported, name)
	}
	documented := []string{"grpc_client_call_hedges"} // gRFC A96's name, for modules alike
	metric := regexp.MustCompile(`^hedge_\w+`)
	for _, number := range metricstest.DocumentedNumbers(t, "../docs", "number of a client") {
		if name := metric.FindString(number.Metric); name != "" {
			documented = append(documented, strings.TrimSuffix(name, "_count"))
		}
	}
	slices.Sort(documented)
	doubles.AssertSameNames(t, "docs/operations.md", exported, slices.Compact(documented))
}

// TestObserverCountsAttemptsByEndpoint has two routes of a host, of which each has an opinion of its endpoints.
func TestObserverCountsAttemptsByEndpoint(t *testing.T) {
	r := newTelemetry(t)
	for _, route := range []string{"/a", "/b"} {
		key := hedge.KeyInfo{Client: "shop", Protocol: "grpc", Host: "near", Route: route}
		for range 3 {
			r.EndpointEvent(key, hedge.EndpointEvent{Endpoint: "dns:///near", Kind: hedge.EndpointCalled})
		}
		r.EndpointEvent(key, hedge.EndpointEvent{Endpoint: "dns:///far\xff", Kind: hedge.EndpointHedged})
		r.EndpointEvent(key, hedge.EndpointEvent{Endpoint: "dns:///near", Kind: hedge.EndpointFailed})
		r.EndpointEvent(key, hedge.EndpointEvent{Endpoint: "dns:///near", Kind: hedge.EndpointOvertaken})
		r.EndpointEvent(key, hedge.EndpointEvent{Endpoint: "dns:///near", Kind: "of a later version"})
	}
	want := make(map[string]float64)
	for _, route := range []string{"/a", "/b"} {
		of := func(name, outcome, endpoint, kind string) string {
			return fmt.Sprintf("%s hedge.client=shop,hedge.endpoint=dns:///%s,%shedge.protocol=grpc,hedge.route=%s,%sserver.address=near", name, endpoint, outcome, route, kind)
		}
		want[of("hedge.endpoint.attempts", "", "near", "hedge.type=original,")] = 3
		want[of("hedge.endpoint.attempts", "", "far\uFFFD", "hedge.type=hedge,")] = 1
		want[of("hedge.endpoint.bad", "hedge.outcome=failed,", "near", "")] = 1
		want[of("hedge.endpoint.bad", "hedge.outcome=overtaken,", "near", "")] = 1
	}
	assert.Equal(t, want, r.metrics(t))
}

func BenchmarkEndpointEvent(b *testing.B) {
	o, err := hedgeotel.New(hedgeotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		o.EndpointEvent(hedge.KeyInfo{Client: "shop", Host: "near.test", Protocol: "http"}, hedge.EndpointEvent{Endpoint: "http://near.test/api", Kind: hedge.EndpointCalled})
	}
}

func attributeMap(kvs []attribute.KeyValue) map[string]string {
	all := make(map[string]string)
	for _, kv := range kvs {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

func TestObserverRecordsLoserAsSpanWithoutError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTelemetry(t)
		h := hedge.NewHedger(hedge.WithObserver(r), hedge.WithMaxHedges(1))
		start := time.Now()
		r.call(hedge.WithDelay(t.Context(), 10*ms), h, time.Second, 5*ms)
		spans := r.spans.Ended()
		require.Len(t, spans, 3)
		won, lost, caller := spans[0], spans[1], spans[2]
		for _, s := range spans[:2] {
			assert.Equal(t, "hedge attempt", s.Name())
			assert.Equal(t, caller.SpanContext().SpanID(), s.Parent().SpanID())
			assert.Equal(t, codes.Unset, s.Status().Code, "to lose is no error")
		}
		assert.Equal(t, map[string]string{
			"server.address": "db", "hedge.protocol": "func", "hedge.attempt": "1", "hedge.type": "hedge", "hedge.outcome": "won",
		}, attributeMap(won.Attributes()))
		assert.Equal(t, map[string]string{
			"server.address": "db", "hedge.protocol": "func", "hedge.attempt": "0", "hedge.type": "original", "hedge.outcome": "lost",
		}, attributeMap(lost.Attributes()))
		assert.Equal(t, 10*ms, won.StartTime().Sub(start))
		assert.Equal(t, 15*ms, won.EndTime().Sub(start))
		assert.Equal(t, start, lost.StartTime())
		assert.Equal(t, map[string]string{"hedge.attempts": "2", "hedge.winner": "hedge"}, attributeMap(caller.Attributes()))
		require.Len(t, caller.Events(), 1)
		assert.Equal(t, "hedge.fired", caller.Events()[0].Name)
	})
}

func TestObserverRecordsFailedHedgeAsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTelemetry(t)
		h := hedge.NewHedger(hedge.WithObserver(r), hedge.WithMaxHedges(1))
		r.call(hedge.WithDelay(t.Context(), 10*ms), h, 90*ms, -ms)
		spans := r.spans.Ended()
		require.Len(t, spans, 2, "a primary that did not lose has no span")
		assert.Equal(t, codes.Error, spans[0].Status().Code)
		assert.Equal(t, "original", attributeMap(spans[1].Attributes())["hedge.winner"])
	})
}

func TestObserverAddsEventForDeniedHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTelemetry(t)
		empty := hedge.NewBudget(0.001, 1)
		require.True(t, empty.Spend())
		h := hedge.NewHedger(hedge.WithObserver(r), hedge.WithBudget(empty))
		r.call(t.Context(), h, 5*ms)
		r.call(hedge.WithDelay(t.Context(), 10*ms), h, 15*ms)
		spans := r.spans.Ended()
		require.Len(t, spans, 2)
		assert.Empty(t, spans[0].Events(), "a call that could not be hedged has no event")
		assert.Equal(t, map[string]string{"hedge.reason": "budget"}, attributeMap(spans[1].Events()[0].Attributes))
	})
}

func TestObserverAddsNoEventForCallWithoutHedges(t *testing.T) {
	r := newTelemetry(t)
	ctx, span := r.tracer.Start(t.Context(), "caller")
	for _, why := range []hedge.Reason{hedge.DeniedWarming, hedge.DeniedDisabled, hedge.DeniedMethod, hedge.DeniedBody, hedge.DeniedNested} {
		r.Denied(ctx, hedge.KeyInfo{Host: "db"}, why)
	}
	r.Denied(ctx, hedge.KeyInfo{Host: "db"}, hedge.DeniedSlow)
	span.End()
	events := r.spans.Ended()[0].Events()
	require.Len(t, events, 1)
	assert.Equal(t, map[string]string{"hedge.reason": "slow"}, attributeMap(events[0].Attributes))
}

func TestModuleImportsOnlyAPI(t *testing.T) {
	deps, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	assert.NotContains(t, string(deps), "go.opentelemetry.io/otel/sdk")
	assert.Contains(t, string(deps), "go.opentelemetry.io/otel/metric")
}

func TestObserverMakesNoSpanWithoutParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTelemetry(t)
		h := hedge.NewHedger(hedge.WithObserver(r), hedge.WithMaxHedges(1))
		_, err := hedge.Do(hedge.WithDelay(t.Context(), 10*ms), h, "db", func(ctx context.Context) (int, error) {
			time.Sleep(15 * ms)
			return 0, nil
		})
		require.NoError(t, err)
		time.Sleep(time.Second)
		assert.Empty(t, r.spans.Started())
	})
}

// BenchmarkCall measures a call that needs no hedge and has no span, with and without metrics.
func BenchmarkCall(b *testing.B) {
	observer, err := hedgeotel.New(hedgeotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))))
	require.NoError(b, err)
	resp := &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody}
	for _, bench := range []struct {
		name string
		opts []hedge.HTTPOption
	}{{"alone", nil}, {"observed", []hedge.HTTPOption{hedge.WithObserver(observer)}}} {
		b.Run(bench.name, func(b *testing.B) {
			tr := hedge.New(doubles.RoundTripperFunc(func(*http.Request) (*http.Response, error) { return resp, nil }), bench.opts...)
			req, err := http.NewRequestWithContext(b.Context(), "GET", "http://catalog.test/item", nil)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = tr.RoundTrip(req)
			}
		})
	}
}

func Example() {
	spans := tracetest.NewSpanRecorder() // or an exporter
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	observer, err := hedgeotel.New(hedgeotel.WithTracerProvider(tracers))
	if err != nil {
		fmt.Println(err)
		return
	}
	hedger := hedge.NewHedger(hedge.WithObserver(observer))

	ctx, span := tracers.Tracer("shop").Start(context.Background(), "show item")
	ctx = hedge.WithDelay(ctx, 10*time.Millisecond) // to hedge the very first call
	_, _ = hedge.Do(ctx, hedger, "catalog", func(ctx context.Context) (string, error) {
		if a, _ := hedge.AttemptFromContext(ctx); !a.Hedge() {
			<-ctx.Done() // stuck
			return "", ctx.Err()
		}
		return "hello", nil
	})
	span.End()
	for _, s := range spans.Ended() {
		fmt.Println(s.Name(), len(s.Events()))
	}
	// Output:
	// hedge attempt 0
	// hedge attempt 0
	// show item 1
}

func TestObserverAddsAuditToSpan(t *testing.T) {
	for verdict, opts := range map[string][]hedge.FuncOption{"trying": {hedge.WithAudit()}, "": nil} {
		synctest.Test(t, func(t *testing.T) {
			r := newTelemetry(t)
			r.call(t.Context(), hedge.NewHedger(append(opts, hedge.WithObserver(r))...), 5*ms)
			assert.Equal(t, verdict, attributeMap(r.spans.Ended()[0].Attributes())["hedge.audit"])
		})
	}
}

// TestGaugesEndWithClient also reads the metrics while clients are created and make calls.
func TestGaugesEndWithClient(t *testing.T) {
	r := newTelemetry(t)
	gauges := func() (names []string) {
		for name := range r.metrics(t) {
			if strings.HasPrefix(name, "hedge.delay") || strings.HasPrefix(name, "hedge.budget") {
				names = append(names, name)
			}
		}
		return names
	}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for range 20 {
				h := hedge.NewHedger(hedge.WithObserver(r), hedge.WithName(fmt.Sprint(i)), hedge.WithAudit())
				for range 20 {
					_, err := hedge.Do(t.Context(), h, "db", func(context.Context) (int, error) { return 0, nil })
					assert.NoError(t, err)
				}
			}
		})
	}
	for range 20 {
		gauges()
	}
	wg.Wait()
	h := hedge.NewHedger(hedge.WithObserver(r), hedge.WithName("last"))
	_, err := hedge.Do(t.Context(), h, "db", func(context.Context) (int, error) { return 0, nil })
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		runtime.GC()
		return len(gauges()) == 3
	}, 20*time.Second, 10*time.Millisecond, "the gauges of one client")
	runtime.KeepAlive(h)
}

// TestMeterProviderDoesNotKeepObserverAlive has a program that creates many Observers for the same provider.
func TestMeterProviderDoesNotKeepObserverAlive(t *testing.T) {
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	o, err := hedgeotel.New(hedgeotel.WithMeterProvider(provider))
	require.NoError(t, err)
	observer := weak.Make(o)
	runtime.KeepAlive(o)
	require.Eventually(t, func() bool {
		runtime.GC()
		return observer.Value() == nil
	}, 20*time.Second, 10*time.Millisecond)
	runtime.KeepAlive(provider)
}
