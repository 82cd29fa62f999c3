package debug_test

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/sanitize"
)

const ms = time.Millisecond

// newBusyTransport returns a Transport after a minute of calls in fake time: to a fast host, to
// one with a tail, to one that pushes back, and to one that had a single call.
func newBusyTransport(t *testing.T, opts ...hedge.HTTPOption) *hedge.Transport {
	base := doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		a, _ := hedge.AttemptFromContext(req.Context())
		n, _ := strconv.Atoi(req.URL.RawQuery)
		d, status := time.Duration(20+n%7)*ms/2, 200
		switch {
		case req.URL.Host == "images.test" && n%60 == 0 && !a.Hedge():
			d = 300 * ms
		case req.URL.Host == "busy.test" && n > 1490:
			status = 429
		case req.URL.Host == "busy.test" && n > 1450: // slower and slower, so that all are slower than usual
			d = 300 * ms << ((n - 1450) / 4)
		case req.URL.Path == "/search":
			d *= 8
		}
		if err := doubles.Sleep(req.Context(), d); err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: status, ProtoMajor: 2, Header: http.Header{"Retry-After": {"30"}}, Body: http.NoBody}, nil
	})
	tr := hedge.New(base, append(opts, hedge.WithRoute("/search", hedge.Policy{}))...)
	get := func(method, url string) {
		req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		require.NoError(t, err)
		_, err = tr.RoundTrip(req)
		require.NoError(t, err)
	}
	for i := range 1500 {
		get("GET", fmt.Sprint("http://catalog.test/item?", i))
		if i%2 == 0 {
			get("GET", fmt.Sprint("http://images.test/1?", i))
		}
		if i%5 == 0 {
			get("GET", fmt.Sprint("http://catalog.test/search?", i))
			get("POST", "http://catalog.test/order")
		}
		if i > 1400 {
			get("GET", fmt.Sprint("http://busy.test/?", i))
		}
		time.Sleep(3 * ms)
	}
	get("GET", "http://new.test/")
	return tr
}

func getPage(h http.Handler, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w
}

func TestJSONHasSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newBusyTransport(t, hedge.WithName("shop"))
		w := getPage(debug.Handler(tr, hedge.NewHedger()), "/debug/hedge?format=json")
		assert.Equal(t, "application/json; charset=utf-8", w.Header().Get("Content-Type"))
		var got debug.Page
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
		require.Len(t, got.Clients, 2)
		want, err := json.Marshal(tr.Snapshot())
		require.NoError(t, err)
		have, err := json.Marshal(got.Clients[0])
		require.NoError(t, err)
		assert.JSONEq(t, string(want), string(have))
	})
}

// A row holds the numbers of one key on the page by their names.
type row map[string]string

// parsePage reads the numbers on the page. It fails the test if the page is not well-formed XML.
func parsePage(t *testing.T, page string) (totals, config row, keys map[string]row) {
	totals, config, keys = row{}, row{}, map[string]row{}
	d := xml.NewDecoder(strings.NewReader(page))
	d.Entity = xml.HTMLEntity
	var into func(string)
	var key row
	for {
		token, err := d.Token()
		if err == io.EOF {
			return totals, config, keys
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			attr := map[string]string{}
			for _, a := range token.Attr {
				attr[a.Name.Local] = a.Value
			}
			if host, ok := attr["data-host"]; ok {
				key = row{}
				keys[strings.TrimSpace(host+" "+attr["data-route"])] = key
			}
			into = nil
			for name, target := range map[string]row{"data-total": totals, "data-config": config, "data-n": key, "data-denied": key} {
				if id, ok := attr[name]; ok {
					into = func(text string) { target[strings.TrimPrefix(name+" ", "data-n ")+id] = text }
				}
			}
		case xml.CharData:
			if into != nil {
				into(string(token))
				into = nil
			}
		}
	}
}

func (r row) numberOf(t *testing.T, name string) float64 {
	n, err := strconv.ParseFloat(strings.NewReplacer(",", "", " %", "").Replace(r[name]), 64)
	assert.NoError(t, err, name)
	return n
}

