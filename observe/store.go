package observe

import "time"

// StoreStats holds the counters of a rangeread.Store since NewStore, and its current estimates. In JSON, durations are
// numbers of nanoseconds.
type StoreStats struct {
	Enabled bool `json:"enabled"`          // false: hedging is disabled by a BudgetPercent of rangeread.NoBudget, or by the environment
	Shadow  bool `json:"shadow,omitempty"` // true in shadow mode: hedges are only counted, in DeniedBy

	Ranges   int64 `json:"ranges"`   // requested byte ranges; a read may consist of several
	Requests int64 `json:"requests"` // calls of the Fetch function, each of which sends one request

	FirstByteHedges int64 `json:"first_byte_hedges"` // hedges sent because the first byte was late
	FirstByteWins   int64 `json:"first_byte_wins"`   // first-byte hedges whose response was used
	StallHedges     int64 `json:"stall_hedges"`      // hedges for the remaining bytes of a body that stalled or broke off
	StallWins       int64 `json:"stall_wins"`        // stall hedges whose response was used

	Denied      int64            `json:"denied"`       // hedges that were due and not sent, for any reason
	DeniedBytes int64            `json:"denied_bytes"` // hedges among Denied for which the budget of bytes was too small
	DeniedBy    map[Reason]int64 `json:"denied_by"`    // Denied, split by reason; reasons that never applied are missing

	BytesAsked   int64 `json:"bytes_asked"`   // bytes that ranges requested, without their hedges
	BytesHedged  int64 `json:"bytes_hedged"`  // bytes that hedges requested and the budget of bytes paid for; if the server ignores ranges, including the bytes before the range
	BytesRead    int64 `json:"bytes_read"`    // bytes read from the bodies of all attempts
	BytesSkipped int64 `json:"bytes_skipped"` // bytes that were read and discarded because they precede the range, from servers that ignore ranges
	BytesTwice   int64 `json:"bytes_twice"`   // bytes that were read both by a hedge and by the attempt that it replaces
	BytesHeld    int64 `json:"bytes_held"`    // bytes that are in memory now because they were read ahead
	MaxBytes     int64 `json:"max_bytes"`     // maximum of BytesHeld; 0: no reading ahead

	Panics int64 `json:"panics"` // panics in hedges and in Close of bodies, which were recovered

	Classes []StoreClass `json:"classes"` // one entry per size class of the ranges that were read, the smallest first; at most 29
}

// A StoreClass holds the counters and estimates of the ranges of one size class. A class contains the ranges whose
// length is more than Length/2 and at most Length, in bytes.
type StoreClass struct {
	Length int64 `json:"length"` // maximum length of the ranges, in bytes; a power of two
	Ranges int64 `json:"ranges"` // ranges that were read
	Hedges int64 `json:"hedges"` // hedges of these ranges: first-byte and stall hedges

	P50   time.Duration `json:"p50"`   // median time to the first byte; 0: unknown
	P99   time.Duration `json:"p99"`   // 99th percentile of the time to the first byte
	Delay time.Duration `json:"delay"` // time without a first byte after which a hedge is sent; 0: no hedge
	Stall time.Duration `json:"stall"` // pause after which a body counts as stalled; 0: unknown
}
