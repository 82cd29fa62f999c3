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

// A DNSClient is a *dnshedge.Client, or anything else that has its Stats. This package
// does not import dnshedge, so that programs without it need not carry it.
type DNSClient interface{ Stats() observe.DNSStats }

// DNS makes a Source of a DNS client. It panics if c is nil.
func DNS(c DNSClient) Source {
	if isNil(c) {
		panic("debug: DNS: client is nil")
	}
	return dns{c}
}

type dns struct{ DNSClient }

// Snapshot returns what DNS clients have in common with others. The page shows their Stats.
func (d dns) Snapshot() hedge.Snapshot {
	s := d.Stats()
	return hedge.Snapshot{Name: s.Name, Protocol: "dns", Enabled: s.Enabled, Shadow: s.Shadow}
}

type dnsClient struct {
	observe.DNSStats
	Title     string
	Totals    []total
	Cache     []total // empty: there is none
	Upstreams []upstream
	More      int // upstreams that are not shown
}

type upstream struct {
	Name, State           string // the state is "" if nothing is known
	Bad                   bool
	SRTT, Loss, P50, P99  string // "" if unknown
	Delay                 string
	Queries, Hedges, Wins string
	Load, WinRate         string
	Saved, Budget         string
	Denied                []setting
}

func renderDNS(s observe.DNSStats) dnsClient {
	c := dnsClient{DNSStats: s, Title: sanitize.CleanText(cmp.Or(s.Name, "dns"))}
	var saved time.Duration
	var shadow, shadowWins int64
	for _, u := range s.Upstreams {
		saved += u.Saved
		shadow, shadowWins = shadow+u.Denied[observe.DeniedShadow], shadowWins+u.ShadowWins
	}
	c.Totals = []total{
		{"queries", "questions", count(s.Queries), ""},
		{"local", "answered here", count(s.Local), "hosts, special names"},
		{"wire", "queries sent", count(s.Wire), of(s.Wire, s.Queries, "of the questions")},
		{"hedges", "hedges sent", count(s.Hedges), of(s.Hedges, s.Wire, "of the queries")},
		{"hedge_wins", "won by a hedge", count(s.HedgeWins), of(s.HedgeWins, s.Hedges, "of the hedges")},
		{"saved", "waiting saved", duration(saved), "at least; estimated"},
		{"denied", "hedges denied", count(s.Denied), ""},
		{"resends", "sent again", count(s.Resends), of(s.ResendWins, s.Resends, "won")},
		{"failovers", "asked elsewhere", count(s.Failovers), "a server failed"},
		{"fallbacks", "asked Fallback", count(s.Fallbacks), ""},
		{"failures", "without an answer", count(s.Failures), ""},
		{"dropped", "dropped", count(s.Dropped), "too many at a time"},
	}
	if s.Shadow {
		c.Totals = slices.Replace(c.Totals, 3, 6, // the totals from hedges to saved
			total{"shadow", "would be hedged", count(shadow), of(shadow, s.Wire, "of the queries")},
			total{"shadow_wins", "would win", count(shadowWins), of(shadowWins, shadow, "of those")},
			total{"saved", "would be saved", duration(saved), "estimated"},
		)
	}
	for _, more := range []struct {
		n int64
		total
	}{
		{s.Retries, total{"retries", "connection closed", "", "sent again"}},
		{s.Abandoned, total{"abandoned", "without a caller", "", "queries that ran on"}},
		{s.Ignored, total{"ignored", "messages ignored", "", "strange, damaged, forged"}},
		{s.ObserverPanics, total{"observer_panics", "observer panics", "", "recovered"}},
	} {
		if more.n > 0 {
			more.Value = count(more.n)
			c.Totals = append(c.Totals, more.total)
		}
	}
	if k := s.Cache; k != nil {
		c.Cache = []total{
			{"hits", "from the cache", count(s.Hits), of(s.Hits, s.Queries, "of the questions")},
			{"stale", "expired answers", count(s.Stale), of(s.Stale, s.Queries, "of the questions")},
			{"shared", "shared", count(s.Shared), "with another caller"},
			{"refreshes", "refreshed early", count(s.Refreshes), ""},
			{"entries", "entries", count(int64(k.Entries)), ""},
			{"bytes", "memory", size(k.Bytes), of(k.Bytes, k.MaxBytes, "of "+size(k.MaxBytes))},
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

func renderUpstream(u observe.DNSUpstreamStats, shadow bool) upstream {
	hedges, wins := u.Hedges, u.HedgeWins
	if shadow {
		hedges, wins = u.Denied[observe.DeniedShadow], u.ShadowWins
	}
	v := upstream{
		Name:    sanitize.CleanText(u.Upstream),
		Delay:   duration(max(u.SlowDelay, u.LossDelay)),
		Queries: count(u.Queries), Hedges: count(hedges), Wins: count(wins),
		Load: of(hedges, u.Queries, ""), WinRate: of(wins, hedges, ""),
		Saved: duration(u.Saved), Budget: strconv.FormatFloat(u.Budget, 'f', 1, 64),
		Denied: denied(u.Denied),
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
		v.Loss = share(u.Loss)
	}
	if u.SRTT > 0 {
		v.SRTT = duration(u.SRTT)
	}
	if u.P50 > 0 {
		v.P50, v.P99 = duration(u.P50), duration(u.P99)
	}
	return v
}

// size formats n in the largest unit of which there is one at least.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return strconv.FormatFloat(float64(n)/(1<<30), 'f', 1, 64) + " GiB"
	case n >= 1<<20:
		return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
	default:
		return strconv.FormatFloat(float64(n)/(1<<10), 'f', 1, 64) + " KiB"
	}
}