func (r row) durationOf(t *testing.T, name string) float64 {
	d, err := time.ParseDuration(r[name])
	assert.NoError(t, err, name)
	return float64(d)
}

func TestPageShowsNumbersOfSnapshot(t *testing.T) {
	for name, opts := range map[string][]hedge.HTTPOption{"hedging": nil, "shadow": {hedge.WithShadow()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newBusyTransport(t, opts...)
				s := tr.Snapshot()
				totals, config, keys := parsePage(t, getPage(debug.Handler(tr), "/").Body.String())
				assert.EqualValues(t, s.Stats.TotalRequests, totals.numberOf(t, "data-total total_requests"))
				assert.EqualValues(t, s.Stats.NotHedgeable, totals.numberOf(t, "data-total not_hedgeable"))
				assert.EqualValues(t, s.Stats.WarmupRequests, totals.numberOf(t, "data-total warmup_requests"))
				if !s.Shadow {
					assert.EqualValues(t, s.Stats.HedgesSent, totals.numberOf(t, "data-total hedges_sent"))
					assert.EqualValues(t, s.Stats.HedgeWins, totals.numberOf(t, "data-total hedge_wins"))
					assert.EqualValues(t, s.Stats.HedgedRequests, totals.numberOf(t, "data-total hedged_requests"))
					assert.EqualValues(t, s.Stats.PrimaryWins, totals.numberOf(t, "data-total primary_wins"))
				}
				assert.Equal(t, "10", config["data-config budget_percent"])
				assert.Equal(t, "1ms", config["data-config min_delay"])
				require.Len(t, keys, len(s.Keys))
				for _, k := range s.Keys {
					r := keys[strings.TrimSpace(k.Host+" "+k.Route)]
					require.NotNil(t, r, k.Host)
					hedges, wins := k.Hedges, k.Wins
					if s.Shadow {
						hedges, wins = k.Denied[hedge.DeniedShadow], k.ShadowWins
					}
					assert.EqualValues(t, k.Requests, r.numberOf(t, "requests"))
					assert.EqualValues(t, k.Samples, r.numberOf(t, "samples"))
					assert.EqualValues(t, hedges, r.numberOf(t, "hedges"))
					assert.EqualValues(t, wins, r.numberOf(t, "wins"))
					assert.InDelta(t, k.Budget, r.numberOf(t, "budget"), 0.051)
					assert.InDelta(t, 100*k.SlowShare, r.numberOf(t, "slow"), 0.51)
					assert.InEpsilon(t, k.P50, r.durationOf(t, "p50"), 0.01)
					assert.InEpsilon(t, k.P90, r.durationOf(t, "p90"), 0.01)
					assert.InEpsilon(t, k.P99, r.durationOf(t, "p99"), 0.01)
					assert.InDelta(t, k.Saved, r.durationOf(t, "saved"), float64(k.Saved)/100)
					if len(k.Delays) == 0 {
						assert.Equal(t, "not yet", r["delays"])
					} else {
						var delays []string
						for d := range strings.SplitSeq(r["delays"], ", ") {
							delays = append(delays, d)
						}
						require.Len(t, delays, len(k.Delays))
						for i, d := range delays {
							assert.InEpsilon(t, k.Delays[i], row{"d": d}.durationOf(t, "d"), 0.01)
						}
					}
					if k.Denied[hedge.DeniedPaused] > 0 {
						assert.EqualValues(t, k.Denied[hedge.DeniedPaused], r.numberOf(t, "data-denied paused"))
					}
					if left := time.Until(k.PausedUntil); left > 0 {
						assert.InEpsilon(t, left, r.durationOf(t, "paused"), 0.01)
					}
					if k.PushBackShare >= 0.001 {
						assert.InDelta(t, 100*k.PushBackShare, r.numberOf(t, "pushback"), 0.51)
					} else {
						assert.Empty(t, r["pushback"])
					}
				}
				assert.NotEmpty(t, keys["busy.test"]["paused"])
				assert.NotEmpty(t, keys["busy.test"]["pushback"])
				assert.NotEmpty(t, keys["busy.test"]["data-denied slow"])
				assert.Positive(t, keys["images.test"].numberOf(t, "wins"))
			})
		})
	}
}

