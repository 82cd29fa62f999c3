package hedgeprom_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/metricstest"
	"github.com/gohedge/hedge/observe"
)

// sleeps returns a function whose attempt n takes the n-th duration.
func sleeps(ds ...time.Duration) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		a, _ := hedge.AttemptFromContext(ctx)
		return a.Number, doubles.Sleep(ctx, ds[a.Number])
	}
}

const ms = time.Millisecond

func TestCollectorCountsEvents(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithBuckets(0.1, 1))
	synctest.Test(t, func(t *testing.T) {
		h := hedge.NewHedger(hedge.WithName("shop"), hedge.WithObserver(c), hedge.WithMaxHedges(1))
		call := func(ctx context.Context, f func(context.Context) (int, error)) {
			_, err := hedge.Do(ctx, h, "db", f)
			require.NoError(t, err)
		}
		for range 10 {
			call(t.Context(), sleeps(10*ms))
		}
		call(t.Context(), sleeps(90*ms, 200*ms))
		call(t.Context(), sleeps(90*ms, 20*ms))
		call(hedge.WithoutHedging(t.Context()), sleeps(ms))
		key := h.Snapshot().Keys[0]
		assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(fmt.Sprintf(`
# HELP hedge_budget_tokens Hedges that the budget can pay for now.
# TYPE hedge_budget_tokens gauge
hedge_budget_tokens{client="shop",host="db",protocol="func"} %v
# HELP hedge_delay_seconds Delay after which the next call will be hedged; 0 if it will not.
# TYPE hedge_delay_seconds gauge
hedge_delay_seconds{client="shop",host="db",protocol="func"} %v
`, key.Budget, key.Delays[0].Seconds())), "hedge_budget_tokens", "hedge_delay_seconds"))
	})
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_attempts_total Attempts that were sent for the calls, by type.
# TYPE hedge_attempts_total counter
hedge_attempts_total{client="shop",host="db",protocol="func",type="hedge"} 2
hedge_attempts_total{client="shop",host="db",protocol="func",type="original"} 13
# HELP hedge_denied_total Hedges that were due and not sent, and calls that could not be hedged, by reason.
# TYPE hedge_denied_total counter
hedge_denied_total{client="shop",host="db",protocol="func",reason="disabled"} 1
hedge_denied_total{client="shop",host="db",protocol="func",reason="warming"} 10
# HELP hedge_requests_total Calls.
# TYPE hedge_requests_total counter
hedge_requests_total{client="shop",host="db",protocol="func"} 13
# HELP hedge_wins_total Hedged calls that were answered, and bodies that were resumed, by the type of the attempt that answered.
# TYPE hedge_wins_total counter
hedge_wins_total{client="shop",host="db",protocol="func",type="hedge"} 1
hedge_wins_total{client="shop",host="db",protocol="func",type="original"} 1
`), "hedge_attempts_total", "hedge_denied_total", "hedge_requests_total", "hedge_wins_total"))
	assert.Equal(t, 1, testutil.CollectAndCount(c, "hedge_saved_seconds"))
}

func TestCollectorCountsNoWinForHeldBackResult(t *testing.T) {
	c := hedgeprom.New()
	c.RequestDone(t.Context(), hedge.KeyInfo{Host: "db", Protocol: "func"}, hedge.RequestResult{Attempts: 2, Winner: 1, HeldBack: true})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_wins_total Hedged calls that were answered, and bodies that were resumed, by the type of the attempt that answered.
# TYPE hedge_wins_total counter
hedge_wins_total{client="",host="db",protocol="func",type="held_back"} 1
`), "hedge_wins_total", "hedge_saved_seconds"))
}

