package hedgeprom_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/metricstest"
	"github.com/gohedge/hedge/observe"
)

// quick is a RoundTripper that answers at once.
var quick = doubles.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, ProtoMajor: 2, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
})

// get calls a URL.
func get(t *testing.T, rt http.RoundTripper, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	if resp, err := rt.RoundTrip(req); err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
}

const ratioHead = `
# HELP hedge_budget_ratio Hedges per call that the budget pays for in the long run, by the settings.
# TYPE hedge_budget_ratio gauge
`

func TestRatioOfHostIsLargestOfItsRoutes(t *testing.T) {
	c := hedgeprom.New()
	tr := hedge.New(quick, hedge.WithObserver(c), hedge.WithRoute("GET /export/", hedge.Policy{BudgetPercent: 1}))
	for _, path := range []string{"/a", "/a", "/a", "/export/1"} {
		get(t, tr, "http://shop.test"+path)
	}
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(ratioHead+`
hedge_budget_ratio{client="",host="shop.test",protocol="http"} 0.1
`), "hedge_budget_ratio"))
	runtime.KeepAlive(tr)
}

func TestHostsThatShareLabelHaveRatio(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithMaxHosts(1))
	tr := hedge.New(quick, hedge.WithObserver(c), hedge.WithBudgetPercent(20))
	for _, host := range []string{"a.test", "b.test", "c.test"} {
		get(t, tr, "http://"+host)
	}
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(ratioHead+`
hedge_budget_ratio{client="",host="a.test",protocol="http"} 0.2
hedge_budget_ratio{client="",host="other",protocol="http"} 0.2
`), "hedge_budget_ratio"))
	runtime.KeepAlive(tr)
}

func TestGaugesShowChangedSettings(t *testing.T) {
	c := hedgeprom.New()
	tr := hedge.New(quick, hedge.WithObserver(c))
	get(t, tr, "http://a.test")
	require.NoError(t, tr.Update(func(s *hedge.Config) { s.BudgetPercent = 5 }))
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(ratioHead+`
hedge_budget_ratio{client="",host="a.test",protocol="http"} 0.05
`), "hedge_budget_ratio"))
	require.NoError(t, tr.Update(func(s *hedge.Config) { s.BudgetPercent = 0 }))
	assert.Zero(t, testutil.CollectAndCount(c, "hedge_budget_ratio", "hedge_budget_tokens"))
}

// TestGaugesEndWithClient has a client whose first endpoint is ejected when the client is replaced by another one.
func TestGaugesEndWithClient(t *testing.T) {
	c := hedgeprom.New()
	near := "http://near.test"
	newClient := func(rt http.RoundTripper) *hedge.Transport {
		return hedge.New(rt, hedge.WithEndpoints(hedge.Endpoint{URL: near}, hedge.Endpoint{URL: "http://far.test"}), hedge.WithObserver(c))
	}
	failing := doubles.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if r.URL.Host == "near.test" {
			return nil, errors.New("connection refused")
		}
		return quick(r)
	})
	tr := newClient(failing)
	for range 40 {
		get(t, tr, near)
	}
	ejected := func(n string) error {
		return testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_endpoint_ejected Keys (hosts, or their routes) whose calls go to other endpoints.
# TYPE hedge_endpoint_ejected gauge
hedge_endpoint_ejected{client="",endpoint="http://far.test",host="near.test",protocol="http"} 0
hedge_endpoint_ejected{client="",endpoint="http://near.test",host="near.test",protocol="http"} `+n+"\n"), "hedge_endpoint_ejected")
	}
	require.NoError(t, ejected("1"))
	tr = newClient(quick)
	get(t, tr, near)
	require.Eventually(t, func() bool {
		runtime.GC()
		return ejected("0") == nil
	}, 20*time.Second, 10*time.Millisecond, "the first client is not collected")
	runtime.KeepAlive(tr)
	tr = nil
	gauges := []string{"hedge_endpoint_ejected", "hedge_delay_seconds", "hedge_budget_ratio", "hedge_budget_tokens"}
	require.Positive(t, testutil.CollectAndCount(c, gauges...))
	require.Eventually(t, func() bool {
		runtime.GC()
		return testutil.CollectAndCount(c, gauges...) == 0
	}, 20*time.Second, 10*time.Millisecond)
	assert.Positive(t, testutil.CollectAndCount(c, "hedge_requests_total"))
}

func TestGaugesMergeKeysAndClients(t *testing.T) {
	c := hedgeprom.New()
	key := func(route string) observe.KeyInfo {
		return observe.KeyInfo{Client: "shop", Protocol: "grpc", Host: "near", Route: route}
	}
	c.RequestDone(t.Context(), key("/a"), observe.RequestResult{Attempts: 1})
	ejected := []observe.EndpointState{{Endpoint: "dns:///near", Ejected: 1}, {Endpoint: "dns:///far"}}
	c.ClientCreated(metricstest.StateOf(
		observe.KeyState{KeyInfo: key("/a"), Delay: 10 * ms, Tokens: 1, Share: 0.1, Endpoints: ejected, Audit: observe.Audit{Verdict: observe.AuditTrying, Pairs: 9}},
		observe.KeyState{KeyInfo: key("/b"), Tokens: 3, Share: 0.01, Endpoints: ejected},
		observe.KeyState{KeyInfo: observe.KeyInfo{Client: "shop", Protocol: "grpc", Host: "without calls"}, Tokens: 100, Share: 4},
	))
	c.ClientCreated(metricstest.StateOf(observe.KeyState{
		KeyInfo: key("/a"), Delay: 20 * ms, Tokens: 2, Share: 0.05,
		Audit: observe.Audit{Verdict: observe.AuditOff, Pairs: 7, Saved: -70 * ms, PlusMinus: 21 * ms, Confidence: 0.98},
	}))
	c.ClientCreated(func() ([]observe.KeyState, bool) { return nil, false })
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	require.NoError(t, err)
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetGauge() != nil {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					if l.GetName() == "endpoint" {
						name += " " + l.GetValue()
					}
				}
				got[name] = m.GetGauge().GetValue()
			}
		}
	}
	assert.Equal(t, map[string]float64{
		"hedge_delay_seconds": 0.02, "hedge_budget_tokens": 3, "hedge_budget_ratio": 0.1,
		"hedge_endpoint_ejected dns:///near": 2, "hedge_endpoint_ejected dns:///far": 0,
		"hedge_audit_verdict": -1, "hedge_audit_saved_seconds": -0.07, "hedge_audit_saved_error_seconds": 0.021, "hedge_audit_confidence": 0.98,
	}, got)
}

// TestCollectorIsReadWhileClientsAreCreatedAndCall has six clients that are replaced all the time.
func TestCollectorIsReadWhileClientsAreCreatedAndCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := hedgeprom.New(hedgeprom.WithMaxHosts(3))
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, host := range []string{"", "a", "b\xff", "other", "\"\n", "c"} {
			wg.Go(func() {
				for ctx.Err() == nil {
					h := hedge.NewHedger(hedge.WithObserver(c), hedge.WithAudit(), hedge.WithName(host))
					for range 30 {
						_, err := hedge.Do(t.Context(), h, host, sleeps(ms, ms, ms))
						assert.NoError(t, err)
					}
				}
			})
		}
		for range 200 {
			_, err := registry.Gather()
			require.NoError(t, err)
			time.Sleep(ms)
		}
		cancel()
		wg.Wait()
	})
}
