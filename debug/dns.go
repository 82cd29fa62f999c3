package debug

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// A DNSClient is a *dnshedge.Client, or another type with the same Stats method. The interface avoids an import of
// dnshedge in programs that do not use it.
type DNSClient interface{ Stats() observe.DNSStats }

// DNS returns a [Source] that shows a DNS client on the page, with its cache and upstreams. It panics if c is nil.
func DNS(c DNSClient) Source {
	if isNil(c) {
		panic("debug: DNS: client is nil")
	}
	return dnsSource{c}
}

// A dnsSource is the Source that DNS returns.
type dnsSource struct{ DNSClient }

// Snapshot implements [Source]. It returns only the name and whether hedging is enabled or in shadow mode; the page
// shows the Stats of the client instead.
func (d dnsSource) Snapshot() hedge.Snapshot {
	s := d.Stats()
	return hedge.Snapshot{Name: s.Name, Protocol: "dns", Enabled: s.Enabled, Shadow: s.Shadow}
}

// A dnsView is the section of the page for one DNS client, with formatted numbers.
type dnsView struct {
	observe.DNSStats
	Title     string
	Totals    []labeledValue
	Cache     []labeledValue // totals of the cache; nil: the client has no cache
	Upstreams []upstreamView
	More      int // number of upstreams that are not shown
}

// An upstreamView is the row of the page for one DNS upstream, with formatted numbers.
type upstreamView struct {
	Name, State           string // the state is "" if it is not known
	Bad                   bool   // true if the upstream does not respond or fails
	SRTT, Loss, P50, P99  string // "" if unknown
	Delay                 string // hedge delay, or the retransmission timeout if that is longer
	Queries, Hedges, Wins string
	Load, WinRate         string // hedges per query, and wins per hedge; "" if there are none
	Saved, Budget         string
	Denied                []namedValue
}

// renderDNS returns the section for the statistics s of a DNS client.
func renderDNS(s observe.DNSStats) dnsView {
	c := dnsView{DNSStats: s, Title: sanitize.CleanText(cmp.Or(s.Name, "dns"))}
	var saved time.Duration
	var shadow, shadowWins int64
	for _, u := range s.Upstreams {
		saved += u.Saved
		shadow, shadowWins = shadow+u.Denied[observe.DeniedShadow], shadowWins+u.ShadowWins
	}
	c.Totals = []labeledValue{
		{"queries", "questions", formatCount(s.Queries), ""},
		{"local", "answered here", formatCount(s.Local), "hosts, special names"},
		{"wire", "queries sent", formatCount(s.Wire), formatShareOf(s.Wire, s.Queries, "of the questions")},
		{"hedges", "hedges sent", formatCount(s.Hedges), formatShareOf(s.Hedges, s.Wire, "of the queries")},
		{"hedge_wins", "won by a hedge", formatCount(s.HedgeWins), formatShareOf(s.HedgeWins, s.Hedges, "of the hedges")},
		{"saved", "waiting saved", formatDuration(saved), "at least; estimated"},
		{"denied", "hedges denied", formatCount(s.Denied), ""},
		{"resends", "sent again", formatCount(s.Resends), formatShareOf(s.ResendWins, s.Resends, "won")},
		{"failovers", "asked elsewhere", formatCount(s.Failovers), "a server failed"},
		{"fallbacks", "asked Fallback", formatCount(s.Fallbacks), ""},
		{"failures", "without an answer", formatCount(s.Failures), ""},
		{"dropped", "dropped", formatCount(s.Dropped), "too many at a time"},
	}
	if s.Shadow {
		c.Totals = slices.Replace(c.Totals, 3, 6, // the totals from hedges to saved
			labeledValue{"shadow", "would be hedged", formatCount(shadow), formatShareOf(shadow, s.Wire, "of the queries")},
			labeledValue{"shadow_wins", "would win", formatCount(shadowWins), formatShareOf(shadowWins, shadow, "of those")},
			labeledValue{"saved", "would be saved", formatDuration(saved), "estimated"},
		)
	}
	for _, more := range []struct {
		n int64
		labeledValue
	}{
		{s.SearchMisses, labeledValue{"search_misses", "search misses", "", "no such name in a search domain"}},
		{s.Retries, labeledValue{"retries", "connection closed", "", "sent again"}},
		{s.Abandoned, labeledValue{"abandoned", "without a caller", "", "queries that ran on"}},
		{s.Ignored, labeledValue{"ignored", "messages ignored", "", "strange, damaged, forged"}},
		{s.ObserverPanics, labeledValue{"observer_panics", "observer panics", "", "recovered"}},
	} {
		if more.n > 0 {
			more.Value = formatCount(more.n)
			c.Totals = append(c.Totals, more.labeledValue)
		}
	}
	if k := s.Cache; k != nil {
		c.Cache = []labeledValue{
			{"hits", "from the cache", formatCount(s.Hits), formatShareOf(s.Hits, s.Queries, "of the questions")},
			{"stale", "expired answers", formatCount(s.Stale), formatShareOf(s.Stale, s.Queries, "of the questions")},
			{"shared", "shared", formatCount(s.Shared), "with another caller"},
			{"refreshes", "refreshed early", formatCount(s.Refreshes), ""},
			{"entries", "entries", formatCount(int64(k.Entries)), ""},
			{"bytes", "memory", formatBytes(k.Bytes), formatShareOf(k.Bytes, k.MaxBytes, "of "+formatBytes(k.MaxBytes))},
		}
	}
	ups := s.Upstreams
	if len(ups) > maxKeys {
		ups = slices.SortedStableFunc(slices.Values(ups), func(a, b observe.DNSUpstreamStats) int { return cmp.Compare(b.Queries, a.Queries) })
		ups, c.More = ups[:maxKeys], len(ups)-maxKeys
	}
	for _, u := range ups {
		c.Upstreams = append(c.Upstreams, renderUpstream(u, s.Shadow))
	}
	return c
}

