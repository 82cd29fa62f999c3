package nameservers

import (
	"time"

	"github.com/gohedge/hedge/sketch"
)

const (
	initialMedian     = 50 * time.Millisecond  // median before there are minSamples samples
	initialHedgeDelay = 60 * time.Millisecond  // hedgeDelay before there are minSamples samples
	maxFirstRTT       = 500 * time.Millisecond // maximum of median and hedgeDelay, so that deliberately slow servers do not delay queries to other servers
	minSamples        = 20                     // samples after which the quantiles of the samples replace the initial values
	updateInterval    = 8                      // number of samples between two updates of the quantiles
)

// firstRTTs estimates the round trip time and the hedge delay of servers that have not answered yet. Its samples are
// the round trip times of the first answers of other servers. Pool.mu guards it.
type firstRTTs struct {
	percentile  float64 // hedgeDelay is this quantile of the samples, between 0 and 1
	window      sketch.Window
	newSamples  int           // samples since the last update of the quantiles
	sampleCount int           // number of samples, at most minSamples
	median      time.Duration // expected RTT of an unknown server
	hedgeDelay  time.Duration // hedge delay of an unknown server
}

// newFirstRTTs returns firstRTTs without samples. percentile, between 0 and 1, is the quantile of the samples that
// becomes the hedge delay.
func newFirstRTTs(percentile float64) *firstRTTs {
	return &firstRTTs{percentile: percentile, median: initialMedian, hedgeDelay: initialHedgeDelay}
}

// addSample adds took, the round trip time of the first answer of a server. It updates the quantiles after each
// updateInterval samples.
func (c *firstRTTs) addSample(now time.Time, took time.Duration) {
	c.window.Add(now, took)
	c.newSamples++
	if c.sampleCount = min(c.sampleCount+1, minSamples); c.sampleCount == minSamples && c.newSamples >= updateInterval {
		c.updateQuantiles()
	}
}

// mergeSamples adds the samples of an imported window. It does nothing if c already has as many samples as the window.
func (c *firstRTTs) mergeSamples(window *sketch.Window) {
	if c.window.Len() >= window.Len() {
		return
	}
	c.window.Merge(window)
	if c.sampleCount = min(c.window.Len(), minSamples); c.sampleCount == minSamples {
		c.updateQuantiles()
	}
}

// updateQuantiles sets median and hedgeDelay to quantiles of the samples, but at most maxFirstRTT.
func (c *firstRTTs) updateQuantiles() {
	c.newSamples = 0
	c.median, _ = c.window.Quantile(0.5)
	c.hedgeDelay, _ = c.window.Quantile(c.percentile)
	c.median, c.hedgeDelay = min(c.median, maxFirstRTT), min(c.hedgeDelay, maxFirstRTT)
}