func TestCollectorMetricsHaveValidNames(t *testing.T) {
	c := hedgeprom.New()
	c.RequestDone(t.Context(), hedge.KeyInfo{Host: "a"}, hedge.RequestResult{Attempts: 2, Winner: 1})
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestHostsAboveLimitShareLabel(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithMaxHosts(2))
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			key := hedge.KeyInfo{Client: fmt.Sprint(i % 2), Host: fmt.Sprint("h", i), Protocol: "http"}
			c.RequestDone(t.Context(), key, hedge.RequestResult{Attempts: 1})
			c.Denied(t.Context(), key, hedge.DeniedMethod)
			c.ClientCreated(metricstest.StateOf(observe.KeyState{KeyInfo: key, Tokens: float64(i), Share: 0.1, Audit: observe.Audit{Verdict: observe.AuditOn}}))
		})
	}
	wg.Wait()
	assert.Equal(t, 4, testutil.CollectAndCount(c, "hedge_requests_total"), "two hosts, and Other for each of two clients")
	assert.Equal(t, 4, testutil.CollectAndCount(c, "hedge_budget_tokens"))
	assert.Equal(t, 2, testutil.CollectAndCount(c, "hedge_audit_verdict"), "hosts that share a label have different audits")
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(c))
	_, err := reg.Gather()
	require.NoError(t, err)
}

func TestCollectorAcceptsAnyHost(t *testing.T) {
	c := hedgeprom.New()
	client := hedge.Wrap(&http.Client{Transport: doubles.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody}, nil
	})}, hedge.WithObserver(c), hedge.WithName("shop\xff"))
	for _, url := range []string{"http://%ff.example/", "http://%fe.example/", "http://" + strings.Repeat("a", 10000) + "/"} {
		_, err := client.Get(url)
		require.NoError(t, err)
	}
	h := hedge.NewHedger(hedge.WithObserver(c))
	for _, key := range []string{"", "user-\xff", "a\nb\x00c\x1b[2J", "\"\\"} {
		_, err := hedge.Do(t.Context(), h, key, func(context.Context) (int, error) { return 0, nil })
		require.NoError(t, err)
	}
	assert.Zero(t, h.Snapshot().Stats.ObserverPanics+client.Transport.(*hedge.Transport).Snapshot().Stats.ObserverPanics)
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_requests_total Calls.
# TYPE hedge_requests_total counter
hedge_requests_total{client="",host="",protocol="func"} 1
hedge_requests_total{client="",host="\"\\",protocol="func"} 1
hedge_requests_total{client="",host="a�b�c�[2J",protocol="func"} 1
hedge_requests_total{client="",host="user-�",protocol="func"} 1
hedge_requests_total{client="shop�",host="`+hedge.KeyInfo{Host: strings.Repeat("a", 10000)}.Printable().Host+`",protocol="http"} 1
hedge_requests_total{client="shop�",host="�.example",protocol="http"} 2
`), "hedge_requests_total"), "hosts whose labels are equal are counted together")
}

func TestHostNamedOtherSharesLabel(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithMaxHosts(1))
	for _, host := range []string{"other", "a", "b"} {
		key := hedge.KeyInfo{Host: host}
		c.RequestDone(t.Context(), key, hedge.RequestResult{Attempts: 1})
		c.ClientCreated(metricstest.StateOf(observe.KeyState{KeyInfo: key}))
	}
	assert.Equal(t, 2, testutil.CollectAndCount(c, "hedge_requests_total"))
	assert.Equal(t, 2, testutil.CollectAndCount(c, "hedge_delay_seconds"))
}

func TestOptionsPanicOnInvalidValues(t *testing.T) {
	for says, f := range map[string]func(){
		"hedgeprom: WithBuckets: [1 1] do not increase at 1":                   func() { hedgeprom.WithBuckets(1, 1) },
		"hedgeprom: WithBuckets: [0.1 NaN] do not increase at NaN":             func() { hedgeprom.WithBuckets(0.1, math.NaN()) },
		"hedgeprom: WithBuckets: there is no bucket":                           func() { hedgeprom.WithBuckets() },
		"hedgeprom: WithMaxHosts: -1 is negative":                              func() { hedgeprom.WithMaxHosts(-1) },
		"hedgeprom: WithConstLabels: metrics have a label le of their own":     func() { hedgeprom.WithConstLabels(prometheus.Labels{"le": "1"}) },
		"hedgeprom: WithConstLabels: metrics have a label reason of their own": func() { hedgeprom.WithConstLabels(prometheus.Labels{"reason": "1"}) },
	} {
		assert.PanicsWithValue(t, says, f)
	}
	bounds := []float64{1, 2, math.Inf(1)}
	c := hedgeprom.New(nil, hedgeprom.WithBuckets(bounds...), hedgeprom.WithConstLabels(nil))
	bounds[0] = 3
	c.RequestDone(t.Context(), hedge.KeyInfo{}, hedge.RequestResult{Attempts: 2, Winner: 1, Saved: time.Second})
	assert.Equal(t, 1, testutil.CollectAndCount(c, "hedge_saved_seconds"))
}

// TestWithConstLabelsPanicsOnLabelOfMetric: a registry would refuse a Collector that has both.
func TestWithConstLabelsPanicsOnLabelOfMetric(t *testing.T) {
	_, labels := names(t)
	for metric, own := range labels {
		for _, label := range own {
			assert.PanicsWithValue(t, "hedgeprom: WithConstLabels: metrics have a label "+label+" of their own", func() {
				hedgeprom.WithConstLabels(prometheus.Labels{label: "1"})
			}, metric)
		}
	}
}

func TestRegistryRejectsSecondCollectorWithSameLabels(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	of := func(part string) *hedgeprom.Collector {
		return hedgeprom.New(hedgeprom.WithConstLabels(prometheus.Labels{"part": part}))
	}
	first := of("a")
	require.NoError(t, reg.Register(first))
	var already prometheus.AlreadyRegisteredError
	require.ErrorAs(t, reg.Register(first), &already)
	require.ErrorAs(t, reg.Register(of("a")), &already)
	assert.Same(t, first, already.ExistingCollector)
	other := of("b")
	require.NoError(t, reg.Register(other))
	for _, c := range []*hedgeprom.Collector{first, other} {
		c.RequestDone(t.Context(), hedge.KeyInfo{Host: "a"}, hedge.RequestResult{Attempts: 1})
	}
	_, err := reg.Gather()
	require.NoError(t, err)
	require.ErrorContains(t, reg.Register(of("\xff")), "not valid UTF-8")
}

func TestFormatOfCollectorHasNoHost(t *testing.T) {
	c := hedgeprom.New()
	c.RequestDone(t.Context(), hedge.KeyInfo{Host: "secret.test"}, hedge.RequestResult{Attempts: 1})
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		assert.Equal(t, "hedgeprom.Collector", fmt.Sprintf(verb, c))
	}
}

// names returns the metrics of a Collector and the labels of each.
func names(t *testing.T) (metrics []string, labels map[string][]string) {
	labels = make(map[string][]string)
	ch := make(chan *prometheus.Desc, 1000)
	hedgeprom.New().Describe(ch)
	close(ch)
	for d := range ch {
		m := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`).FindStringSubmatch(d.String())
		require.NotNil(t, m, d)
		all := []string{m[1]}
		switch m[1] {
		case "hedge_saved_seconds":
			all = []string{m[1] + "_bucket", m[1] + "_sum", m[1] + "_count"}
		case "grpc_client_call_hedges":
			all = []string{m[1] + "_sum"} // how many there were; the rest is for those who know A96's histogram
		}
		for _, name := range all {
			metrics = append(metrics, name)
			labels[name] = append(strings.Split(m[2], ","), "le")
		}
	}
	return metrics, labels
}