func TestPageHasNoScriptsAndExternalResources(t *testing.T) {
	w := getPage(debug.Handler(hedge.New(nil)), "/?refresh=7")
	page := w.Body.String()
	assert.Contains(t, page, `http-equiv="refresh" content="7"`)
	for _, bad := range []string{"<script", "http://", "https://", "url(", "@import", "onload"} {
		assert.NotContains(t, page, bad)
	}
	assert.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	assert.NotContains(t, getPage(debug.Handler(hedge.New(nil)), "/?refresh=0").Body.String(), "http-equiv")
	assert.Contains(t, getPage(debug.Handler(), "/").Body.String(), "Nothing to show")
}

func TestPageLabelsColumnsOfKeys(t *testing.T) {
	columns := regexp.MustCompile(`(?s)<th(?: [^>]*)?>(.*?)</th>`)
	cells := regexp.MustCompile(`<td[^>]*>`)
	label := regexp.MustCompile(` data-label="([^"]*)"`)
	for name, source := range map[string]debug.Source{
		"hedging": newCrowdedSnapshot(false), "shadow": newCrowdedSnapshot(true), "nothing known": clientSnapshot{Keys: make([]hedge.KeySnapshot, 1)},
	} {
		page := getPage(debug.Handler(source), "/").Body.String()
		endpoints := regexp.MustCompile(`(?s)<tr class="endpoints"><td colspan="13">(.*?)</table></td></tr>`).FindStringSubmatch(page)
		if name == "nothing known" {
			require.Nil(t, endpoints)
		} else {
			require.NotNil(t, endpoints)
			var heads, labels []string
			for _, m := range columns.FindAllStringSubmatch(endpoints[1], -1) {
				heads = append(heads, m[1])
			}
			for _, m := range label.FindAllStringSubmatch(endpoints[1], -1) {
				labels = append(labels, m[1])
			}
			require.Len(t, heads, 7)
			assert.Equal(t, append(heads, heads...), labels, "there are two endpoints")
			page = strings.Replace(page, endpoints[0], "", 1)
		}
		var heads, labels []string
		for _, m := range columns.FindAllStringSubmatch(page, -1) {
			if strings.Contains(m[1], "<svg") {
				m[1] = "" // the axis
			}
			heads = append(heads, m[1])
		}
		for _, cell := range cells.FindAllString(page, -1) {
			m := label.FindStringSubmatch(cell)
			require.NotNil(t, m, cell)
			labels = append(labels, m[1])
		}
		require.Len(t, heads, 13)
		assert.Equal(t, "denied", heads[12])
		assert.Equal(t, heads, labels, name) // the page has one row
	}
}

// What a browser shows at these widths can be looked at with TestWritePage.
func TestPageShowsCardsInNarrowWindows(t *testing.T) {
	s := newCrowdedSnapshot(false)
	s.Keys[0].Audit = nil
	page := getPage(debug.Handler(s), "/").Body.String()
	assert.Contains(t, page, `<meta name="viewport" content="width=device-width, initial-scale=1"/>`)
	assert.Contains(t, page, "@media (prefers-color-scheme: dark)")
	cards := regexp.MustCompile(`(?s)@media \(max-width: (\d+)px\) \{.*?\n\}`).FindStringSubmatch(page)
	require.NotNil(t, cards)
	width, err := strconv.Atoi(cards[1])
	require.NoError(t, err)
	assert.Less(t, width, 1280)
	assert.Greater(t, width, 500)
	assert.Contains(t, cards[0], "thead { display: none; }")
	assert.Contains(t, cards[0], "tr { display: grid;")
	assert.Contains(t, cards[0], "content: attr(data-label)")
	assert.NotContains(t, page, "overflow-x", "nothing is scrolled sideways")
}

