package observe

import "time"

// RecursorStats is what a recursor.Resolver knows and has done since it was first used. In
// JSON, durations are numbers of nanoseconds.
type RecursorStats struct {
	Name string `json:"name,omitempty"` // as in [KeyInfo]

	Questions int64 `json:"questions"` // of callers
	Failures  int64 `json:"failures"`  // of them that were answered with SERVFAIL or an error
	Local     int64 `json:"local"`     // of them that were answered without servers: special-use names
	Lookups   int64 `json:"lookups"`   // names of servers that were looked up

	Wire      int64 `json:"wire"`       // queries sent to servers, over UDP and TCP
	TCP       int64 `json:"tcp"`        // of them over TCP
	Hedges    int64 `json:"hedges"`     // queries sent because an answer was late
	HedgeWins int64 `json:"hedge_wins"` // hedges that gave the answer
	Denied    int64 `json:"denied"`     // hedges not sent: the budget forbade it
	Timeouts  int64 `json:"timeouts"`   // queries sent because the retransmission timeout had passed
	Failovers int64 `json:"failovers"`  // queries sent because another server could not answer
	Lame      int64 `json:"lame"`       // responses of servers that do not serve the zone that they should
	Ignored   int64 `json:"ignored"`    // messages that answered no query: from strangers, damaged or forged
	Scrubbed  int64 `json:"scrubbed"`   // records in responses that were not believed

	// Limited counts the questions that ended at a limit, by the field of recursor.Limits.
	// Limits that were never reached are missing.
	Limited map[string]int64 `json:"limited"`

	InFlight     int           `json:"in_flight"`     // queries that wait for answers
	Servers      int           `json:"servers"`       // addresses of servers that are known
	Resting      int           `json:"resting"`       // of them that are not asked first for a while, because they were silent
	Zones        int           `json:"zones"`         // whose servers are known
	RRsets       int           `json:"rrsets"`        // kept
	Bytes        int64         `json:"bytes"`         // that all this takes, estimated
	MaxBytes     int64         `json:"max_bytes"`     // that it may take
	Budget       float64       `json:"budget"`        // hedges that would be paid for now
	FirstContact time.Duration `json:"first_contact"` // when a server that was never asked is late
}
