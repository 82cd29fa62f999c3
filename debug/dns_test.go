package debug_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/observe"
)

var _ debug.DNSClient = (*dnshedge.Client)(nil)

// dnsStats is a DNS client that has these Stats.
type dnsStats observe.DNSStats

func (r dnsStats) Stats() observe.DNSStats { return observe.DNSStats(r) }

// newDNSStats returns a client no number of which is zero.
func newDNSStats(shadow bool) dnsStats {
	s := observe.DNSStats{Name: "resolver", Enabled: true, Shadow: shadow, Cache: new(observe.DNSCacheStats), Upstreams: make([]observe.DNSUpstreamStats, 2)}
	fillFields(reflect.ValueOf(&s).Elem())
	fillFields(reflect.ValueOf(s.Cache).Elem())
	for i := range s.Upstreams {
		fillFields(reflect.ValueOf(&s.Upstreams[i]).Elem())
	}
	s.Cache.Bytes, s.Cache.MaxBytes = 3<<20, 16<<20
	a, b := &s.Upstreams[0], &s.Upstreams[1]
	a.Upstream, a.Queries, a.Hedges, a.HedgeWins, a.Budget, a.Loss = "udp://192.0.2.1:53", 12345, 678, 90, 17.5, 0.021
	a.SRTT, a.P50, a.P99, a.SlowDelay, a.LossDelay, a.Saved, a.ShadowWins = 11*ms, 12*ms, 130*ms, 41*ms, 43*ms, 5000*ms, 55
	a.Denied = map[observe.Reason]int64{observe.DeniedBudget: 3, observe.DeniedShadow: 66}
	b.Upstream, b.Silent = "https://dns.example:443/dns-query", true
	return dnsStats(s)
}

func TestPageShowsStatsOfDNSClient(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		s := newDNSStats(shadow)
		page := getPage(debug.Handler(debug.DNS(s)), "/").Body.String()
		totals, _, ups := parsePage(t, page)
		stats := reflect.ValueOf(s)
		for i := range stats.NumField() {
			name := stats.Type().Field(i).Tag.Get("json")
			if stats.Field(i).Kind() != reflect.Int64 || shadow && strings.HasPrefix(name, "hedge") || name == "resend_wins" {
				continue // the last is a share of the resends
			}
			assert.EqualValues(t, stats.Field(i).Int(), totals.numberOf(t, "data-total "+name))
		}
		assert.EqualValues(t, 7, totals.numberOf(t, "data-total entries"))
		assert.Equal(t, "3.0 MiB", totals["data-total bytes"])
		assert.Contains(t, page, "19 % of 16.0 MiB")
		require.Len(t, ups, 2)
		r := ups["udp://192.0.2.1:53"]
		want := row{"state": "answers", "srtt": "11ms", "loss": "2.1 %", "p50": "12ms", "p99": "130ms", "delay": "43ms", "queries": "12,345",
			"hedges": "678", "wins": "90", "saved": "5s", "budget": "17.5", "data-denied budget": "3"}
		if shadow {
			want["hedges"], want["wins"] = "66", "55"
		}
		assert.Equal(t, want, r)
		assert.Contains(t, page, `<span class="badge bad">silent</span>`)
	}
}

func TestPageLabelsColumnsOfUpstreams(t *testing.T) {
	s := newDNSStats(false)
	s.Upstreams = s.Upstreams[:1]
	page := getPage(debug.Handler(debug.DNS(s)), "/").Body.String()
	var heads, labels []string
	for _, m := range regexp.MustCompile(`<th>(.*?)</th>`).FindAllStringSubmatch(page, -1) {
		heads = append(heads, m[1])
	}
	for _, m := range regexp.MustCompile(`<td[^>]* data-label="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		labels = append(labels, m[1])
	}
	require.Len(t, heads, 13)
	assert.Equal(t, heads, labels)
}

func TestPageShowsNoZeroForUnknownStatsOfUpstream(t *testing.T) {
	s := dnsStats{Upstreams: []observe.DNSUpstreamStats{{Upstream: "udp://192.0.2.1:53"}}}
	page := getPage(debug.Handler(debug.DNS(s)), "/").Body.String()
	_, _, ups := parsePage(t, page)
	r := ups["udp://192.0.2.1:53"]
	for _, name := range []string{"state", "srtt", "loss", "p50", "p99"} {
		assert.Equal(t, "–", r[name], name)
	}
	assert.NotContains(t, page, "from the cache", "there is none")
	assert.Contains(t, page, `<span class="badge bad">off</span>`)
	assert.Contains(t, getPage(debug.Handler(debug.DNS(dnsStats{})), "/").Body.String(), "No server was asked yet.")
}

func TestPageEscapesNamesOfUpstreams(t *testing.T) {
	s := newDNSStats(false)
	s.Name, s.Upstreams[0].Upstream = "<b>\x1b", `udp://"><script>:53`
	page := getPage(debug.Handler(debug.DNS(s)), "/").Body.String()
	assert.NotContains(t, page, "<script")
	assert.NotContains(t, page, "\x1b")
	_, _, ups := parsePage(t, page)
	assert.Contains(t, ups, s.Upstreams[0].Upstream)
}

func TestJSONHasStatsOfDNSClients(t *testing.T) {
	h := debug.Handler(debug.DNS(newDNSStats(false)), hedge.New(nil), debug.DNS(newDNSStats(true)))
	var page debug.Page
	require.NoError(t, json.Unmarshal(getPage(h, "/?format=json").Body.Bytes(), &page))
	require.Len(t, page.Clients, 1)
	assert.Equal(t, "http", page.Clients[0].Protocol)
	assert.Equal(t, []observe.DNSStats{newDNSStats(false).Stats(), newDNSStats(true).Stats()}, page.DNS)
	assert.NotContains(t, getPage(debug.Handler(hedge.New(nil)), "/?format=json").Body.String(), `"dns"`)
}

func TestPageShowsBusiestUpstreams(t *testing.T) {
	s := newDNSStats(false)
	for range 200 {
		s.Upstreams = append(s.Upstreams, observe.DNSUpstreamStats{Upstream: "udp://198.51.100.1:53", Queries: 1})
	}
	page := getPage(debug.Handler(debug.DNS(s)), "/").Body.String()
	assert.Equal(t, 100, strings.Count(page, "<tr data-host="))
	assert.Contains(t, page, "and 102 upstreams with less traffic")
	assert.Contains(t, page, `<tr data-host="udp://192.0.2.1:53">`)
}

func TestDNSPanicsOnNilClient(t *testing.T) {
	assert.PanicsWithValue(t, "debug: DNS: client is nil", func() { debug.DNS(nil) })
	assert.PanicsWithValue(t, "debug: DNS: client is nil", func() { debug.DNS((*dnshedge.Client)(nil)) })
}

func TestPageShowsWorstStateOfUpstream(t *testing.T) {
	for want, u := range map[string]observe.DNSUpstreamStats{
		"down": {Down: true, Silent: true}, "silent": {Silent: true, Failing: true}, "fails": {Failing: true, P50: 1}, "answers": {P50: 1},
	} {
		page := getPage(debug.Handler(debug.DNS(dnsStats{Upstreams: []observe.DNSUpstreamStats{u}})), "/").Body.String()
		assert.Contains(t, page, ">"+want+"<")
		assert.Equal(t, want != "answers", strings.Contains(page, `<span class="badge bad">`+want))
	}
}
