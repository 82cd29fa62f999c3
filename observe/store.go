package observe

import "time"

// StoreStats holds the counters of a rangeread.Store since it was made, and its current estimates. In JSON, durations
// are numbers of nanoseconds.
type StoreStats struct {
	Enabled bool `json:"enabled"`          // false: hedging is disabled by a BudgetPercent of rangeread.NoBudget, or by the environment
	Shadow  bool `json:"shadow,omitempty"` // shadow mode: hedges are only counted, in DeniedBy

	Ranges   int64 `json:"ranges"`   // requested ranges; a read may consist of several
	Requests int64 `json:"requests"` // calls of Fetch

	FirstByteHedges int64 `json:"first_byte_hedges"` // hedges sent because the first byte was late
	FirstByteWins   int64 `json:"first_byte_wins"`   // first-byte hedges that won
	StallHedges     int64 `json:"stall_hedges"`      // hedges for the remaining bytes of a body that stalled or broke off
	StallWins       int64 `json:"stall_wins"`        // stall hedges that won

	Denied      int64            `json:"denied"`       // hedges that were due and not sent, for any reason
	DeniedBytes int64            `json:"denied_bytes"` // denied hedges for which the budget of bytes was too small
	DeniedBy    map[Reason]int64 `json:"denied_by"`    // Denied by reason; reasons that never applied are missing

	BytesAsked   int64 `json:"bytes_asked"`   // bytes requested by ranges, without hedges
	BytesHedged  int64 `json:"bytes_hedged"`  // bytes requested by hedges and paid from the budget of bytes; if the store ignores ranges, including the bytes before the range
	BytesRead    int64 `json:"bytes_read"`    // bytes read from the bodies of all attempts
	BytesSkipped int64 `json:"bytes_skipped"` // read bytes before the range, from servers that ignore ranges
	BytesTwice   int64 `json:"bytes_twice"`   // bytes that were read by a hedge and by the attempt that it replaces
	BytesHeld    int64 `json:"bytes_held"`    // bytes in memory now, read ahead
	MaxBytes     int64 `json:"max_bytes"`     // limit of BytesHeld; 0: no reading ahead

	Panics int64 `json:"panics"` // recovered panics in hedges and in Close of bodies

	Classes []StoreClass `json:"classes"` // size classes of the read ranges, the smallest first; at most 29
}

// A StoreClass holds the counters and estimates of the ranges of one size class. A class contains lengths from more
// than Length/2 up to Length.
type StoreClass struct {
	Length int64 `json:"length"` // largest length of the class, a power of two
	Ranges int64 `json:"ranges"` // ranges that were read
	Hedges int64 `json:"hedges"` // first-byte and stall hedges

	P50   time.Duration `json:"p50"`   // median time to the first byte; 0: unknown
	P99   time.Duration `json:"p99"`   // 99th percentile of the time to the first byte
	Delay time.Duration `json:"delay"` // hedge delay for the first byte; 0: no hedge
	Stall time.Duration `json:"stall"` // pause after which a body has stalled; 0: unknown
}
