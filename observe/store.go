package observe

import "time"

// StoreStats are the counters of a rangeread.Store since it was made, and its estimates. In JSON, durations are
// numbers of nanoseconds.
type StoreStats struct {
	Enabled bool `json:"enabled"`          // false: a BudgetPercent of rangeread.NoBudget or the environment has switched hedging off
	Shadow  bool `json:"shadow,omitempty"` // hedges are only counted, in DeniedBy

	Ranges   int64 `json:"ranges"`   // that were asked for: parts of reads
	Requests int64 `json:"requests"` // calls of Fetch

	FirstByteHedges int64 `json:"first_byte_hedges"` // requests because the first byte was late
	FirstByteWins   int64 `json:"first_byte_wins"`   // first-byte hedges whose body was read
	StallHedges     int64 `json:"stall_hedges"`      // requests for the missing part of a body that paused or broke off
	StallWins       int64 `json:"stall_wins"`        // stall hedges whose body was read

	Denied      int64            `json:"denied"`       // hedges that were due and were not sent, for any reason
	DeniedBytes int64            `json:"denied_bytes"` // denied hedges for which the budget of bytes had too little left
	DeniedBy    map[Reason]int64 `json:"denied_by"`    // all of Denied; reasons that never applied are missing

	BytesAsked   int64 `json:"bytes_asked"`   // by ranges, not by their hedges
	BytesHedged  int64 `json:"bytes_hedged"`  // asked for by hedges, paid from the budget of bytes; if the store ignores ranges, including the bytes before the range
	BytesRead    int64 `json:"bytes_read"`    // from bodies, by all attempts
	BytesSkipped int64 `json:"bytes_skipped"` // read bytes before the range, which the server has ignored
	BytesTwice   int64 `json:"bytes_twice"`   // read bytes that a hedge and the attempt that it backs up have both read
	BytesHeld    int64 `json:"bytes_held"`    // in memory now, read ahead
	MaxBytes     int64 `json:"max_bytes"`     // that may be held; 0: nothing is read ahead

	Panics int64 `json:"panics"` // of hedges, and of Close of bodies, which were recovered

	Classes []StoreClass `json:"classes"` // of sizes that were read, the smallest first: 29 at most
}

// A StoreClass has the counters and estimates of the ranges of about one size.
type StoreClass struct {
	Length int64 `json:"length"` // at most, a power of two; more than half of it
	Ranges int64 `json:"ranges"` // that were read
	Hedges int64 `json:"hedges"` // of either kind

	P50   time.Duration `json:"p50"`   // of the time to the first byte; 0: not known
	P99   time.Duration `json:"p99"`   // of the same
	Delay time.Duration `json:"delay"` // after which a range is asked for again; 0: it is not
	Stall time.Duration `json:"stall"` // after which a body that pauses has stalled; 0: not known
}
