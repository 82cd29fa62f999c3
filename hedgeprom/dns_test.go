package hedgeprom_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/observe"
)

// resolver is a DNS client that has these Stats.
type resolver observe.DNSStats

func (r *resolver) Stats() observe.DNSStats { return observe.DNSStats(*r) }

func newResolver(name string) *resolver {
	return &resolver{
		Name: name, Queries: 100, Hits: 60, Stale: 3, Local: 9, SearchMisses: 11, Failures: 2, Dropped: 8, Resends: 4, Failovers: 5, Fallbacks: 6, Ignored: 7,
		Cache: &observe.DNSCacheStats{Entries: 30, Bytes: 5000, MaxBytes: 1 << 24},
		Upstreams: []observe.DNSUpstreamStats{
			{Upstream: "udp://192.0.2.1:53", Queries: 40, Hedges: 3, HedgeWins: 2, SRTT: 20 * time.Millisecond, Loss: 0.02, Failing: true},
			{Upstream: "udp://192.0.2.2:53", Queries: 9, Silent: true},
		},
	}
}

func TestCollectorShowsStatsOfDNSClient(t *testing.T) {
	c := hedgeprom.New()
	assert.Zero(t, testutil.CollectAndCount(c), "there is no client yet")
	c.AddDNS(newResolver("shop"))
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_dns_cache_bytes Memory that the cache takes, estimated.
# TYPE hedge_dns_cache_bytes gauge
hedge_dns_cache_bytes{client="shop"} 5000
# HELP hedge_dns_cache_entries Answers in the cache.
# TYPE hedge_dns_cache_entries gauge
hedge_dns_cache_entries{client="shop"} 30
# HELP hedge_dns_cache_hits_total Questions answered from the cache.
# TYPE hedge_dns_cache_hits_total counter
hedge_dns_cache_hits_total{client="shop"} 60
# HELP hedge_dns_cache_max_bytes Memory that the cache may take.
# TYPE hedge_dns_cache_max_bytes gauge
hedge_dns_cache_max_bytes{client="shop"} 1.6777216e+07
# HELP hedge_dns_dropped_total Questions that ended because there were too many.
# TYPE hedge_dns_dropped_total counter
hedge_dns_dropped_total{client="shop"} 8
# HELP hedge_dns_failovers_total Queries sent because another server could not answer.
# TYPE hedge_dns_failovers_total counter
hedge_dns_failovers_total{client="shop"} 5
# HELP hedge_dns_failures_total Exchanges without any answer.
# TYPE hedge_dns_failures_total counter
hedge_dns_failures_total{client="shop"} 2
# HELP hedge_dns_fallbacks_total Questions put to a fallback server.
# TYPE hedge_dns_fallbacks_total counter
hedge_dns_fallbacks_total{client="shop"} 6
# HELP hedge_dns_hedge_wins_total Hedges to the upstream that gave the answer.
# TYPE hedge_dns_hedge_wins_total counter
hedge_dns_hedge_wins_total{client="shop",host="udp://192.0.2.1:53"} 2
hedge_dns_hedge_wins_total{client="shop",host="udp://192.0.2.2:53"} 0
# HELP hedge_dns_hedges_total Hedges sent to the upstream.
# TYPE hedge_dns_hedges_total counter
hedge_dns_hedges_total{client="shop",host="udp://192.0.2.1:53"} 3
hedge_dns_hedges_total{client="shop",host="udp://192.0.2.2:53"} 0
# HELP hedge_dns_ignored_messages_total Messages that answered no query.
# TYPE hedge_dns_ignored_messages_total counter
hedge_dns_ignored_messages_total{client="shop"} 7
# HELP hedge_dns_local_answers_total Questions answered without cache and servers.
# TYPE hedge_dns_local_answers_total counter
hedge_dns_local_answers_total{client="shop"} 9
# HELP hedge_dns_loss_ratio Share of the last queries to the upstream without an answer.
# TYPE hedge_dns_loss_ratio gauge
hedge_dns_loss_ratio{client="shop",host="udp://192.0.2.1:53"} 0.02
hedge_dns_loss_ratio{client="shop",host="udp://192.0.2.2:53"} 0
# HELP hedge_dns_queries_total Queries sent to the upstream, for any reason.
# TYPE hedge_dns_queries_total counter
hedge_dns_queries_total{client="shop",host="udp://192.0.2.1:53"} 40
hedge_dns_queries_total{client="shop",host="udp://192.0.2.2:53"} 9
# HELP hedge_dns_questions_total Questions asked of the client.
# TYPE hedge_dns_questions_total counter
hedge_dns_questions_total{client="shop"} 100
# HELP hedge_dns_resends_total Queries sent again because they were taken for lost.
# TYPE hedge_dns_resends_total counter
hedge_dns_resends_total{client="shop"} 4
# HELP hedge_dns_round_trip_seconds Smoothed round trip time to the upstream; 0 if it is unknown.
# TYPE hedge_dns_round_trip_seconds gauge
hedge_dns_round_trip_seconds{client="shop",host="udp://192.0.2.1:53"} 0.02
hedge_dns_round_trip_seconds{client="shop",host="udp://192.0.2.2:53"} 0
# HELP hedge_dns_search_misses_total Questions for names that do not exist in a search domain.
# TYPE hedge_dns_search_misses_total counter
hedge_dns_search_misses_total{client="shop"} 11
# HELP hedge_dns_stale_answers_total Questions answered with an expired answer.
# TYPE hedge_dns_stale_answers_total counter
hedge_dns_stale_answers_total{client="shop"} 3
# HELP hedge_dns_upstream_failing 1 if three responses in a row were failures, and 0 otherwise.
# TYPE hedge_dns_upstream_failing gauge
hedge_dns_upstream_failing{client="shop",host="udp://192.0.2.1:53"} 1
hedge_dns_upstream_failing{client="shop",host="udp://192.0.2.2:53"} 0
# HELP hedge_dns_upstream_silent 1 if three queries in a row had no answer, and 0 otherwise.
# TYPE hedge_dns_upstream_silent gauge
hedge_dns_upstream_silent{client="shop",host="udp://192.0.2.1:53"} 0
hedge_dns_upstream_silent{client="shop",host="udp://192.0.2.2:53"} 1
`)))
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestCollectorMergesDNSClientsOfSameName(t *testing.T) {
	c := hedgeprom.New()
	slow := newResolver("shop")
	slow.Upstreams[0].SRTT, slow.Cache = time.Second, nil
	for _, r := range []*resolver{newResolver("shop"), slow, newResolver("")} {
		c.AddDNS(r)
	}
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_dns_cache_entries Answers in the cache.
# TYPE hedge_dns_cache_entries gauge
hedge_dns_cache_entries{client=""} 30
hedge_dns_cache_entries{client="shop"} 30
# HELP hedge_dns_questions_total Questions asked of the client.
# TYPE hedge_dns_questions_total counter
hedge_dns_questions_total{client=""} 100
hedge_dns_questions_total{client="shop"} 200
# HELP hedge_dns_round_trip_seconds Smoothed round trip time to the upstream; 0 if it is unknown.
# TYPE hedge_dns_round_trip_seconds gauge
hedge_dns_round_trip_seconds{client="",host="udp://192.0.2.1:53"} 0.02
hedge_dns_round_trip_seconds{client="",host="udp://192.0.2.2:53"} 0
hedge_dns_round_trip_seconds{client="shop",host="udp://192.0.2.1:53"} 1
hedge_dns_round_trip_seconds{client="shop",host="udp://192.0.2.2:53"} 0
`), "hedge_dns_cache_entries", "hedge_dns_questions_total", "hedge_dns_round_trip_seconds"))
}

