package endpoints_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// near and far are endpoints of these tests; calls are made for near, which is that of site.
const (
	near = "http://catalog.test"
	far  = "http://catalog.far.test/mirror"
)

func toFar(p hedge.Endpoint) hedge.HTTPOption {
	p.URL = far
	return hedge.WithEndpoints(hedge.Endpoint{URL: near}, p)
}

// inEndpoints returns a function that answers requests to near by nearby and requests to far by away.
func inEndpoints(rt *doubles.RoundTripper, nearby, away func(*http.Request, int) (*http.Response, error)) func(*http.Request, int) (*http.Response, error) {
	return func(req *http.Request, n int) (*http.Response, error) {
		if req.URL.Host == "catalog.test" {
			return nearby(req, n)
		}
		return away(req, n)
	}
}

// fails returns an error at once.
func fails(*http.Request, int) (*http.Response, error) { return nil, errDown }

// hosts returns the number of requests to each host.
func hosts(sent []*http.Request) map[string]int {
	n := make(map[string]int)
	for _, r := range sent {
		n[r.URL.Host]++
	}
	return n
}

func TestEndpointsHedgeUsesNextEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, after(rt, time.Minute), after(rt, 80*ms))
		tr := warm(t, rt, toFar(hedge.Endpoint{Keep: []string{"q"}}), hedge.WithMaxHedges(1), hedge.WithAttemptHeader("X-Try"))
		start := time.Now()
		resp, err := get(t, tr, site+"%2Fa?q=1&Q=%32")
		require.NoError(t, err)
		text(t, resp)
		assert.InDelta(t, usual+80*ms, time.Since(start), float64(ms))
		require.Len(t, rt.Sent(), 2)
		hedged := rt.Sent()[1]
		assert.Equal(t, far+"/item%2Fa?q=1&Q=%32", hedged.URL.String(), "the path is joined and not written anew")
		assert.Equal(t, "catalog.far.test", hedged.Host)
		assert.Equal(t, http.Header{"X-Try": {"1"}}, hedged.Header)
		assert.Equal(t, hedged.URL.String(), resp.Request.URL.String(), "the response is that of the endpoint that answered")
	})
}

func TestEndpointsSendWritesOnceToFirstEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, fails, quick(rt))
		tr := warm(t, rt, toFar(hedge.Endpoint{}))
		for range 20 { // near is ejected after that
			if resp, err := get(t, tr, site); err == nil {
				text(t, resp)
			}
		}
		rt.Forget()
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		require.Equal(t, "catalog.far.test", rt.Sent()[0].URL.Host)
		rt.Forget()
		req := request(t, t.Context(), "POST", site, strings.NewReader("charge $10"))
		_, err = tr.RoundTrip(req)
		assert.Equal(t, errDown, err)
		require.Len(t, rt.Sent(), 1)
		assert.Same(t, req, rt.Sent()[0])
	})
}