func TestPageMarksSlowShareAboveLimit(t *testing.T) {
	for slow, red := range map[float64]bool{policy.SlowLimit: false, policy.SlowLimit + 0.01: true} {
		s := newClientSnapshot(false)
		s.Keys[0].SlowShare = slow
		page := getPage(debug.Handler(s), "/").Body.String()
		assert.Equal(t, red, strings.Contains(page, `class="over"`), "%v", slow)
		assert.Contains(t, page, "no hedges above 75 %")
	}
}

func TestPageRoundsDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1234567: "1.23ms", 59 * time.Minute: "59m0s", 90*time.Minute + 20*time.Second: "1h30m", 123*time.Hour + 40*time.Minute: "124h",
	} {
		s := newClientSnapshot(false)
		s.Keys[0].Audit, s.Keys[0].Saved = nil, d
		_, _, keys := parsePage(t, getPage(debug.Handler(s), "/").Body.String())
		for _, r := range keys {
			assert.Equal(t, want, r["saved"])
		}
	}
}

func TestPageEscapesNames(t *testing.T) {
	h := hedge.NewHedger(hedge.WithName("<b>"))
	_, err := hedge.Do(t.Context(), h, `"><script>alert(1)</script>`, func(context.Context) (int, error) { return 0, nil })
	require.NoError(t, err)
	page := getPage(debug.Handler(h), "/").Body.String()
	assert.NotContains(t, page, "<script")
	_, _, keys := parsePage(t, page)
	assert.Contains(t, keys, `"><script>alert(1)</script>`)
}

func TestPageShowsAnyName(t *testing.T) {
	h := hedge.NewHedger(hedge.WithName("shop\xff\x00"))
	for _, key := range []string{"user-\xff", "a\x00b\x1b[2J", strings.Repeat("k", 10000)} {
		_, err := hedge.Do(t.Context(), h, key, func(context.Context) (int, error) { return 0, nil })
		require.NoError(t, err)
	}
	page := getPage(debug.Handler(h), "/").Body.String()
	assert.True(t, utf8.ValidString(page))
	assert.Contains(t, page, "<h2>shop\uFFFD\uFFFD<")
	_, _, keys := parsePage(t, page)
	for _, key := range []string{"user-\uFFFD", "a\uFFFDb\uFFFD[2J", sanitize.CleanText(strings.Repeat("k", 10000))} {
		assert.Contains(t, keys, key)
	}
	text := getPage(debug.Handler(h), "/?format=json").Body.Bytes()
	assert.True(t, utf8.Valid(text))
	var p debug.Page
	require.NoError(t, json.Unmarshal(text, &p))
	require.Len(t, p.Clients[0].Keys, 3)
	assert.Equal(t, "a\x00b\x1b[2J", p.Clients[0].Keys[0].Host)
}

func TestHandlerPanicsOnNilSource(t *testing.T) {
	for _, s := range []debug.Source{nil, (*hedge.Transport)(nil)} {
		assert.PanicsWithValue(t, "debug: Handler: source 1 is nil", func() { debug.Handler(hedge.New(nil), s) })
	}
}

// TestPageShowsNoWinRateAbove100Percent has clients with and without shadow mode, with the same Stats and hosts.
func TestPageShowsNoWinRateAbove100Percent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := new(hedge.Stats)
		h := debug.Handler(newBusyTransport(t, hedge.WithStats(&stats), hedge.WithShadow()), newBusyTransport(t, hedge.WithStats(&stats)))
		shares := regexp.MustCompile(`(\d+(?:\.\d)?) % (of those|of those hedged|extra load|of all)<`).FindAllStringSubmatch(getPage(h, "/").Body.String(), -1)
		require.Len(t, shares, 2+4)
		for _, m := range shares {
			f, err := strconv.ParseFloat(m[1], 64)
			require.NoError(t, err)
			assert.Positive(t, f, m[0])
			assert.LessOrEqual(t, f, 100.0, m[0])
		}
	})
}