// labelValues has all values of each label that is not free text.
var labelValues = map[string][]string{
	"outcome":  {string(observe.LimiterWorked), string(observe.LimiterLeft), string(observe.LimiterRefused), "failed", "overtaken"},
	"type":     {"original", "hedge", "resume", "retry", "held_back"},
	"security": {"secure", "insecure", "bogus"},
	"kind":     {"first-byte", "stall"},
	"reason": {
		string(hedge.DeniedBudget), string(hedge.DeniedSlow), string(hedge.DeniedPaused), string(hedge.DeniedDeadline),
		string(hedge.DeniedInFlight), string(hedge.DeniedNotReady), string(hedge.DeniedSameBackend), string(hedge.DeniedShadow), string(hedge.DeniedAudit),
		string(hedge.DeniedWarming), string(hedge.DeniedDisabled), string(hedge.DeniedMethod), string(hedge.DeniedBody), string(hedge.DeniedNested),
	},
}

func TestDashboardAndAlertsUseExistingMetrics(t *testing.T) {
	metrics, labels := names(t)
	used := make(map[string]bool)
	check := func(expr string) {
		for _, name := range regexp.MustCompile(`\b(?:hedge|grpc_client)_\w+`).FindAllString(expr, -1) {
			assert.True(t, slices.Contains(metrics, name), "%s does not exist: %s", name, expr)
			used[name] = true
		}
		for _, m := range regexp.MustCompile(`((?:hedge|grpc_client)_\w+)\{([^}]*)\}`).FindAllStringSubmatch(expr, -1) {
			for _, l := range regexp.MustCompile(`(\w+)=~?"`).FindAllStringSubmatch(m[2], -1) {
				assert.Contains(t, append(labels[m[1]], "cluster", "namespace", "job"), l[1], expr)
			}
		}
		assert.Equal(t, strings.Count(expr, "("), strings.Count(expr, ")"), expr)
		for _, m := range regexp.MustCompile(`(reason|type|kind)=~?"([\w|-]+)"`).FindAllStringSubmatch(expr, -1) {
			for value := range strings.SplitSeq(m[2], "|") {
				assert.Contains(t, labelValues[m[1]], value, "label %s: %s", m[1], expr)
			}
		}
	}

	d, panels := readDashboard(t)
	var ids []int
	for _, p := range d.Panels {
		if p.Type == "row" {
			ids = append(ids, p.ID)
		}
	}
	for _, p := range panels {
		assert.NotContains(t, ids, p.ID)
		ids = append(ids, p.ID)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			check(target.Expr)
		}
	}

	for _, name := range metrics {
		assert.True(t, used[name], "%s is not on the dashboard", name)
	}

	var alerts struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	b, err := os.ReadFile("alerts.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(b, &alerts))
	require.NotEmpty(t, alerts.Groups)
	for _, r := range alerts.Groups[0].Rules {
		check(r.Expr)
		assert.NotEmpty(t, r.Annotations["summary"], r.Alert)
		assert.NotEmpty(t, r.Annotations["description"], r.Alert)
	}
}