// TestEndpointsDoNotShareSecrets sends requests with many headers and parameters. Another host gets only those that are
// harmless, in Keep, or set by Prepare.
func TestEndpointsDoNotShareSecrets(t *testing.T) {
	header := func(name string) func(*http.Request) {
		return func(r *http.Request) { r.Header[name] = []string{"s3cret"} }
	}
	query := func(raw string) func(*http.Request) { return func(r *http.Request) { r.URL.RawQuery = raw } }
	prepare := func(r *http.Request) error {
		r.Header.Set("Authorization", "of far")
		return nil
	}
	const never, prepared, always = 0, 1, 2 // when a hedge goes there
	for name, c := range map[string]struct {
		change func(*http.Request)
		goes   int
	}{
		"nothing":       {func(*http.Request) {}, always},
		"harmless":      {func(r *http.Request) { r.Header.Set("Accept", "text/html") }, always},
		"a referer":     {header("Referer"), always},
		"authorization": {header("Authorization"), prepared},
		"in lower case": {header("authorization"), prepared},
		"odd case":      {header("COOKIE"), prepared},
		"cookie":        {header("Cookie"), prepared},
		"proxy":         {header("Proxy-Authorization"), prepared},
		"a key":         {header("X-Api-Key"), prepared},
		"a session":     {header("X-Amz-Security-Token"), prepared},
		"user":          {func(r *http.Request) { r.URL.User = url.UserPassword("u", "s3cret") }, prepared},
		"presigned":     {query("X-Amz-Signature=s3cret&X-Amz-Date=s3cret"), never},
		"parameter":     {query("q=s3cret"), never},
		"a bare one":    {query("s3cret"), never},
		"no name":       {query("=s3cret"), never},
		"unknown":       {header("X-Tenant"), never},
		"custom":        {header("X-My-Secret"), never},
		"a tag":         {header("If-None-Match"), never},
	} {
		for _, withPrepare := range []bool{false, true} {
			t.Run(fmt.Sprint(name, withPrepare), func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					rt.Answer = after(rt, time.Second, 80*ms)
					p := hedge.Endpoint{}
					if withPrepare {
						p.Prepare = prepare
					}
					tr := warm(t, rt, toFar(p), hedge.WithMaxHedges(1))
					req := request(t, t.Context(), "GET", site, nil)
					c.change(req)
					before := req.Clone(req.Context())
					resp, err := tr.RoundTrip(req)
					require.NoError(t, err)
					text(t, resp)
					require.Len(t, rt.Sent(), 2)
					assert.Equal(t, before.URL, req.URL)
					assert.Equal(t, before.Header, req.Header)
					hedged := rt.Sent()[1]
					if c.goes == never || c.goes == prepared && !withPrepare {
						assert.Equal(t, "catalog.test", hedged.URL.Host, "it stays where it was made for")
						return
					}
					require.Equal(t, "catalog.far.test", hedged.URL.Host)
					assert.NotContains(t, fmt.Sprint(hedged.Header, hedged.URL.String(), hedged.URL.User), "s3cret")
					if withPrepare {
						assert.Equal(t, []string{"of far"}, hedged.Header["Authorization"])
					}
					assert.Equal(t, name == "harmless", hedged.Header.Get("Accept") != "")
				})
			})
		}
	}
}

func TestKeepAndDropSelectHeadersAndParameters(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 80*ms)
		tr := warm(t, rt, toFar(hedge.Endpoint{Keep: []string{"X-Tenant*", "page"}, Drop: []string{"X-Forwarded-*", "x-tenant-key", "X-Amz-*"}}))
		req := request(t, t.Context(), "GET", site+"?page=2&X%2DAmz%2DSignature=s3cret&&X-Amz-Date=s3cret", nil)
		req.Header = http.Header{"X-Tenant": {"5"}, "X-Tenant-Key": {"s3cret"}, "X-Forwarded-For": {"192.0.2.1"}}
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		text(t, resp)
		hedged := rt.Sent()[1]
		assert.Equal(t, "catalog.far.test", hedged.URL.Host)
		assert.Equal(t, http.Header{"X-Tenant": {"5"}}, hedged.Header)
		assert.Equal(t, "page=2&", hedged.URL.RawQuery)
	})
}

// TestKeepStarKeepsNoCredentials expects that credentials must be named in Keep, because an endpoint may belong to
// another provider.
func TestKeepStarKeepsNoCredentials(t *testing.T) {
	for _, keep := range [][]string{{"*"}, {"A*"}, {"*", "Authorization"}} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, time.Second, 80*ms)
			tr := warm(t, rt, toFar(hedge.Endpoint{Keep: keep, Prepare: func(*http.Request) error { return nil }}))
			req := request(t, t.Context(), "GET", site, nil)
			req.Header.Set("Authorization", "Bearer s3cret")
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			text(t, resp)
			require.Equal(t, "catalog.far.test", rt.Sent()[1].URL.Host)
			assert.Equal(t, len(keep) == 2, rt.Sent()[1].Header.Get("Authorization") != "")
		})
	}
}