func TestHandlerAcceptsOnlyGetAndHead(t *testing.T) {
	tr := hedge.New(nil)
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		w := httptest.NewRecorder()
		debug.Handler(tr).ServeHTTP(w, httptest.NewRequest(method, "/", nil))
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code)
	}
	assert.Empty(t, tr.Snapshot().Keys)
}

func TestPageShowsBusiestKeys(t *testing.T) {
	h := hedge.NewHedger()
	for i := range 150 {
		for range 1 + i%2 {
			_, _ = hedge.Do(t.Context(), h, fmt.Sprint("k", i), func(context.Context) (int, error) { return 0, errors.New("down") })
		}
	}
	page := getPage(debug.Handler(h), "/").Body.String()
	_, _, keys := parsePage(t, page)
	assert.Len(t, keys, 100)
	for i := 1; i < 150; i += 2 {
		assert.Contains(t, keys, fmt.Sprint("k", i))
	}
	assert.Contains(t, page, "and 50 keys")
}

// TestPageShowsEndpointsBelowTheirKey has one endpoint in each state.
func TestPageShowsEndpointsBelowTheirKey(t *testing.T) {
	s := newClientSnapshot(false)
	s.Keys[0].Endpoints = []hedge.EndpointSnapshot{
		{Endpoint: "https://eu.api.example", Calls: 1234, Hedges: 5, Failures: 6, Overtaken: 7, BadShare: 0.123, Ejected: true},
		{Endpoint: "https://us.api.example", Ejected: true, Slower: true},
		{Endpoint: "https://<b>\xff", Calls: 8},
	}
	tags := regexp.MustCompile(`(?s)<[^>]*>`)
	rows := regexp.MustCompile(`(?s)<tr data-endpoint="([^"]*)">(.*?)</tr>`).FindAllStringSubmatch(getPage(debug.Handler(s), "/").Body.String(), -1)
	var got []string
	for _, row := range rows {
		cells := strings.ReplaceAll(strings.ReplaceAll(row[2], "\n", ""), "</td>", "|")
		got = append(got, tags.ReplaceAllString(cells, ""))
		assert.True(t, strings.HasPrefix(got[len(got)-1], row[1]+"|"))
	}
	assert.Equal(t, []string{
		"https://eu.api.example|ejected|1,234|5|6|7|12 %|", "https://us.api.example|ejected: slower|0|0|0|0|0 %|", "https://&lt;b&gt;\uFFFD|ready|8|0|0|0|0 %|",
	}, got)
	s.Keys[0].Endpoints = nil
	assert.NotContains(t, getPage(debug.Handler(s), "/").Body.String(), "<tr class=\"endpoints\">")
}

// TestPageShowsEjectedAndRestoredEndpoint looks at the page of a Transport while its first endpoint is up, down, and up again.
func TestPageShowsEjectedAndRestoredEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		tr := hedge.New(doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			d := 80 * ms
			if req.URL.Host == "near.test" {
				d = 10 * ms
			}
			if err := doubles.Sleep(req.Context(), d); err != nil {
				return nil, err
			}
			if down && req.URL.Host == "near.test" {
				return nil, errors.New("connection refused")
			}
			return &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody}, nil
		}), hedge.WithEndpoints(hedge.Endpoint{URL: "http://near.test"}, hedge.Endpoint{URL: "http://far.test"}))
		rows := regexp.MustCompile(`(?s)<tr data-endpoint="([^"]*)">(.*?)</tr>`)
		tags := regexp.MustCompile(`(?s)<[^>]*>|\n`)
		after := func(calls int, isDown bool) (rendered []string) {
			synctest.Wait() // attempts read it
			down = isDown
			for range calls {
				req, err := http.NewRequestWithContext(t.Context(), "GET", "http://near.test/", nil)
				require.NoError(t, err)
				_, _ = tr.RoundTrip(req)
				time.Sleep(time.Second) // losers have ended
			}
			for _, row := range rows.FindAllStringSubmatch(getPage(debug.Handler(tr), "/").Body.String(), -1) {
				rendered = append(rendered, tags.ReplaceAllString(strings.ReplaceAll(row[2], "</td>", "|"), ""))
			}
			return rendered
		}
		shown := after(50, false)
		require.Len(t, shown, 2)
		assert.Contains(t, shown[0], "http://near.test|ready|50|0|0|0|0 %|")
		assert.Contains(t, shown[1], "http://far.test|ready|0|")
		assert.Contains(t, after(6, true)[0], "http://near.test|ejected|56|0|6|0|2.3 %|")
		shown = after(100, true)
		assert.Contains(t, shown[0], "http://near.test|ejected|56|")
		assert.Contains(t, shown[1], "http://far.test|ready|100|")
		assert.Contains(t, after(5000, false)[0], "http://near.test|ready|")
	})
}

