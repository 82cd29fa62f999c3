package dnshedge

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Stats is what a Client did since it was made.
type Stats struct {
	Queries   int64 // questions asked of the Client
	Hits      int64 // answered from the cache
	Stale     int64 // answered with an expired answer
	Local     int64 // answered without cache and servers: hosts, special-use names
	Shared    int64 // answered by another caller's exchange
	Refreshes int64 // asked for before the answer expired
	Failures  int64 // exchanges without any answer
	Dropped   int64 // questions that ended because there were too many

	Wire       int64 // queries sent to servers, for any reason
	Hedges     int64 // queries sent because an answer was late
	HedgeWins  int64 // hedges that gave the answer
	Denied     int64 // hedges not sent: the budget or a brake forbade it
	Resends    int64 // queries sent because the retransmission timeout had passed
	ResendWins int64 // resends that gave the answer
	Failovers  int64 // queries sent because another server could not answer
	Fallbacks  int64 // questions put to a fallback server
	Retries    int64 // queries sent again because the connection had been closed
	Abandoned  int64 // queries that ran on without a caller
	Ignored    int64 // messages that answered no query: from strangers, damaged or forged

	Upstreams []UpstreamStats // by name
}

// UpstreamStats is what is known of one server.
type UpstreamStats struct {
	Upstream  Upstream
	Queries   int64 // sent to it
	Hedges    int64 // sent to it
	HedgeWins int64 // hedges that gave the answer
	Silent    bool  // three queries in a row had no answer

	SRTT      time.Duration // smoothed round trip time; 0: not known
	LossDelay time.Duration // after which a packet is considered lost
	SlowDelay time.Duration // after which the budget pays for hedging every answer still to come
	Handshake time.Duration // how long a handshake takes, smoothed; 0: none was needed
	P50, P99  time.Duration // of recent answers; 0: there were none
}

// Stats returns what the Client did. The zero Stats is that of a Client whose
// fields are invalid.
func (c *Client) Stats() Stats {
	core, err := c.init()
	if err != nil {
		return Stats{}
	}
	n := &core.count
	s := Stats{
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
	slices.SortFunc(s.Upstreams, func(a, b UpstreamStats) int {
		return strings.Compare(a.Upstream.String(), b.Upstream.String())
	})
	return s
}

func (s *upstreamState) stats() UpstreamStats {
	v := UpstreamStats{
		Upstream: s.up, Queries: s.queries.Load(), Hedges: s.hedges.Load(), HedgeWins: s.hedgeWins.Load(),
		Silent: s.silent.Load(), LossDelay: s.lossDelay(),
	}
	v.SlowDelay = s.slowDelay()
	s.mu.Lock()
	defer s.mu.Unlock()
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
	dropped                                   atomic.Int64
}
