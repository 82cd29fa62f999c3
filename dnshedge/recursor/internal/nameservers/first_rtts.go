package nameservers

import (
	"time"

	"github.com/gohedge/hedge/sketch"
)

const (
	initialMedian     = 50 * time.Millisecond
	initialHedgeDelay = 60 * time.Millisecond
	maxFirstRTT       = 500 * time.Millisecond // of both: servers that are slow on purpose delay no others
	minSamples        = 20                     // before their times are used
	updateInterval    = 8                      // their times are looked at again
)

// firstRTTs is what first answers of servers took. It is guarded by Fleet.mu.
type firstRTTs struct {
	percentile  float64 // that is late, in [0, 1]
	window      sketch.Window
	newSamples  int           // samples since the figures below were made
	sampleCount int           // samples, up to enoughContacts
	median      time.Duration // expected of a server that was never asked
	hedgeDelay  time.Duration // after which such a server is late
}

func newFirstRTTs(percentile float64) *firstRTTs {
	return &firstRTTs{percentile: percentile, median: initialMedian, hedgeDelay: initialHedgeDelay}
}

// add takes a sample.
func (c *firstRTTs) addSample(now time.Time, took time.Duration) {
	c.window.Add(now, took)
	c.newSamples++
	if c.sampleCount = min(c.sampleCount+1, minSamples); c.sampleCount == minSamples && c.newSamples >= updateInterval {
		c.updateQuantiles()
	}
}

// mergeWindow takes the samples of another window, unless there are as many already.
func (c *firstRTTs) mergeWindow(window *sketch.Window) {
	if c.window.Len() >= window.Len() {
		return
	}
	c.window.Merge(window)
	if c.sampleCount = min(c.window.Len(), minSamples); c.sampleCount == minSamples {
		c.updateQuantiles()
	}
}

func (c *firstRTTs) updateQuantiles() {
	c.newSamples = 0
	c.median, _ = c.window.Quantile(0.5)
	c.hedgeDelay, _ = c.window.Quantile(c.percentile)
	c.median, c.hedgeDelay = min(c.median, maxFirstRTT), min(c.hedgeDelay, maxFirstRTT)
}