func TestCollectorKeepsCountersOfForgottenUpstreams(t *testing.T) {
	c := hedgeprom.New()
	one, other := newResolver("shop"), newResolver("shop")
	c.AddDNS(one)
	c.AddDNS(other)
	assertQueries := func(series string) {
		t.Helper()
		assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_dns_queries_total Queries sent to the upstream, for any reason.
# TYPE hedge_dns_queries_total counter
`+series), "hedge_dns_queries_total"))
	}
	all := one.Upstreams
	assertQueries(`
hedge_dns_queries_total{client="shop",host="udp://192.0.2.1:53"} 80
hedge_dns_queries_total{client="shop",host="udp://192.0.2.2:53"} 18
`)
	one.Upstreams = nil
	other.Upstreams[0].Queries++
	for range 2 {
		assertQueries(`
hedge_dns_queries_total{client="shop",host="udp://192.0.2.1:53"} 81
hedge_dns_queries_total{client="shop",host="udp://192.0.2.2:53"} 18
`)
	}
	one.Upstreams = all
	one.Upstreams[0].Queries = 1 // it counts from 0 again
	other.Upstreams = other.Upstreams[:1]
	one.Upstreams = one.Upstreams[:1]
	assertQueries(`
hedge_dns_queries_total{client="shop",host="udp://192.0.2.1:53"} 82
`)
	one.Upstreams, other.Upstreams = nil, nil
	assert.Zero(t, testutil.CollectAndCount(c, "hedge_dns_queries_total"))
	one.Upstreams = all[:1]
	assertQueries(`
hedge_dns_queries_total{client="shop",host="udp://192.0.2.1:53"} 1
`)
}

func TestCollectorRemovesClosedDNSClient(t *testing.T) {
	c := hedgeprom.New()
	old := newResolver("shop")
	c.AddDNS(old)
	assertQuestions := func(want int) {
		t.Helper()
		assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(fmt.Sprintf(`
# HELP hedge_dns_cache_entries Answers in the cache.
# TYPE hedge_dns_cache_entries gauge
hedge_dns_cache_entries{client="shop"} 30
# HELP hedge_dns_questions_total Questions asked of the client.
# TYPE hedge_dns_questions_total counter
hedge_dns_questions_total{client="shop"} %d
`, want)), "hedge_dns_cache_entries", "hedge_dns_questions_total"))
	}
	assertQuestions(100)
	gone := make(chan struct{})
	runtime.AddCleanup(old, func(gone chan struct{}) { close(gone) }, gone)
	old.Queries += 7 // between the last collection and Close
	old.Closed = true
	next := newResolver("shop")
	c.AddDNS(next)
	assertQuestions(207)
	c.AddDNS(old)
	assertQuestions(207)
	old = nil
	for range 100 {
		runtime.GC()
		select {
		case <-gone:
			assertQuestions(207)
			next.Closed = true
			assert.Zero(t, testutil.CollectAndCount(c), "the last client of the name")
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("the Collector keeps a closed client")
}

func TestCollectorCountsSharedDNSCacheOnce(t *testing.T) {
	c := hedgeprom.New()
	for _, id := range []uint64{1, 1, 2, 0, 0} { // 0: unknown
		r := newResolver("shop")
		r.Cache.ID = id
		c.AddDNS(r)
	}
	r := newResolver("search")
	r.Cache.ID = 1
	c.AddDNS(r)
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_dns_cache_bytes Memory that the cache takes, estimated.
# TYPE hedge_dns_cache_bytes gauge
hedge_dns_cache_bytes{client="search"} 5000
hedge_dns_cache_bytes{client="shop"} 20000
# HELP hedge_dns_questions_total Questions asked of the client.
# TYPE hedge_dns_questions_total counter
hedge_dns_questions_total{client="search"} 100
hedge_dns_questions_total{client="shop"} 500
`), "hedge_dns_cache_bytes", "hedge_dns_questions_total"))
}

func TestCollectorAcceptsAnyNameOfDNSClient(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithConstLabels(prometheus.Labels{"job": "web"}))
	r := newResolver("shop\xff\x00")
	r.Upstreams[0].Upstream = "https://dns.example:443/" + strings.Repeat("a", 1000)
	r.Upstreams[1].Upstream = r.Upstreams[0].Upstream + "b"
	c.AddDNS(r)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	_, err := registry.Gather()
	assert.NoError(t, err)
}

func TestAddDNSPanicsOnNil(t *testing.T) {
	assert.PanicsWithValue(t, "hedgeprom: AddDNS: client is nil", func() { hedgeprom.New().AddDNS(nil) })
	assert.PanicsWithValue(t, "hedgeprom: AddDNS: client is nil", func() { hedgeprom.New().AddDNS((*resolver)(nil)) })
}
