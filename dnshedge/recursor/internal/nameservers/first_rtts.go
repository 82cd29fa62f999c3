package nameservers

import (
	"time"

	"github.com/gohedge/hedge/sketch"
)

const (
	initialMedian     = 50 * time.Millisecond
	initialHedgeDelay = 60 * time.Millisecond
	maxFirstRTT       = 500 * time.Millisecond // limit of both values: deliberately slow servers delay no others
	minSamples        = 20                     // before quantiles replace the initial values
	updateInterval    = 8                      // samples between updates of the quantiles
)

// firstRTTs has the round trip times of the first answers of servers. Pool.mu guards it.
type firstRTTs struct {
	percentile  float64 // of the hedge delay, in [0, 1]
	window      sketch.Window
	newSamples  int           // since the last update
	sampleCount int           // up to minSamples
	median      time.Duration // expected RTT of an unknown server
	hedgeDelay  time.Duration // of an unknown server
}

func newFirstRTTs(percentile float64) *firstRTTs {
	return &firstRTTs{percentile: percentile, median: initialMedian, hedgeDelay: initialHedgeDelay}
}

// addSample adds a sample.
func (c *firstRTTs) addSample(now time.Time, took time.Duration) {
	c.window.Add(now, took)
	c.newSamples++
	if c.sampleCount = min(c.sampleCount+1, minSamples); c.sampleCount == minSamples && c.newSamples >= updateInterval {
		c.updateQuantiles()
	}
}

// mergeSamples adds the samples of another window, unless the own window has as many.
func (c *firstRTTs) mergeSamples(window *sketch.Window) {
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
