package rangeread

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/observe"
)

// Stats holds the counters and estimates of a [Store] at one time. [observe.StoreStats] documents the fields. The type
// is defined in package observe, so that packages debug and hedgeprom need not import rangeread.
type Stats = observe.StoreStats

// Class holds the counters and estimates of ranges of similar length. [observe.StoreClass] documents the fields.
type Class = observe.StoreClass

// counters holds the event counters of a Store, from which [Stats] is made. [observe.StoreStats] documents them. It is
// safe for concurrent use.
type counters struct {
	ranges, requests                   atomic.Int64
	firstByteHedges, firstByteWins     atomic.Int64
	stallHedges, stallWins             atomic.Int64
	bytesAsked, bytesHedged, bytesRead atomic.Int64
	bytesSkipped, bytesReadTwice       atomic.Int64
	panics                             atomic.Int64
	denied                             denialCounters
}

// A denialCounters counts hedges that were due and not sent, by reason. It is safe for concurrent use.
type denialCounters struct {
	mu       sync.Mutex // guards the fields below
	byReason map[observe.Reason]int64
	bytes    int64 // denied hedges for which the budget of bytes was too small
}

// countDenial counts a hedge that was denied for the given reason. The argument bytes is true if the budget of bytes
// was too small.
func (d *denialCounters) countDenial(reason observe.Reason, bytes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byReason == nil {
		d.byReason = make(map[observe.Reason]int64)
	}
	d.byReason[reason]++
	if bytes {
		d.bytes++
	}
}

// fillStats sets the fields of s about denied hedges to the current counts.
func (d *denialCounters) fillStats(s *Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.DeniedBytes, s.DeniedBy = d.bytes, make(map[observe.Reason]int64)
	maps.Copy(s.DeniedBy, d.byReason)
	for _, n := range d.byReason {
		s.Denied += n
	}
}

// toStats returns the current values of the counters. It reads them in the reverse order of their increments, so that a
// part never exceeds its whole: wins are at most hedges.
func (c *counters) toStats() Stats {
	s := Stats{
		FirstByteWins: c.firstByteWins.Load(), StallWins: c.stallWins.Load(),
		BytesTwice: c.bytesReadTwice.Load(), BytesHedged: c.bytesHedged.Load(), BytesSkipped: c.bytesSkipped.Load(), Panics: c.panics.Load(),
	}
	s.FirstByteHedges, s.StallHedges = c.firstByteHedges.Load(), c.stallHedges.Load()
	s.BytesRead = c.bytesRead.Load()
	s.Requests, s.BytesAsked = c.requests.Load(), c.bytesAsked.Load()
	s.Ranges = c.ranges.Load()
	c.denied.fillStats(&s)
	return s
}