// BenchmarkCall measures a call that needs no hedge, with and without a Collector.
func BenchmarkCall(b *testing.B) {
	resp := &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody}
	for _, bench := range []struct {
		name string
		opts []hedge.HTTPOption
	}{{"alone", nil}, {"observed", []hedge.HTTPOption{hedge.WithObserver(hedgeprom.New())}}} {
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

func TestCollectorShowsAuditsByHost(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithMaxHosts(1))
	key := observe.KeyInfo{Client: "shop", Protocol: "http", Host: "db"}
	one := observe.KeyInfo{Host: "one too many"}
	for _, k := range []observe.KeyInfo{key, one} {
		c.RequestDone(t.Context(), k, observe.RequestResult{Attempts: 1})
	}
	c.ClientCreated(metricstest.StateOf(
		observe.KeyState{KeyInfo: key, Audit: observe.Audit{Verdict: observe.AuditOff, Confidence: 0.98, Pairs: 5, P99: 300 * ms, Saved: -132 * ms, PlusMinus: 21 * ms}},
		observe.KeyState{KeyInfo: one, Audit: observe.Audit{Verdict: observe.AuditOn}}))
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_audit_verdict 1 if hedging was measured to help, -1 if it was measured to harm and is off, 0 if no difference was found, or not yet.
# TYPE hedge_audit_verdict gauge
hedge_audit_verdict{client="shop",host="db",protocol="http"} -1
# HELP hedge_audit_saved_seconds Measured time by which hedging reduces the 99th percentile of latency; negative if it increases it.
# TYPE hedge_audit_saved_seconds gauge
hedge_audit_saved_seconds{client="shop",host="db",protocol="http"} -0.132
# HELP hedge_audit_saved_error_seconds Half the width of the 95 % confidence interval of hedge_audit_saved_seconds.
# TYPE hedge_audit_saved_error_seconds gauge
hedge_audit_saved_error_seconds{client="shop",host="db",protocol="http"} 0.021
# HELP hedge_audit_confidence One minus the probability that chance alone ever shows such an effect.
# TYPE hedge_audit_confidence gauge
hedge_audit_confidence{client="shop",host="db",protocol="http"} 0.98
`), "hedge_audit_verdict", "hedge_audit_saved_seconds", "hedge_audit_saved_error_seconds", "hedge_audit_confidence"))
}

func TestLatenciesAreNativeHistogramsByHedged(t *testing.T) {
	c := hedgeprom.New()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	key := observe.KeyInfo{Protocol: "http", Host: "db"}
	for attempts, took := range map[int]time.Duration{1: 10 * ms, 2: 40 * ms} {
		c.RequestDone(t.Context(), key, observe.RequestResult{Attempts: attempts, Latency: took})
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	found := make(map[string]float64)
	for _, f := range families {
		if f.GetName() == "hedge_request_seconds" {
			for _, m := range f.GetMetric() {
				assert.NotEmpty(t, m.GetHistogram().GetPositiveSpan(), "native")
				assert.Empty(t, m.GetHistogram().GetBucket(), "not classic")
				for _, l := range m.GetLabel() {
					if l.GetName() == "hedged" {
						found[l.GetValue()] = m.GetHistogram().GetSampleSum()
					}
				}
			}
		}
	}
	assert.Equal(t, map[string]float64{"false": 0.01, "true": 0.04}, found)
}

func TestObserverCountsAnswersNotTaken(t *testing.T) {
	c := hedgeprom.New()
	for _, n := range []int{0, 1, 2} {
		c.RequestDone(t.Context(), hedge.KeyInfo{Host: "db"}, hedge.RequestResult{Attempts: 3, AnswersNotTaken: n})
	}
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_answers_not_taken_total Hedges with an answer that ends a call only if it is the primary's.
# TYPE hedge_answers_not_taken_total counter
hedge_answers_not_taken_total{client="",host="db",protocol=""} 3
`), "hedge_answers_not_taken_total"))
}