// newCrowdedSnapshot returns a source whose names and numbers are as wide as they get.
func newCrowdedSnapshot(shadow bool) clientSnapshot {
	s := newClientSnapshot(shadow)
	s.Name, s.Protocol, s.Enabled = "a client with a long name", "http", true
	s.Stats = hedge.StatsSnapshot{
		TotalRequests: 23_456_789, HedgedRequests: 1_234_567, HedgesSent: 1_456_789, HedgeWins: 765_432, PrimaryWins: 469_135,
		NotHedgeable: 3_456_789, WarmupRequests: 12_345, BudgetExhausted: 123_456, HedgePanics: 1_234, ObserverPanics: 1_234,
	}
	k := &s.Keys[0]
	k.Host, k.Route = "a-long-name-of-a-host.in-some-zone.example.com:8443", "/shop.catalog.v1.CatalogService/ListItemsOfCategory"
	k.Requests, k.Samples, k.Hedges, k.Wins, k.ShadowWins = 23_456_789, 12_345, 1_456_789, 765_432, 765_432
	k.P50, k.P90, k.P99, k.Saved = 12345*time.Microsecond, 123456*time.Microsecond, 1234567*time.Microsecond, 123*time.Hour
	k.Delays = []time.Duration{123456 * time.Microsecond, 234567 * time.Microsecond, 345678 * time.Microsecond}
	k.Budget, k.SlowShare, k.PushBackShare = 1234.5, 0.8, 0.123
	wide := "https://" + strings.Repeat("a-long-name-of-an-endpoint.", 8) + "example.com:8443/" + strings.Repeat("x", 90)
	k.Endpoints = []hedge.EndpointSnapshot{
		{Endpoint: wide, Calls: 23_456_789, Hedges: 1_456_789, Failures: 765_432, Overtaken: 765_432, BadShare: 0.123, Ejected: true, Slower: true},
		{Endpoint: "https://us.api.example", Calls: 1_456_789, Hedges: 1_456_789},
	}
	k.Denied = map[hedge.Reason]int64{
		hedge.DeniedBudget: 123_456, hedge.DeniedSlow: 234_567, hedge.DeniedPaused: 12_345, hedge.DeniedDeadline: 1_234,
		hedge.DeniedInFlight: 12_345, hedge.DeniedNotReady: 123_456, hedge.DeniedSameBackend: 1_234, hedge.DeniedShadow: 1_456_789,
	}
	return s
}

// TestWritePage writes a page to the file in HEDGE_DEBUG_PAGE, for a manual check in a browser.
func TestWritePage(t *testing.T) {
	name := os.Getenv("HEDGE_DEBUG_PAGE")
	if name == "" {
		t.Skip("HEDGE_DEBUG_PAGE is not set")
	}
	synctest.Test(t, func(t *testing.T) {
		h := debug.Handler(newBusyTransport(t, hedge.WithName("shop")), newBusyTransport(t, hedge.WithName("search"), hedge.WithShadow()), newCrowdedSnapshot(false), newCrowdedSnapshot(true), debug.DNS(newDNSStats(false)), debug.DNS(newDNSStats(true)))
		require.NoError(t, os.WriteFile(name, getPage(h, "/").Body.Bytes(), 0o644))
	})
}

