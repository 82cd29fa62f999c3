package dnshedge

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/observe"
)

// Stats is what a Client is and has done. The fields are documented at [observe.DNSStats],
// for which debug and hedgeprom need no package dnshedge.
type Stats = observe.DNSStats

// UpstreamStats is what is known of one server.
type UpstreamStats = observe.DNSUpstreamStats

// Stats returns what the Client did. The zero Stats is that of a Client whose
// fields are invalid.
func (c *Client) Stats() Stats {
	core, err := c.init()
	if err != nil {
		return Stats{}
	}
	n := &core.count
	s := Stats{
		Name: c.Name, Enabled: !core.isOff(), Shadow: core.shadow, ObserverPanics: n.observerPanics.Load(),
		Queries: n.queries.Load(), Hits: n.hits.Load(), Stale: n.stale.Load(), Local: n.local.Load(), Shared: n.shared.Load(),
		Refreshes: n.refreshes.Load(), Failures: n.failures.Load(), Dropped: n.dropped.Load(),
		Wire: n.wire.Load(), Hedges: n.hedges.Load(), HedgeWins: n.hedgeWins.Load(), Denied: n.denied.Load(),
		Resends: n.resends.Load(), ResendWins: n.resendWins.Load(), Failovers: n.failovers.Load(), Fallbacks: n.fallbacks.Load(),
		Retries: n.retries.Load(), Abandoned: n.abandoned.Load(), Ignored: n.ignored.Load(),
	}
	core.mu.Lock()
	servers := slices.Collect(maps.Values(core.servers))
	core.mu.Unlock()
	for _, v := range servers {
		s.Upstreams = append(s.Upstreams, v.stats())
	}
	slices.SortFunc(s.Upstreams, func(a, b UpstreamStats) int { return strings.Compare(a.Upstream, b.Upstream) })
	if c.Cache != nil {
		s.Cache = c.Cache.stats()
	}
	return s
}

func (s *upstreamState) stats() UpstreamStats {
	v := UpstreamStats{
		Upstream: s.name, Queries: s.queries.Load(), Hedges: s.hedges.Load(), HedgeWins: s.hedgeWins.Load(),
		Silent: s.silent.Load(), Failing: s.failures.Load() >= failuresToDoubt, Down: s.down.Load(), LossDelay: s.lossDelay(),
	}
	v.SlowDelay = s.slowDelay()
	s.hedging(&v)
	s.mu.Lock()
	defer s.mu.Unlock()
	v.Loss = s.lost()
	v.SRTT, v.Handshake = time.Duration(s.srtt), time.Duration(s.handshake)
	v.P50, _ = s.answers.Quantile(0.50)
	v.P99, _ = s.answers.Quantile(0.99)
	return v
}

// counters are the numbers of a Client's Stats.
type counters struct {
	queries, hits, stale, shared, refreshes   atomic.Int64
	local                                     atomic.Int64
	wire, hedges, hedgeWins, denied           atomic.Int64
	resends, resendWins, failovers, fallbacks atomic.Int64
	retries, ignored, abandoned, failures     atomic.Int64
	observerPanics                            atomic.Int64
	dropped                                   atomic.Int64
}