// renderUpstream returns the row for the statistics u of an upstream. If shadow is true, the row counts the hedges that
// would have been sent.
func renderUpstream(u observe.DNSUpstreamStats, shadow bool) upstreamView {
	hedges, wins := u.Hedges, u.HedgeWins
	if shadow {
		hedges, wins = u.Denied[observe.DeniedShadow], u.ShadowWins
	}
	v := upstreamView{
		Name:    sanitize.CleanText(u.Upstream),
		Delay:   formatDuration(max(u.SlowDelay, u.LossDelay)),
		Queries: formatCount(u.Queries), Hedges: formatCount(hedges), Wins: formatCount(wins),
		Load: formatShareOf(hedges, u.Queries, ""), WinRate: formatShareOf(wins, hedges, ""),
		Saved: formatDuration(u.Saved), Budget: strconv.FormatFloat(u.Budget, 'f', 1, 64),
		Denied: listDenied(u.Denied),
	}
	switch {
	case u.Down:
		v.State, v.Bad = "down", true
	case u.Silent:
		v.State, v.Bad = "silent", true
	case u.Failing:
		v.State, v.Bad = "fails", true
	case u.P50 > 0:
		v.State = "answers"
	}
	if u.Queries > 0 {
		v.Loss = formatShare(u.Loss)
	}
	if u.SRTT > 0 {
		v.SRTT = formatDuration(u.SRTT)
	}
	if u.P50 > 0 {
		v.P50, v.P99 = formatDuration(u.P50), formatDuration(u.P99)
	}
	return v
}

// formatBytes formats n bytes in GiB, MiB or KiB with one decimal place, such as "1.5 MiB".
func formatBytes(n int64) string {
	switch {
	case n >= 1<<30:
		return strconv.FormatFloat(float64(n)/(1<<30), 'f', 1, 64) + " GiB"
	case n >= 1<<20:
		return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
	default:
		return strconv.FormatFloat(float64(n)/(1<<10), 'f', 1, 64) + " KiB"
	}
}
