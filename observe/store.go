package observe

import "time"

// StoreStats is what a rangeread.Store has done since it was made, and knows. In JSON, durations are
// numbers of nanoseconds.
type StoreStats struct {
	Enabled bool `json:"enabled"`          // false: a BudgetPercent below 0 or the environment has switched hedging off
	Shadow  bool `json:"shadow,omitempty"` // hedges are only counted, in DeniedBy

	Ranges   int64 `json:"ranges"`   // that were asked for: parts of reads
	Requests int64 `json:"requests"` // calls of Fetch

	FirstByteHedges int64 `json:"first_byte_hedges"` // requests because the first byte was late
	FirstByteWins   int64 `json:"first_byte_wins"`   // of them, those that were read
	StallHedges     int64 `json:"stall_hedges"`      // requests for what was missing of a body that paused or broke off
	StallWins       int64 `json:"stall_wins"`        // of them, those that were read

	Denied      int64            `json:"denied"`       // hedges that were due and were not sent, for any reason
	DeniedBytes int64            `json:"denied_bytes"` // of them, those that the budget of bytes did not pay for
	DeniedBy    map[Reason]int64 `json:"denied_by"`    // all of Denied; reasons that never applied are missing

	BytesAsked   int64 `json:"bytes_asked"`   // by ranges, not by their hedges
	BytesHedged  int64 `json:"bytes_hedged"`  // asked for by hedges, which is what the budget of bytes pays for; of a store that ignores ranges, with all that comes before them
	BytesRead    int64 `json:"bytes_read"`    // from bodies, by all attempts
	BytesSkipped int64 `json:"bytes_skipped"` // of them, those that came before the range: the server has ignored it
	BytesTwice   int64 `json:"bytes_twice"`   // of them, those that a hedge and the attempt that it was for have both read
	BytesHeld    int64 `json:"bytes_held"`    // by what is read ahead now
	MaxBytes     int64 `json:"max_bytes"`     // that may be held; 0: nothing is read ahead

	Panics int64 `json:"panics"` // of hedges, and of Close of bodies, which were recovered

	Classes []StoreClass `json:"classes"` // of sizes that were read, the smallest first: 29 at most
}

// A StoreClass is what is known of the ranges of about one size.
type StoreClass struct {
	Length int64 `json:"length"` // at most, a power of two; more than half of it
	Ranges int64 `json:"ranges"` // that were read
	Hedges int64 `json:"hedges"` // of either kind

	P50   time.Duration `json:"p50"`   // of the time to the first byte; 0: not known
	P99   time.Duration `json:"p99"`   // of the same
	Delay time.Duration `json:"delay"` // after which a range is asked for again; 0: it is not
	Stall time.Duration `json:"stall"` // after which a body that pauses has stalled; 0: not known
}