func TestPageShowsResultOfAudit(t *testing.T) {
	for _, test := range []struct {
		audit hedge.Audit
		want  string
	}{
		{hedge.Audit{Verdict: hedge.AuditOn, Confidence: 0.99, Pairs: 5, P99: 64 * ms, Saved: 38 * ms, PlusMinus: 4 * ms}, "saves 38ms ± 4ms of p99, 99 % sure"},
		{hedge.Audit{Verdict: hedge.AuditOff, Confidence: 0.98, Pairs: 5, P99: 64 * ms, Saved: -132 * ms, PlusMinus: 21 * ms}, "costs 132ms ± 21ms of p99, 98 % sure"},
		{hedge.Audit{Verdict: hedge.AuditOff, Confidence: 0.98, Pairs: 5}, "98 % sure"},
		{hedge.Audit{Verdict: hedge.AuditOn, Confidence: 0.9999, Pairs: 9}, "more than 99 % sure"},
		{hedge.Audit{Verdict: hedge.AuditSame, Confidence: 0.7, Pairs: 36, P99: 64 * ms, Saved: 2 * ms, PlusMinus: 4 * ms}, "saves 2ms ± 4ms of p99, no difference found"},
		{hedge.Audit{Verdict: hedge.AuditTrying, Confidence: 0.7, Pairs: 3, P99: 64 * ms, Saved: 2 * ms, PlusMinus: 4 * ms}, "saves 2ms ± 4ms of p99, not sure yet"},
		{hedge.Audit{Verdict: hedge.AuditUnclear, Confidence: 0.5, Pairs: 9}, "calls take too long to tell"},
		{
			hedge.Audit{Verdict: hedge.AuditOn, Confidence: 0.987, Pairs: 9, P99: 3000 * ms, Saved: 2980 * ms, PlusMinus: 4 * ms, FailuresSaved: 0.03, FailuresPlusMinus: 0.01},
			"saves 2.98s ± 4ms of p99, saves 3.0 % of the calls from failing, 99 % sure",
		},
		{hedge.Audit{Verdict: hedge.AuditOff, Confidence: 0.987, Pairs: 9, FailuresSaved: -0.01, FailuresPlusMinus: 0.002}, "makes 1.0 % of the calls fail, 99 % sure"},
		{hedge.Audit{Verdict: hedge.AuditTrying}, "measuring"},
	} {
		s := newClientSnapshot(false)
		s.Keys[0].Audit = &test.audit
		_, _, keys := parsePage(t, getPage(debug.Handler(s), "/").Body.String())
		for _, r := range keys {
			assert.Equal(t, test.want, r["measured"])
			assert.EqualValues(t, test.audit.Verdict, r["audit"])
		}
	}
}

func TestPageShowsObstaclesToResumption(t *testing.T) {
	s := newClientSnapshot(false)
	assert.NotContains(t, getPage(debug.Handler(s), "/").Body.String(), "not resumed")
	s.Keys[0].Unresumed = map[string]int64{"usual": 12, "small": 3}
	assert.Contains(t, getPage(debug.Handler(s), "/").Body.String(), `bodies not resumed: <span data-n="unresumed">small 3, usual 12</span>`)
}

// TestPageShowsNoEstimateBesideAudit checks that the measured value is shown in a cell with line breaks, and no
// estimate.
func TestPageShowsNoEstimateBesideAudit(t *testing.T) {
	s := newClientSnapshot(false)
	shown := getPage(debug.Handler(s), "/").Body.String()
	assert.Contains(t, shown, `<span data-total="saved">–</span><small>not estimated: the audit of each key measures it</small>`)
	assert.Contains(t, shown, `<td class="audit" data-label="saved">`)
	assert.Regexp(t, `<span data-total="audit">1</span>.*measured; 0 lose`, shown)
	assert.Contains(t, shown, "@media (max-width: 1439px)")
	s.Keys[0].Audit = nil
	shown = getPage(debug.Handler(s), "/").Body.String()
	assert.NotContains(t, shown, `class="audit"`)
	assert.Contains(t, shown, "@media (max-width: 1239px)")
	assert.Contains(t, shown, "at least; estimated")
}
