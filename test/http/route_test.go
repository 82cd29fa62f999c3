package http_test

import (
	"fmt"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

func TestRoutesHaveSeparateLatencies(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var quick, slow atomic.Int64
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			d, sent := 10*ms, &quick
			if strings.HasPrefix(req.URL.Path, "/export/") {
				d, sent = 900*ms, &slow
			}
			if sent.Add(1)%100 == 0 { // a straggler
				d *= 3
			}
			return after(rt, d)(req, 0)
		}
		tr := hedge.New(rt,
			hedge.WithRoute("GET /items/{id}", hedge.Policy{}),
			hedge.WithRoute("/export/", hedge.Policy{BudgetPercent: 2}),
			hedge.WithMaxHedges(1))
		for i := range 1000 {
			for _, path := range []string{fmt.Sprintf("/items/%d", i), fmt.Sprintf("/export/%d", i)} {
				resp, err := get(t, tr, "http://catalog.test"+path)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
		}
		keys := tr.Snapshot().Keys
		require.Len(t, keys, 3) // with the host's, whose budget they share
		export, items := keys[1], keys[2]
		assert.Equal(t, "/export/", export.Route)
		assert.Equal(t, "GET /items/{id}", items.Route)
		assert.InEpsilon(t, 10*ms, items.P50, 0.01)
		assert.InEpsilon(t, 900*ms, export.P50, 0.01)
		assert.InEpsilon(t, 10*ms, items.Delays[0], 0.05)
		assert.InEpsilon(t, 900*ms, export.Delays[0], 0.05)
		for _, k := range []hedge.KeySnapshot{items, export} {
			assert.InDelta(t, 10, k.Wins, 1, "its stragglers, after its own delay: %s", k.Route)
		}
		assert.LessOrEqual(t, export.Hedges, int64(20+4), "its share of its own requests, and the burst of that")
		assert.Positive(t, export.Hedges)
	})
}

func TestRoutesShareBudgetOfHost(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, 30*ms)
		tr := hedge.New(rt, hedge.WithMaxHedges(1),
			hedge.WithRoute("/a", hedge.Policy{Delay: 10 * ms}), hedge.WithRoute("/b", hedge.Policy{Delay: 10 * ms}))
		for range 100 {
			for _, path := range []string{"/a", "/b"} {
				resp, err := get(t, tr, "http://catalog.test"+path)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
		}
		assert.InDelta(t, 20+0.1*200, len(rt.Sent())-200, 1)
	})
}

func TestPolicyAppliesToRoute(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := hedge.New(rt, hedge.WithMaxHedges(1),
			hedge.WithRoute("POST /_search", hedge.Policy{Hedgeable: true, Delay: 10 * ms}),
			hedge.WithRoute("/stream", hedge.Policy{FirstByte: true, Delay: 10 * ms}),
			hedge.WithRoute("/off/", hedge.Policy{Off: true, Delay: 10 * ms}),
			hedge.WithRoute("other.test/", hedge.Policy{Delay: 10 * ms}))
		sent := func(method, url string) int {
			rt.Forget()
			rt.Answer = flushes(rt, 50*ms) // the header comes at once, which ends a race that is not for the first byte
			if !strings.Contains(url, "stream") {
				rt.Answer = after(rt, 50*ms)
			}
			resp, err := tr.RoundTrip(request(t, t.Context(), method, url, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			return len(rt.Sent())
		}
		assert.Equal(t, 2, sent("POST", "http://catalog.test/_search"))
		assert.Equal(t, 1, sent("POST", "http://catalog.test/_bulk"))
		assert.Equal(t, 2, sent("GET", "http://catalog.test/stream"))
		assert.Equal(t, 1, sent("GET", "http://catalog.test/off/x"))
		assert.Equal(t, 2, sent("GET", "http://other.test/x"))
		assert.Equal(t, 1, sent("GET", "http://catalog.test/x"), "no route, and cold")

		req := request(t, t.Context(), "GET", "http://other.test/x", nil)
		req.Host = ""
		rt.Forget()
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 2)
	})
}

func TestWithRouteRejectsInvalidArguments(t *testing.T) {
	assert.PanicsWithError(t, `hedge: WithRoute("/x"): Delay -1ns is not at least 0`, func() { hedge.WithRoute("/x", hedge.Policy{Delay: -1}) })
	assert.PanicsWithError(t, `hedge: WithRoute("/x"): BudgetPercent NaN is not in [0, 400]`, func() { hedge.WithRoute("/x", hedge.Policy{BudgetPercent: math.NaN()}) })
	assert.Panics(t, func() { hedge.WithRoute("GET  x y", hedge.Policy{}) })
	_, err := hedge.NewWithConfig(nil, hedge.DefaultConfig(), hedge.WithRoute("/{a}/x", hedge.Policy{}), hedge.WithRoute("/y/{b}", hedge.Policy{}))
	assert.ErrorContains(t, err, `hedge: WithRoute("/y/{b}")`)
	assert.ErrorContains(t, err, "conflict")
}

