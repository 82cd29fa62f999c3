package fleet

import (
	"time"

	"github.com/gohedge/hedge/sketch"
)

const (
	coldMedian     = 50 * time.Millisecond
	coldLate       = 60 * time.Millisecond
	maxFirst       = 500 * time.Millisecond // of both: servers that are slow on purpose delay no others
	enoughContacts = 20                     // before their times are used
	everyContacts  = 8                      // their times are looked at again
)

// firstContacts is what first answers of servers took. It is guarded by Fleet.mu.
type firstContacts struct {
	percentile float64 // that is late, in [0, 1]
	window     sketch.Window
	fresh      int           // samples since the figures below were made
	n          int           // samples, up to enoughContacts
	median     time.Duration // expected of a server that was never asked
	late       time.Duration // after which such a server is late
}

func newFirstContacts(percentile float64) *firstContacts {
	return &firstContacts{percentile: percentile, median: coldMedian, late: coldLate}
}

// add takes a sample.
func (c *firstContacts) add(now time.Time, took time.Duration) {
	c.window.Add(now, took)
	c.fresh++
	if c.n = min(c.n+1, enoughContacts); c.n == enoughContacts && c.fresh >= everyContacts {
		c.update()
	}
}

// merge takes the samples of another window, unless there are as many already.
func (c *firstContacts) merge(window *sketch.Window) {
	if c.window.Len() >= window.Len() {
		return
	}
	c.window.Merge(window)
	if c.n = min(c.window.Len(), enoughContacts); c.n == enoughContacts {
		c.update()
	}
}

func (c *firstContacts) update() {
	c.fresh = 0
	c.median, _ = c.window.Quantile(0.5)
	c.late, _ = c.window.Quantile(c.percentile)
	c.median, c.late = min(c.median, maxFirst), min(c.late, maxFirst)
}