// TestEndpointsLogObstacleOnce expects a log record that explains why no hedge goes to the other endpoint, without
// values of headers.
func TestEndpointsLogObstacleOnce(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		var log bytes.Buffer
		tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		for range 3 {
			for _, raw := range []string{"", "?q=s3cret", "?s3cret"} {
				resp, err := get(t, tr, site+raw)
				require.NoError(t, err)
				text(t, resp)
			}
		}
		assert.Equal(t, 1, strings.Count(log.String(), `with="parameter q"`), log.String())
		assert.Equal(t, 1, strings.Count(log.String(), `with="a parameter without a value"`), log.String())
		assert.NotContains(t, log.String(), "s3cret")
	})
}

func TestEndpointsIgnoreRequestsToOtherHosts(t *testing.T) {
	for name, req := range map[string]*http.Request{
		"host":        {URL: parse("http://other.test/item")},
		"the far one": {URL: parse(far + "/item")},
		"scheme":      {URL: parse("https://catalog.test/item")},
		"port":        {URL: parse("http://catalog.test:8080/item")},
		"Host":        {URL: parse(site), Host: "other.test"},
		"opaque":      {URL: parse("http://catalog.test/a"), Host: "other.test"},
		"path":        {URL: parse("http://catalog.test/api/../item")},
		"hidden path": {URL: parse("http://catalog.test/%2e%2E%5citem")},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = quick(rt)
				tr := hedge.New(rt, toFar(hedge.Endpoint{Prepare: func(*http.Request) error { panic("prepared") }}))
				req := req.WithContext(t.Context())
				req.Method, req.Header = "GET", http.Header{"Cookie": {"a=b"}}
				want := req.URL.String()
				for range 20 {
					resp, err := tr.RoundTrip(req)
					require.NoError(t, err)
					text(t, resp)
				}
				rt.Answer = after(rt, time.Second)
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				text(t, resp)
				require.Greater(t, len(rt.Sent()), 21, "it is hedged")
				for _, sent := range rt.Sent() {
					assert.Equal(t, want, sent.URL.String())
					assert.Equal(t, req.Host, sent.Host)
					assert.Equal(t, req.Header, sent.Header)
				}
			})
		})
	}
}

func TestFailingEndpointIsEjectedAndRestored(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var down atomic.Bool
		rt.Answer = inEndpoints(rt, func(r *http.Request, n int) (*http.Response, error) {
			if down.Load() {
				return fails(r, n)
			}
			return quick(rt)(r, n)
		}, after(rt, 70*ms))
		var stats *hedge.Stats
		tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithStats(&stats))
		play := func(calls int) (failed int) {
			rt.Forget()
			for range calls {
				resp, err := get(t, tr, site)
				if err != nil {
					failed++
					continue
				}
				text(t, resp)
			}
			return failed
		}
		require.Zero(t, play(200))
		assert.Less(t, hosts(rt.Sent())["catalog.far.test"], 40)
		down.Store(true)
		assert.LessOrEqual(t, play(3000), 2, "failed calls: until the latency of the other endpoint is known, but no probe")
		tries := hosts(rt.Sent())["catalog.test"] - 6
		assert.Greater(t, tries, 5)
		assert.Less(t, tries, 3000/20)
		down.Store(false)
		require.Zero(t, play(5000))
		rt.Forget()
		require.Zero(t, play(100))
		assert.GreaterOrEqual(t, hosts(rt.Sent())["catalog.test"], 100, "calls go there again")
		assert.LessOrEqual(t, float64(stats.HedgesSent.Load()), 0.1*float64(stats.TotalRequests.Load())+20)
	})
}

func TestEndpointSlowFromStartIsEjected(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, after(rt, 300*ms), after(rt, 80*ms))
		tr := hedge.New(rt, toFar(hedge.Endpoint{}))
		for range 2000 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
		}
		start := time.Now()
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, 80*ms, time.Since(start))
	})
}

