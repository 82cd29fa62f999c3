package rangeread

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/observe"
)

// Stats is what a [Store] has done and knows. It is a copy. The fields are documented at [observe.StoreStats],
// for which debug and hedgeprom need no package rangeread.
type Stats = observe.StoreStats

// Class is what is known of the ranges of about one size.
type Class = observe.StoreClass

// counters are what Stats has, as it is counted.
type counters struct {
	ranges, requests           atomic.Int64
	firstByteHedges, firstWins atomic.Int64
	stallHedges, stallWins     atomic.Int64
	asked, hedged, read        atomic.Int64
	skipped, twice             atomic.Int64
	panics                     atomic.Int64
	denied                     denials
}

// denials are hedges that were due and were not sent.
type denials struct {
	mu       sync.Mutex // guards the fields below
	byReason map[observe.Reason]int64
	bytes    int64 // of them, those that the budget of bytes did not pay for
}

// count counts a hedge. Bytes says that the budget of bytes did not pay for it.
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

// snapshot writes the present values into s.
func (d *denials) addTo(s *Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.DeniedBytes, s.DeniedBy = d.bytes, make(map[observe.Reason]int64)
	maps.Copy(s.DeniedBy, d.byReason)
	for _, n := range d.byReason {
		s.Denied += n
	}
}

// toStats returns the present values. What is counted last is read first, so that no part is larger than its whole.
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