// TestRouteErrorsNameLineOfOption has two routes that conflict, on lines of their own.
func TestRouteErrorsNameLineOfOption(t *testing.T) {
	for _, patterns := range [][2]string{{"/a", "/a"}, {"Shop.test/a", "shop.test/a"}, {"/{a}/x", "/y/{b}"}} {
		_, file, line, _ := runtime.Caller(0)
		first := hedge.WithRoute(patterns[0], hedge.Policy{})
		second := hedge.WithRoute(patterns[1], hedge.Policy{})
		_, err := hedge.NewWithConfig(nil, hedge.DefaultConfig(), first, second)
		require.Error(t, err)
		assert.Contains(t, err.Error(), fmt.Sprintf("(given at %s:%d) conflicts with pattern", file, line+2))
		assert.Contains(t, err.Error(), fmt.Sprintf("(given at %s:%d)", file, line+1))
		assert.NotContains(t, err.Error(), "registered at")
	}
}

// Unclean paths match the route of the cleaned path, because servers clean them or redirect.
func TestRoutesMatchPathsAsServeMux(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt,
			hedge.WithRoute("GET /{$}", hedge.Policy{Off: true}),
			hedge.WithRoute("GET /pay/", hedge.Policy{Off: true}),
			hedge.WithRoute("GET  Catalog.TEST./named", hedge.Policy{Off: true}),
			hedge.WithRoute("xn--bcher-kva.test/", hedge.Policy{Off: true}),
			hedge.WithRoute("GET käse.test/", hedge.Policy{Off: true}))
		for url, attempts := range map[string]int{
			"http://catalog.test":              1,
			"http://catalog.test?q=1":          1,
			"http://catalog.test/":             1,
			"http://catalog.test/pay/1":        1,
			"http://catalog.test//pay/1":       1,
			"http://catalog.test/x/../pay/1":   1,
			"http://catalog.test/./pay//1":     1,
			"http://CATALOG.test.:80/named":    1,
			"http://catalog.test:8080/named":   1,
			"http://bücher.test/a":             1,
			"http://Bücher.test:8080/a":        1,
			"http://xn--kse-qla.test/a":        1,
			"http://KÄSE.test/a":               1,
			"http://catalog.test/a":            2,
			"http://catalog.test/pay/../a":     2,
			"http://catalog.test//a//b?pay/=1": 2,
		} {
			for _, method := range []string{"GET", ""} {
				rt.Answer = quick(rt)
				warmUp(t, tr) // or so many slow calls would be an outage
				rt.Forget()
				rt.Answer = after(rt, time.Second, 5*ms)
				req := request(t, hedge.WithDelay(t.Context(), 20*ms), method, url, nil)
				req.Method = method // NewRequest puts GET for none
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.Len(t, rt.Sent(), attempts, "%s %s", method, url)
			}
		}

		rt.Forget()
		rt.Answer = after(rt, time.Second, 5*ms)
		req := request(t, hedge.WithDelay(t.Context(), 20*ms), "GET", site, nil)
		req.URL.Opaque = "//catalog.test/pay/1"
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 1)
	})
}

func TestWithRouteRejectsPatternsThatCannotMatch(t *testing.T) {
	assert.PanicsWithError(t, `hedge: WithRoute("get /a"): method "get" is not in upper case, and methods are case-sensitive`,
		func() { hedge.WithRoute("get /a", hedge.Policy{}) })
	for pattern, host := range map[string]string{"POST search.test:9200/_search": "search.test:9200", "[2001:db8::1]:80/": "[2001:db8::1]:80", ":80/": ":80"} {
		assert.PanicsWithError(t, fmt.Sprintf("hedge: WithRoute(%q): host %q has a port, and a pattern is for all ports of a host", pattern, host),
			func() { hedge.WithRoute(pattern, hedge.Policy{Off: true}) })
	}
}