// TestEndpointMeasuredDuringLoadIsMeasuredAgain has a far endpoint that is much faster than the near one, except during
// the first calls.
func TestEndpointMeasuredDuringLoadIsMeasuredAgain(t *testing.T) {
	for _, busy := range []time.Duration{140 * ms, 2 * time.Second} {
		t.Run(busy.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				var stats *hedge.Stats
				tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithStats(&stats))
				for i := range 4000 {
					far := busy
					if i >= 300 {
						far = 80 * ms
					}
					rt.Answer = inEndpoints(rt, after(rt, 220*ms), after(rt, far))
					resp, err := get(t, tr, site)
					require.NoError(t, err)
					text(t, resp)
				}
				assert.True(t, firstEndpoint(tr).Ejected)
				assert.LessOrEqual(t, float64(stats.HedgesSent.Load()), 0.02*float64(stats.TotalRequests.Load()))
			})
		})
	}
}

// TestFutileHedgeDoesNotPreventEjectionForEver has one call that is slow at both endpoints, before the far one becomes
// much faster.
func TestFutileHedgeDoesNotPreventEjectionForEver(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var stats *hedge.Stats
		tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithMaxHedges(1), hedge.WithStats(&stats))
		call := func(calls int, near, far time.Duration) {
			rt.Answer = inEndpoints(rt, after(rt, near), after(rt, far))
			for range calls {
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				text(t, resp)
			}
		}
		call(500, 220*ms, 120*ms)
		require.False(t, firstEndpoint(tr).Ejected)
		sent := stats.HedgesSent.Load()
		call(1, 600*ms, time.Second)
		require.Equal(t, sent+1, stats.HedgesSent.Load())
		call(4000, 220*ms, 80*ms)
		assert.True(t, firstEndpoint(tr).Ejected)
	})
}

// TestHedgesLeaveEndpointWhereTheyAreInVain has one call in twenty that is slow at the near endpoint, whichever attempt asks it. Hedges
// there would answer sooner than hedges to the far endpoint if they helped.
func TestHedgesLeaveEndpointWhereTheyAreInVain(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var stats *hedge.Stats
		tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithMaxHedges(1), hedge.WithStats(&stats))
		slow, rescued := 0, 0
		for i := range 2000 {
			near := 20 * ms
			if i%20 == 10 {
				near = 800 * ms
			}
			rt.Answer = inEndpoints(rt, after(rt, near), after(rt, 60*ms))
			start := time.Now()
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
			if i >= 1000 && near > 20*ms {
				if slow++; time.Since(start) < 200*ms {
					rescued++
				}
			}
		}
		assert.GreaterOrEqual(t, rescued, slow*3/4, "of %d slow calls", slow)
		assert.False(t, firstEndpoint(tr).Ejected)
		assert.LessOrEqual(t, float64(stats.HedgesSent.Load()), 0.1*float64(stats.TotalRequests.Load())+20)
	})
}

func TestFasterFirstEndpointIsNotEjected(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, quick(rt), after(rt, 80*ms))
		tr := hedge.New(rt, toFar(hedge.Endpoint{}))
		for range 2000 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
		}
		n := hosts(rt.Sent())
		assert.Equal(t, 2000, n["catalog.test"])
		assert.Less(t, n["catalog.far.test"], 30, "how far away it is, is soon known")
	})
}

func TestEndpointCostIsPaidFromBudget(t *testing.T) {
	sent := func(cost int) (hedges int) {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			var n atomic.Int64
			rt.Answer = inEndpoints(rt, func(r *http.Request, k int) (*http.Response, error) {
				if n.Add(1)%20 == 0 { // less than what has the endpoint left
					return after(rt, 200*ms)(r, k)
				}
				return quick(rt)(r, k)
			}, after(rt, 80*ms))
			tr := hedge.New(rt, toFar(hedge.Endpoint{Cost: cost}), hedge.WithBudgetPercent(3), hedge.WithBurst(0), hedge.WithMaxHedges(1))
			for range 5000 {
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				text(t, resp)
			}
			hedges = hosts(rt.Sent())["catalog.far.test"]
		})
		return hedges
	}
	assert.LessOrEqual(t, sent(1), 5000*3/100+3)
	three := sent(3)
	assert.LessOrEqual(t, three, 5000/100+3)
	assert.Positive(t, three)
}

