package dnshedge

import (
	"slices"
	"strings"

	"github.com/gohedge/hedge/observe"
)

// Stats are the statistics of a Client. The fields are documented at [observe.DNSStats]. They are declared there so
// that packages debug and hedgeprom need not import dnshedge.
type Stats = observe.DNSStats

// UpstreamStats are the statistics of one upstream server, an element of Stats.Upstreams. The fields are documented at
// [observe.DNSUpstreamStats].
type UpstreamStats = observe.DNSUpstreamStats

// Stats returns the statistics of the Client. It returns the zero Stats if the Client's
// fields are invalid.
func (c *Client) Stats() Stats {
	core, err := c.getCore()
	if err != nil {
		return Stats{}
	}
	n := core.count
	s := Stats{
		Name: c.Name, Enabled: !core.isHedgingOff(), Shadow: core.shadow, Closed: core.isClosed.Load(), ObserverPanics: n.observerPanics.Load(),
		Queries: n.queries.Load(), Hits: n.hits.Load(), Stale: n.stale.Load(), Local: n.local.Load(), SearchMisses: n.searchMisses.Load(), Shared: n.shared.Load(),
		Refreshes: n.refreshes.Load(), Failures: n.failures.Load(), Dropped: n.dropped.Load(),
		Wire: n.group.Queries.Load(), Hedges: n.group.Hedges.Load(), HedgeWins: n.group.HedgeWins.Load(), Denied: n.group.Denied.Load(),
		Resends: n.group.Retransmissions.Load(), ResendWins: n.group.RetransmissionWins.Load(), Failovers: n.group.Failovers.Load(), Fallbacks: n.fallbacks.Load(),
		Retries: n.group.Retries.Load(), Abandoned: n.group.Abandoned.Load(), Ignored: n.group.Ignored.Load(),
	}
	for _, v := range core.servers.pool.AllServers() {
		s.Upstreams = append(s.Upstreams, v.Stats())
	}
	slices.SortFunc(s.Upstreams, func(a, b UpstreamStats) int { return strings.Compare(a.Upstream, b.Upstream) })
	if c.Cache != nil {
		c.Cache.init()
		s.Cache = &observe.DNSCacheStats{ID: c.Cache.id, Entries: c.Cache.Len(), Bytes: c.Cache.Bytes(), MaxBytes: c.Cache.maxBytes()}
	}
	return s
}
