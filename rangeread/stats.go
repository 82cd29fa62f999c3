package rangeread

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/observe"
)

// Stats holds the counters and estimates of a [Store] at one time. [observe.StoreStats] documents the fields. It is
// defined there, so that packages debug and hedgeprom need not import rangeread.
type Stats = observe.StoreStats

// Class holds the counters and estimates of one size class of ranges.
type Class = observe.StoreClass

// counters are the event counters in [Stats].
type counters struct {
	ranges, requests           atomic.Int64
	firstByteHedges, firstWins atomic.Int64
	stallHedges, stallWins     atomic.Int64
	asked, hedged, read        atomic.Int64
	skipped, twice             atomic.Int64
	panics                     atomic.Int64
	denied                     denials
}

// denials counts hedges that were due and not sent.
type denials struct {
	mu       sync.Mutex // guards the fields below
	byReason map[observe.Reason]int64
	bytes    int64 // denials because of the budget of bytes
}

// countDenial counts a denied hedge. If bytes is true, the budget of bytes was the reason.
func (d *denials) countDenial(reason observe.Reason, bytes bool) {
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

// addTo sets the fields of s about denials to the current values.
func (d *denials) addTo(s *Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.DeniedBytes, s.DeniedBy = d.bytes, make(map[observe.Reason]int64)
	maps.Copy(s.DeniedBy, d.byReason)
	for _, n := range d.byReason {
		s.Denied += n
	}
}

// toStats returns the current values. It reads the counters in reverse order of their increments, so that a part never
// exceeds its whole.
func (c *counters) toStats() Stats {
	s := Stats{
		FirstByteWins: c.firstWins.Load(), StallWins: c.stallWins.Load(),
		BytesTwice: c.twice.Load(), BytesHedged: c.hedged.Load(), BytesSkipped: c.skipped.Load(), Panics: c.panics.Load(),
	}
	s.FirstByteHedges, s.StallHedges = c.firstByteHedges.Load(), c.stallHedges.Load()
	s.BytesRead = c.read.Load()
	s.Requests, s.BytesAsked = c.requests.Load(), c.asked.Load()
	s.Ranges = c.ranges.Load()
	c.denied.addTo(&s)
	return s
}
