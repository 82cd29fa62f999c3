package observe

import "time"

// DNSStats has the settings of a dnshedge.Client, and its counters since it was first used. In JSON,
// durations are numbers of nanoseconds.
type DNSStats struct {
	Name    string `json:"name,omitempty"`   // as in [KeyInfo]
	Enabled bool   `json:"enabled"`          // false: SetEnabled, Hedge.Off or the environment has switched hedging off
	Shadow  bool   `json:"shadow,omitempty"` // hedges are only counted

	Queries   int64 `json:"queries"`   // questions asked of the Client
	Hits      int64 `json:"hits"`      // answered from the cache
	Stale     int64 `json:"stale"`     // answered with an expired answer
	Local     int64 `json:"local"`     // answered without cache and servers: hosts, special-use names
	Shared    int64 `json:"shared"`    // answered by another caller's exchange
	Refreshes int64 `json:"refreshes"` // asked for before the answer expired
	Failures  int64 `json:"failures"`  // exchanges without any answer
	Dropped   int64 `json:"dropped"`   // questions that ended because there were too many

	Wire       int64 `json:"wire"`        // queries sent to servers, for any reason
	Hedges     int64 `json:"hedges"`      // queries sent because an answer was late
	HedgeWins  int64 `json:"hedge_wins"`  // hedges that gave the answer
	Denied     int64 `json:"denied"`      // hedges not sent: the budget or a brake forbade it, or in shadow mode
	Resends    int64 `json:"resends"`     // queries sent because the retransmission timeout had passed
	ResendWins int64 `json:"resend_wins"` // resends that gave the answer
	Failovers  int64 `json:"failovers"`   // queries sent because another server could not answer
	Fallbacks  int64 `json:"fallbacks"`   // questions put to a fallback server
	Retries    int64 `json:"retries"`     // queries sent again because the connection had been closed
	Abandoned  int64 `json:"abandoned"`   // queries that ran on without a caller
	Ignored    int64 `json:"ignored"`     // messages that answered no query: from strangers, damaged or forged

	ObserverPanics int64 `json:"observer_panics"` // panics of an [Observer], a logger, a Trace or a Server's Admit, which were recovered

	Cache     *DNSCacheStats     `json:"cache,omitempty"` // nil: there is no cache
	Upstreams []DNSUpstreamStats `json:"upstreams"`       // by name
}

// DNSCacheStats is how full a cache is.
type DNSCacheStats struct {
	Entries  int   `json:"entries"`   // kept; an estimate while they change
	Bytes    int64 `json:"bytes"`     // that they take, estimated
	MaxBytes int64 `json:"max_bytes"` // that they may take
}

// DNSUpstreamStats has the counters and estimates of one server.
type DNSUpstreamStats struct {
	Upstream  string `json:"upstream"`   // as dnshedge.ParseUpstream reads it; " at " and its Addrs follow if there are any
	Queries   int64  `json:"queries"`    // sent to it
	Hedges    int64  `json:"hedges"`     // sent to it
	HedgeWins int64  `json:"hedge_wins"` // hedges that gave the answer
	Silent    bool   `json:"silent"`     // three queries in a row had no answer
	Failing   bool   `json:"failing"`    // three responses in a row were failures
	Down      bool   `json:"down"`       // it was silent or failing, and failed a probe as well

	SRTT      time.Duration `json:"srtt"`       // smoothed round trip time; 0: not known
	Loss      float64       `json:"loss"`       // share of the last 256 to 512 queries without an answer; hedges that lose count
	LossDelay time.Duration `json:"loss_delay"` // after which a packet is considered lost
	SlowDelay time.Duration `json:"slow_delay"` // after which the budget pays for hedging every answer still to come
	Handshake time.Duration `json:"handshake"`  // how long a handshake takes, smoothed; 0: none was needed
	P50       time.Duration `json:"p50"`        // of recent answers; 0: there were none
	P99       time.Duration `json:"p99"`

	// What is said below is of the questions that this server was asked first.

	Budget     float64          `json:"budget"`                // hedges that would be paid for now
	Denied     map[Reason]int64 `json:"denied"`                // hedges that were due and not sent; reasons that never applied are missing
	Saved      time.Duration    `json:"saved"`                 // by the wins of hedges, estimated as in [RequestResult]
	ShadowWins int64            `json:"shadow_wins,omitempty"` // by hedges that were not sent
}
