package observe

import "time"

// DNSStats holds the settings of a dnshedge.Client, and its counters since its first use. In JSON, durations are
// numbers of nanoseconds.
type DNSStats struct {
	Name    string `json:"name,omitempty"`   // Name of the dnshedge.Client
	Enabled bool   `json:"enabled"`          // false: hedging is disabled by SetEnabled, Hedge.Off or the environment
	Shadow  bool   `json:"shadow,omitempty"` // true in shadow mode: hedges are only counted
	Closed  bool   `json:"closed,omitempty"` // true after Close of the dnshedge.Client

	Queries   int64 `json:"queries"`   // DNS questions from callers
	Hits      int64 `json:"hits"`      // questions answered from the cache
	Stale     int64 `json:"stale"`     // questions answered with an expired response from the cache
	Local     int64 `json:"local"`     // questions answered without cache and servers: hosts file or special-use names
	Shared    int64 `json:"shared"`    // questions answered by servers together with the same question of another caller
	Refreshes int64 `json:"refreshes"` // cached responses that were refreshed before they expired
	Failures  int64 `json:"failures"`  // exchanges with servers that ended without a usable response
	Dropped   int64 `json:"dropped"`   // questions rejected because too many were in progress

	// SearchMisses counts the questions of a net.Resolver, see dnshedge.Client.Resolver, for names below a search domain of
	// resolv.conf that do not exist. Most are names with dots to which the resolver has appended the domain.
	SearchMisses int64 `json:"search_misses"`

	Wire       int64 `json:"wire"`        // queries sent to servers, for any reason
	Hedges     int64 `json:"hedges"`      // queries sent because a response was late
	HedgeWins  int64 `json:"hedge_wins"`  // hedges whose response was used
	Denied     int64 `json:"denied"`      // hedges that were due and not sent because of the budget, a pause of hedging, or shadow mode
	Resends    int64 `json:"resends"`     // queries sent because the retransmission timeout had passed
	ResendWins int64 `json:"resend_wins"` // retransmissions whose response was used
	Failovers  int64 `json:"failovers"`   // queries sent because another server had failed
	Fallbacks  int64 `json:"fallbacks"`   // questions sent to a server in Fallback of the dnshedge.Client
	Retries    int64 `json:"retries"`     // queries sent again because the connection was closed
	Abandoned  int64 `json:"abandoned"`   // queries that continued after their caller had cancelled the question
	Ignored    int64 `json:"ignored"`     // received messages that match no query: from unknown senders, damaged or forged

	ObserverPanics int64 `json:"observer_panics"` // panics of an [Observer], a logger, a Trace or the Admit function of a Server, which were recovered

	Cache     *DNSCacheStats     `json:"cache,omitempty"` // fill level of the cache; nil: no cache
	Upstreams []DNSUpstreamStats `json:"upstreams"`       // one entry per upstream server, sorted by name
}

// A DNSLookup describes a DNS question whose caller no longer waits. The function Lookup of a dnshedge.Trace receives it.
type DNSLookup struct {
	Name     string        // as in the question, with the final dot
	Type     uint16        // record type of the question
	Duration time.Duration // time that the caller waited

	// ErrorType is empty if there was no error, or else one of the following values:
	//
	//   - host_not_found: the name does not exist
	//   - try_again: timeout, SERVFAIL, or another error that may end by itself
	//   - no_recovery: any other response code
	//   - canceled: the caller's context was cancelled, for example because the lookup belongs to a hedge that lost; a
	//     net.Resolver also cancels a lookup whose caller has timed out
	//
	// The first three are those of getaddrinfo, which OpenTelemetry's conventions recommend.
	ErrorType string
}

// DNSCacheStats is the fill level of the response cache of a dnshedge.Client.
type DNSCacheStats struct {
	// ID is the number of the cache in this process. Clients that share a cache have the same number. 0: unknown.
	ID uint64 `json:"-"`

	Entries  int   `json:"entries"`   // cached responses; approximate while the cache changes
	Bytes    int64 `json:"bytes"`     // estimated size of the entries
	MaxBytes int64 `json:"max_bytes"` // limit of Bytes
}

// DNSUpstreamStats holds the counters and estimates of one upstream server: a DNS server to which a dnshedge.Client
// forwards queries. The fields from Budget on refer to questions for which this server was the first choice. Shares are
// in [0, 1].
type DNSUpstreamStats struct {
	Upstream  string `json:"upstream"`   // as parsed by dnshedge.ParseUpstream; if there are Addrs, " at " and the addresses follow
	Queries   int64  `json:"queries"`    // queries sent to the server
	Hedges    int64  `json:"hedges"`     // hedges sent to the server
	HedgeWins int64  `json:"hedge_wins"` // hedges to the server whose response was used
	Silent    bool   `json:"silent"`     // true if the last three queries had no response
	Failing   bool   `json:"failing"`    // true if the last three responses were failures
	Down      bool   `json:"down"`       // true if the server is silent or failing, and a probe has failed too

	SRTT      time.Duration `json:"srtt"`       // smoothed round-trip time; 0: unknown
	Loss      float64       `json:"loss"`       // share of the last 256 to 512 queries without a response, including hedges that lost
	LossDelay time.Duration `json:"loss_delay"` // time after which a query or response is presumed lost
	SlowDelay time.Duration `json:"slow_delay"` // hedge delay: the budget suffices for a hedge of every query without a response after this time
	Handshake time.Duration `json:"handshake"`  // smoothed duration of TCP and TLS handshakes; 0: there were none
	P50       time.Duration `json:"p50"`        // median time to a response, of recent queries; 0: unknown
	P99       time.Duration `json:"p99"`        // 99th percentile of the time to a response

	// The fields below are about questions for which this server was the first choice.

	Budget     float64          `json:"budget"`                // hedges that the budget suffices for now
	Denied     map[Reason]int64 `json:"denied"`                // hedges that were due and not sent, by reason; reasons that never applied are missing
	Saved      time.Duration    `json:"saved"`                 // time saved by hedges, estimated as in [RequestResult]
	ShadowWins int64            `json:"shadow_wins,omitempty"` // questions for which a hedge would have been the first to get a response, in shadow mode
}
