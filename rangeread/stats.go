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

// counters count the events of [Stats].
type counters struct {
	ranges, requests           atomic.Int64
	firstByteHedges, firstWins atomic.Int64
	stallHedges, stallWins     atomic.Int64
	asked, hedged, read        atomic.Int64
	skipped, twice             atomic.Int64
	panics                     atomic.Int64
	denied                     denials
}

// denials count the hedges that were due and not sent.
type denials struct {
	mu       sync.Mutex // guards the fields below
	byReason map[observe.Reason]int64
	bytes    int64 // number of these that the budget of bytes did not pay for
}

// countDenial counts a denied hedge. If bytes is true, the budget of bytes did not pay for it.
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

// addTo writes the present values to s.
func (d *denials) addTo(s *Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.DeniedBytes, s.DeniedBy = d.bytes, make(map[observe.Reason]int64)
	maps.Copy(s.DeniedBy, d.byReason)
	for _, n := range d.byReason {
		s.Denied += n
	}
}

// toStats returns the present values. It reads the counters in the reverse order of counting, so that no part is larger than its whole.
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