func TestBudgetRatioFollowsUpdate(t *testing.T) {
	c := hedgeprom.New()
	synctest.Test(t, func(t *testing.T) {
		h := hedge.NewHedger(hedge.WithName("shop"), hedge.WithObserver(c))
		for _, percent := range []float64{10, 1, 0.1} {
			require.NoError(t, h.Update(func(c *hedge.Config) { c.BudgetPercent = percent }))
			_, err := hedge.Do(t.Context(), h, "db", sleeps(ms))
			require.NoError(t, err)
			assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(fmt.Sprintf(`
# HELP hedge_budget_ratio Hedges per call that the budget pays for in the long run, by the settings.
# TYPE hedge_budget_ratio gauge
hedge_budget_ratio{client="shop",host="db",protocol="func"} %v
`, percent/100)), "hedge_budget_ratio"))
		}
	})
}

func TestObserverCountsHedgesOfGRPCCalls(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithMaxHosts(1))
	for _, attempts := range []int{1, 2, 3, 3} {
		for _, method := range []string{"/shop.v1.Catalog/GetItem", "/shop.v1.Catalog/ListItems"} { // there is one label for methods
			c.RequestDone(t.Context(), observe.KeyInfo{Protocol: "grpc", Host: "dns:///shop", Route: method}, observe.RequestResult{Attempts: attempts})
		}
		c.RequestDone(t.Context(), observe.KeyInfo{Protocol: "http", Host: "dns:///shop"}, observe.RequestResult{Attempts: attempts})
	}
	histogram := func(method string) string {
		labels := fmt.Sprintf("grpc_method=%q,grpc_target=%q", method, "dns:///shop")
		text := ""
		for _, bucket := range []string{"1 1", "2 3", "3 3", "4 3", "5 3", "+Inf 3"} { // one call had one hedge, and two had two
			le, n, _ := strings.Cut(bucket, " ")
			text += fmt.Sprintf("grpc_client_call_hedges_bucket{%s,le=%q} %s\n", labels, le, n)
		}
		return text + fmt.Sprintf("grpc_client_call_hedges_sum{%s} 5\ngrpc_client_call_hedges_count{%s} 3\n", labels, labels)
	}
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP grpc_client_call_hedges Hedges of gRPC calls that had any, by method and target, as gRFC A96 says.
# TYPE grpc_client_call_hedges histogram
`+histogram(hedgeprom.Other)+histogram("shop.v1.Catalog/GetItem")), "grpc_client_call_hedges"))
}