func TestPrepareReadsAndReplacesBody(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*http.Request) error
		want    string
	}{
		"read": {func(r *http.Request) error {
			b, err := io.ReadAll(r.Body)
			r.Header.Set("X-Sum", fmt.Sprint(len(b)))
			return err
		}, "question"},
		"replaced": {func(r *http.Request) error {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("frage")), 5
			return nil
		}, "frage"},
		"left": {func(*http.Request) error { return nil }, "question"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				var mu sync.Mutex
				got := make(map[string]string)
				rt.Answer = func(r *http.Request, n int) (*http.Response, error) {
					b, _ := io.ReadAll(r.Body)
					mu.Lock()
					got[r.URL.Host] = string(b)
					mu.Unlock()
					if r.GetBody != nil {
						again, err := r.GetBody()
						require.NoError(t, err)
						b2, _ := io.ReadAll(again)
						assert.Equal(t, string(b), string(b2), "a second body is that of the first")
					}
					return after(rt, time.Second, 80*ms)(r, n)
				}
				script := rt.Answer
				rt.Answer = quick(rt)
				tr := hedge.New(rt, toFar(hedge.Endpoint{Prepare: c.prepare}))
				warmUp(t, tr)
				rt.Answer = script
				rt.Forget()
				resp, err := tr.RoundTrip(request(t, t.Context(), "QUERY", site, strings.NewReader("question")))
				require.NoError(t, err)
				text(t, resp)
				mu.Lock()
				defer mu.Unlock()
				assert.Equal(t, map[string]string{"catalog.test": "question", "catalog.far.test": c.want}, got)
			})
		})
	}
}

func TestEndpointsMapRedirectsAndRemoveCookies(t *testing.T) {
	for location, want := range map[string]string{
		"other":                         near + "/other",
		"/mirror/b?x=1#f":               near + "/b?x=1#f",
		far + "/b":                      near + "/b",
		near + "/c":                     near + "/c",
		"/outside":                      "", // below no endpoint
		"https://evil.test/":            "",
		"http://catalog.far.test.evil/": "",
	} {
		t.Run(location, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				away := func(r *http.Request, n int) (*http.Response, error) {
					resp, err := after(rt, 80*ms)(r, n)
					if err == nil {
						resp.StatusCode = http.StatusFound
						resp.Header = http.Header{"Location": {location}, "Set-Cookie": {"session=of-far"}}
					}
					return resp, err
				}
				rt.Answer = inEndpoints(rt, after(rt, time.Second), away)
				tr := warm(t, rt, toFar(hedge.Endpoint{Keep: []string{"x"}}), hedge.WithMaxHedges(1))
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				text(t, resp)
				if want == "" {
					assert.Equal(t, 200, resp.StatusCode, "the primary has won")
					return
				}
				assert.Equal(t, http.StatusFound, resp.StatusCode)
				assert.Equal(t, want, resp.Header.Get("Location"))
				assert.Empty(t, resp.Header["Set-Cookie"])
			})
		})
	}
}

// TestCookieJarStoresNoCookieOfOtherEndpoint has an http.Client, which stores cookies for the host of its request.
func TestCookieJarStoresNoCookieOfOtherEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, after(rt, time.Second), func(r *http.Request, n int) (*http.Response, error) {
			resp, err := quick(rt)(r, n)
			if err == nil {
				resp.Header.Set("Set-Cookie", "session=of-far")
			}
			return resp, err
		})
		jar, err := cookiejar.New(nil)
		require.NoError(t, err)
		client := &http.Client{Transport: warm(t, rt, toFar(hedge.Endpoint{})), Jar: jar}
		resp, err := client.Get(site)
		require.NoError(t, err)
		text(t, resp)
		require.Equal(t, "catalog.far.test", resp.Request.URL.Host)
		assert.Empty(t, jar.Cookies(parse(site)))
	})
}

func TestShadowModeUsesFirstEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, fails, quick(rt))
		tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithShadow())
		for range 100 {
			_, err := get(t, tr, site)
			require.Equal(t, errDown, err)
		}
		assert.Equal(t, map[string]int{"catalog.test": 100}, hosts(rt.Sent()))
	})
}

func TestWithEndpointsPanicsOnInvalidOptions(t *testing.T) {
	for want, all := range map[string][]hedge.Endpoint{
		"1 endpoints: there must be 2 to 8":                                {{URL: near}},
		`endpoint 2: URL "catalog.far.test" is not http://host`:            {{URL: near}, {URL: "catalog.far.test"}},
		`endpoint 1: URL "ftp://a.test" is not http`:                       {{URL: "ftp://a.test"}, {URL: far}},
		`endpoint 2: URL "http://xxxxx@a.test" has credentials`:            {{URL: near}, {URL: "http://u:p@a.test"}},
		`endpoint 2: URL "http://a.test?xxxxx" has more than a path`:       {{URL: near}, {URL: "http://a.test?x=1"}},
		`endpoint 2: URL "http://a.test/b/../c" has a path`:                {{URL: near}, {URL: "http://a.test/b/../c"}},
		`endpoint 2: URL "http://CATALOG.test:80/" is that of`:             {{URL: near}, {URL: "http://CATALOG.test:80/"}},
		`endpoint 2: URL "http://a.test" is not https, as`:                 {{URL: "https://b.test"}, {URL: "http://a.test"}},
		"endpoint 2: Cost -1 is not in [0, 100]":                           {{URL: near}, {URL: far, Cost: -1}},
		`endpoint 2: Keep "" is neither`:                                   {{URL: near}, {URL: far, Keep: []string{""}}},
		`endpoint 2: Drop "a*b" is neither`:                                {{URL: near}, {URL: far, Drop: []string{"a*b"}}},
		"endpoint 1: calls are made for the first endpoint, " + near:       {{URL: near, Cost: 2}, {URL: far}},
		"endpoint 1: calls are made for the first endpoint, " + near + ",": {{URL: near, Prepare: func(*http.Request) error { return nil }}, {URL: far}},
	} {
		func() {
			defer func() {
				assert.Contains(t, fmt.Sprint(recover()), "hedge: WithEndpoints: "+want)
			}()
			hedge.WithEndpoints(all...)
		}()
	}
}

// --- over TLS, with signatures ---

// An aws signs and verifies requests by AWS Signature Version 4, with all headers signed.
type aws struct{ key, region string }

func (a aws) sign(r *http.Request, at string) string {
	names := []string{"host"}
	for name := range r.Header {
		if n := strings.ToLower(name); strings.HasPrefix(n, "x-amz-") || n == "content-type" || n == "range" {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	var canonical strings.Builder
	fmt.Fprintf(&canonical, "%s\n%s\n%s\n", r.Method, r.URL.EscapedPath(), r.URL.Query().Encode())
	for _, n := range names {
		v := r.Header.Get(n)
		if n == "host" {
			v = r.Host
		}
		fmt.Fprintf(&canonical, "%s:%s\n", n, v)
	}
	signed := strings.Join(names, ";")
	fmt.Fprintf(&canonical, "\n%s\n%s", signed, r.Header.Get("X-Amz-Content-Sha256"))
	scope := at[:8] + "/" + a.region + "/s3/aws4_request"
	sum := sha256.Sum256([]byte(canonical.String()))
	key := []byte("AWS4" + a.key)
	for _, part := range append(strings.Split(scope, "/"), "AWS4-HMAC-SHA256\n"+at+"\n"+scope+"\n"+hex.EncodeToString(sum[:])) {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(part))
		key = m.Sum(nil)
	}
	return fmt.Sprintf("AWS4-HMAC-SHA256 Credential=ID/%s, SignedHeaders=%s, Signature=%x", scope, signed, key)
}

func (a aws) prepare(r *http.Request) error {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return err
		}
	}
	at := time.Now().UTC().Format("20060102T150405Z")
	r.Header.Set("X-Amz-Date", at)
	r.Header.Set("X-Amz-Content-Sha256", fmt.Sprintf("%x", sha256.Sum256(body)))
	r.Header.Set("Authorization", a.sign(r, at))
	return nil
}

