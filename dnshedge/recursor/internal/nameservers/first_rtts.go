package nameservers

import (
	"time"

	"github.com/gohedge/hedge/sketch"
)

const (
	initialMedian     = 50 * time.Millisecond
	initialHedgeDelay = 60 * time.Millisecond
	maxFirstRTT       = 500 * time.Millisecond // upper bound of both estimates, so that deliberately slow servers delay no queries to other servers
	minSamples        = 20                     // samples after which quantiles replace the initial values
	updateInterval    = 8                      // number of samples between two updates of the quantiles
)

// firstRTTs collects the round trip time of the first answer of each server. From these times it estimates the RTT
// and the hedge delay of servers that have not answered yet. Pool.mu guards it.
type firstRTTs struct {
	percentile  float64 // quantile of hedgeDelay, in [0, 1]
	window      sketch.Window
	newSamples  int           // samples since the last update of the quantiles
	sampleCount int           // samples in all, at most minSamples
	median      time.Duration // expected RTT of an unknown server
	hedgeDelay  time.Duration // hedge delay of an unknown server
}

func newFirstRTTs(percentile float64) *firstRTTs {
	return &firstRTTs{percentile: percentile, median: initialMedian, hedgeDelay: initialHedgeDelay}
}

// addSample adds the RTT of the first answer of a server.
func (c *firstRTTs) addSample(now time.Time, took time.Duration) {
	c.window.Add(now, took)
	c.newSamples++
	if c.sampleCount = min(c.sampleCount+1, minSamples); c.sampleCount == minSamples && c.newSamples >= updateInterval {
		c.updateQuantiles()
	}
}

// mergeSamples adds the samples of an imported window, unless c has at least as many samples.
func (c *firstRTTs) mergeSamples(window *sketch.Window) {
	if c.window.Len() >= window.Len() {
		return
	}
	c.window.Merge(window)
	if c.sampleCount = min(c.window.Len(), minSamples); c.sampleCount == minSamples {
		c.updateQuantiles()
	}
}

// updateQuantiles sets median and hedgeDelay to quantiles of the window.
func (c *firstRTTs) updateQuantiles() {
	c.newSamples = 0
	c.median, _ = c.window.Quantile(0.5)
	c.hedgeDelay, _ = c.window.Quantile(c.percentile)
	c.median, c.hedgeDelay = min(c.median, maxFirstRTT), min(c.hedgeDelay, maxFirstRTT)
}