// A pattern with a slash at its end is no pattern for the path without: a ServeMux only answers
// with a redirect there.
func TestSubtreeRouteDoesNotMatchPathWithoutSlash(t *testing.T) {
	for _, pattern := range []string{"/items/", "POST /items/", "catalog.test/items/", "POST Catalog.TEST/items/", "/items/{$}", "/items/{rest...}", "/{kind}/"} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			tr := hedge.New(rt, hedge.WithRoute(pattern, hedge.Policy{Hedgeable: true, Delay: 10 * ms}))
			post := func(path string) (attempts int) {
				rt.Forget()
				rt.Answer = after(rt, time.Second, 5*ms)
				resp, err := tr.RoundTrip(request(t, t.Context(), "POST", "http://catalog.test"+path, strings.NewReader("{}")))
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				return len(rt.Sent())
			}
			assert.Equal(t, 1, post("/items"), "%s: POST /items creates an item", pattern)
			assert.Empty(t, tr.Snapshot().Keys, "%s: it has no route", pattern)
			assert.Equal(t, 2, post("/items/"), pattern)
		})
	}
}

func TestPathWithoutSlashHasRouteThatServesIt(t *testing.T) {
	for path, route := range map[string]string{
		"/items": "/", "/items/": "/items/", "/items/1": "/items/", "/items/a/b": "/items/", "/items/a/b/": "/items/a/b/{$}", "/items/a": "/items/", "/": "/", "/a": "/", "/a/b": "/a/",
	} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = quick(rt)
			tr := hedge.New(rt, hedge.WithRoute("/", hedge.Policy{}), hedge.WithRoute("/items/", hedge.Policy{}),
				hedge.WithRoute("/a/", hedge.Policy{}), hedge.WithRoute("/a/b/", hedge.Policy{}), hedge.WithRoute("/items/a/b/{$}", hedge.Policy{}))
			resp, err := get(t, tr, "http://catalog.test"+path)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			var routes []string
			for _, k := range tr.Snapshot().Keys {
				if k.Route != "" {
					routes = append(routes, k.Route)
				}
			}
			assert.Equal(t, []string{route}, routes, path)
		})
	}
}

// Servers that clean paths take all of these for /_search. Others take them for something else,
// which may be written to.
func TestRouteHedgeableExcludesUncleanPaths(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := hedge.New(rt, hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100), hedge.WithRoute("/_search", hedge.Policy{Hedgeable: true, Delay: 10 * ms}))
		for path, attempts := range map[string]int{
			"/_search": 2, "//_search": 1, "/x/../_search": 1, "/./_search": 1, "/x/%2e%2e/_search": 1, "/%2E/_search": 1, "/_search/.": 1, "/x/..%2f_search": 1,
		} {
			for method, attempts := range map[string]int{"POST": attempts, "GET": 2} {
				rt.Forget()
				rt.Answer = after(rt, 50*ms, 5*ms)
				resp, err := tr.RoundTrip(request(t, t.Context(), method, "http://catalog.test"+path, strings.NewReader("{}")))
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.Len(t, rt.Sent(), attempts, "%s %s", method, path)
			}
		}
	})
}

func TestObserverReceivesConfiguredShare(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var rec doubles.Recorder
		tr := hedge.New(rt, hedge.WithObserver(&rec), hedge.WithBudgetPercent(5), hedge.WithRoute("/dear", hedge.Policy{BudgetPercent: 1}))
		rt.Answer = quick(rt)
		told := func(path string) float64 {
			resp, err := get(t, tr, "http://catalog.test"+path)
			require.NoError(t, err)
			text(t, resp)
			for _, k := range rec.KeyStates() {
				if k.Route == strings.TrimSuffix(path, "/") {
					return k.Share
				}
			}
			return -1
		}
		assert.InDelta(t, 0.05, told("/"), 1e-9)
		assert.InDelta(t, 0.01, told("/dear"), 1e-9)
		require.NoError(t, tr.Update(func(c *hedge.Config) { c.BudgetPercent = 0.5 }))
		assert.InDelta(t, 0.005, told("/dear"), 1e-9, "the share of the client bounds its routes")
	})
}

// TestBudgetOfEnvironmentDoesNotRaiseShareOfRoute sets a budget above the share of one route and below that of another.
func TestBudgetOfEnvironmentDoesNotRaiseShareOfRoute(t *testing.T) {
	t.Setenv("HEDGE_BUDGET_PERCENT", "5")
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		rec := new(recorder)
		tr := hedge.New(rt, hedge.WithObserver(rec), hedge.WithRoute("/a", hedge.Policy{BudgetPercent: 1}), hedge.WithRoute("/b", hedge.Policy{BudgetPercent: 50}))
		for _, path := range []string{"/a", "/b"} {
			resp, err := get(t, tr, "http://catalog.test"+path)
			require.NoError(t, err)
			text(t, resp)
		}
		shares := make(map[string]float64)
		for _, s := range rec.KeyStates() {
			shares[s.Route] = s.Share
		}
		assert.Equal(t, map[string]float64{"/a": 0.01, "/b": 0.05}, shares)
	})
}