// check answers 403 if the signature of the request is invalid. A request that was cancelled while its body was on
// the way has no complete body, thus nothing to verify.
func (a aws) check(w http.ResponseWriter, r *http.Request) bool {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return true
	}
	at := r.Header.Get("X-Amz-Date")
	ok := len(at) == 16 && r.Header.Get("X-Amz-Content-Sha256") == fmt.Sprintf("%x", sha256.Sum256(body)) && r.Header.Get("Authorization") == a.sign(r, at)
	if !ok {
		http.Error(w, "the signature does not match", http.StatusForbidden)
	}
	return ok
}

// TestEndpointsReceiveValidSignatures sends signed requests, with and without a body, over HTTP/1.1 and HTTP/2. Two
// servers verify the signature, the Host and the TLS server name.
func TestEndpointsReceiveValidSignatures(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", http2), func(t *testing.T) {
			var stuck, wrong atomic.Int64
			var slow atomic.Bool
			addresses := make(map[string]string)
			serve := func(host string, a aws, nearby bool) *httptest.Server {
				s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Host != host || r.TLS.ServerName != host || !a.check(w, r) {
						wrong.Add(1)
						return
					}
					if nearby && slow.Load() {
						stuck.Add(1)
						<-r.Context().Done()
						return
					}
					fmt.Fprint(w, host)
				}))
				s.EnableHTTP2 = http2
				s.StartTLS()
				t.Cleanup(s.Close)
				addresses[host+":443"] = s.Listener.Addr().String()
				return s
			}
			eu, us := aws{"secret of eu", "eu-west-1"}, aws{"secret of us", "us-east-1"}
			serve("s3.eu.test", eu, true)
			serve("s3.us.test", us, false)
			base := &http.Transport{
				ForceAttemptHTTP2: http2,
				TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
				DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, addresses[addr])
				},
			}
			tr := hedge.New(base, hedge.WithEndpoints(hedge.Endpoint{URL: "https://s3.eu.test"}, hedge.Endpoint{URL: "https://s3.us.test", Prepare: us.prepare, Keep: []string{"list-type", "prefix"}}),
				hedge.WithBudgetPercent(100))
			t.Cleanup(tr.CloseIdleConnections)
			call := func(method, body string) string {
				var r io.Reader
				if body != "" {
					r = strings.NewReader(body)
				}
				req := request(t, t.Context(), method, "https://s3.eu.test/bucket/a%20b?list-type=2&prefix=x", r)
				req.Header.Set("Range", "bytes=0-9")
				if body != "" {
					req.Header.Set("Content-Type", "text/plain")
				}
				get := req.GetBody
				require.NoError(t, eu.prepare(req))
				if get != nil {
					req.Body, _ = get()
				}
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				return text(t, resp)
			}
			for range 20 {
				call("GET", "")
			}
			slow.Store(true)
			for range 5 {
				assert.Equal(t, "s3.us.test", call("GET", ""))
				assert.Equal(t, "s3.us.test", call("QUERY", "select"))
			}
			assert.Positive(t, stuck.Load())
			assert.Zero(t, wrong.Load(), "refused")
		})
	}
}

// parse parses a URL.
func parse(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}
