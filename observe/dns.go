package observe

import "time"

// DNSStats holds the settings of a dnshedge.Client, and its counters since it was first used. In JSON, durations are
// numbers of nanoseconds.
type DNSStats struct {
	Name    string `json:"name,omitempty"`   // as in [KeyInfo]
	Enabled bool   `json:"enabled"`          // false: hedging is disabled by SetEnabled, Hedge.Off or the environment
	Shadow  bool   `json:"shadow,omitempty"` // shadow mode: hedges are only counted

	Queries   int64 `json:"queries"`   // questions from callers
	Hits      int64 `json:"hits"`      // questions answered from the cache
	Stale     int64 `json:"stale"`     // questions answered with an expired answer
	Local     int64 `json:"local"`     // questions answered without cache and servers: hosts file or special-use names
	Shared    int64 `json:"shared"`    // questions answered by the exchange of another caller
	Refreshes int64 `json:"refreshes"` // cached answers that were refreshed before they expired
	Failures  int64 `json:"failures"`  // exchanges that ended without an answer
	Dropped   int64 `json:"dropped"`   // questions rejected because too many were in progress

	Wire       int64 `json:"wire"`        // queries sent to servers, for any reason
	Hedges     int64 `json:"hedges"`      // queries sent because an answer was late
	HedgeWins  int64 `json:"hedge_wins"`  // hedges that delivered the answer
	Denied     int64 `json:"denied"`      // hedges not sent because of the budget, a pause of hedging, or shadow mode
	Resends    int64 `json:"resends"`     // queries sent because the retransmission timeout had passed
	ResendWins int64 `json:"resend_wins"` // retransmissions that delivered the answer
	Failovers  int64 `json:"failovers"`   // queries sent because another server had failed
	Fallbacks  int64 `json:"fallbacks"`   // questions sent to a fallback server
	Retries    int64 `json:"retries"`     // queries sent again because the connection was closed
	Abandoned  int64 `json:"abandoned"`   // queries that continued after their caller had gone
	Ignored    int64 `json:"ignored"`     // received messages that match no query: from unknown senders, damaged or forged

	ObserverPanics int64 `json:"observer_panics"` // recovered panics of an [Observer], a logger, a Trace or a Server's Admit

	Cache     *DNSCacheStats     `json:"cache,omitempty"` // nil: no cache
	Upstreams []DNSUpstreamStats `json:"upstreams"`       // sorted by name
}

// DNSCacheStats is the fill level of a cache.
type DNSCacheStats struct {
	Entries  int   `json:"entries"`   // cached answers; approximate while the cache changes
	Bytes    int64 `json:"bytes"`     // estimated size of the entries
	MaxBytes int64 `json:"max_bytes"` // limit of Bytes
}

// DNSUpstreamStats holds the counters and estimates of one upstream server. The fields from Budget on refer to
// questions for which this server was the first choice.
type DNSUpstreamStats struct {
	Upstream  string `json:"upstream"`   // as parsed by dnshedge.ParseUpstream; if there are Addrs, " at " and the addresses follow
	Queries   int64  `json:"queries"`    // queries sent to the server
	Hedges    int64  `json:"hedges"`     // hedges sent to the server
	HedgeWins int64  `json:"hedge_wins"` // hedges to the server that delivered the answer
	Silent    bool   `json:"silent"`     // the last three queries had no response
	Failing   bool   `json:"failing"`    // the last three responses were failures
	Down      bool   `json:"down"`       // silent or failing, and a probe has failed too

	SRTT      time.Duration `json:"srtt"`       // smoothed round-trip time; 0: unknown
	Loss      float64       `json:"loss"`       // share of the last 256 to 512 queries without a response, including hedges that lost
	LossDelay time.Duration `json:"loss_delay"` // time after which a packet is presumed lost
	SlowDelay time.Duration `json:"slow_delay"` // hedge delay: the budget can pay for hedging all answers slower than this
	Handshake time.Duration `json:"handshake"`  // smoothed duration of a handshake; 0: none was needed
	P50       time.Duration `json:"p50"`        // of recent answers; 0: none
	P99       time.Duration `json:"p99"`

	// The fields below are about questions for which this server was the first choice.

	Budget     float64          `json:"budget"`                // hedges that the budget can pay for now
	Denied     map[Reason]int64 `json:"denied"`                // hedges that were due and not sent; reasons that never applied are missing
	Saved      time.Duration    `json:"saved"`                 // time saved by hedges, estimated as in [RequestResult]
	ShadowWins int64            `json:"shadow_wins,omitempty"` // questions that a hedge would have answered in shadow mode
}
