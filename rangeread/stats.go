package rangeread

import (
	"sync/atomic"
	"time"
)

// Stats is what a [Store] has done and knows. It is a copy.
type Stats struct {
	Ranges   int64 // that were asked for: parts of reads
	Requests int64 // calls of Fetch

	FirstByteHedges int64 // requests because the first byte was late
	FirstByteWins   int64 // of them, those that were read
	StallHedges     int64 // requests for what was missing of a body that paused or broke off
	StallWins       int64 // of them, those that were read

	Denied      int64 // hedges that were due and were not sent, for any reason
	DeniedBytes int64 // of them, those that the budget of bytes did not pay for

	BytesAsked   int64 // by ranges, not by their hedges
	BytesHedged  int64 // asked for by hedges, which is what the budget of bytes pays for
	BytesRead    int64 // from bodies, by all attempts
	BytesSkipped int64 // of them, those that came before the range: the server has ignored it
	BytesTwice   int64 // of them, those that a hedge and the attempt that it was for have both read
	BytesHeld    int64 // by what is read ahead now

	Panics int64 // of hedges, and of Close of bodies, which were recovered

	Classes []Class // of sizes that were read, the smallest first
}

// A Class is what is known of the ranges of about one size.
type Class struct {
	Length int64 // at most; more than half of it
	Ranges int64 // that were read
	Hedges int64 // of either kind

	P50, P99 time.Duration // of the time to the first byte
	Delay    time.Duration // after which a range is asked for again; 0: it is not
	Stall    time.Duration // after which a body that pauses has stalled; 0: not known
}

// counters are what Stats has, as it is counted.
type counters struct {
	ranges, requests           atomic.Int64
	firstByteHedges, firstWins atomic.Int64
	stallHedges, stallWins     atomic.Int64
	denied, deniedBytes        atomic.Int64
	asked, hedged, read        atomic.Int64
	skipped, twice             atomic.Int64
	panics                     atomic.Int64
}

// snapshot returns the present values. What is counted last is read first, so that no part is larger than its whole.
func (c *counters) snapshot() Stats {
	s := Stats{
		FirstByteWins: c.firstWins.Load(), StallWins: c.stallWins.Load(), DeniedBytes: c.deniedBytes.Load(),
		BytesTwice: c.twice.Load(), BytesHedged: c.hedged.Load(), BytesSkipped: c.skipped.Load(), Panics: c.panics.Load(),
	}
	s.FirstByteHedges, s.StallHedges, s.Denied = c.firstByteHedges.Load(), c.stallHedges.Load(), c.denied.Load()
	s.BytesRead = c.read.Load()
	s.Requests, s.BytesAsked = c.requests.Load(), c.asked.Load()
	s.Ranges = c.ranges.Load()
	return s
}
