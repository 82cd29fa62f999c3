package rtt_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const ms = time.Millisecond

func TestEstimateFirstSampleSetsTimeAndDeviation(t *testing.T) {
	var e rtt.Estimate[float64]
	e.AddSample(100*ms, 0.5)
	assert.Equal(t, rtt.Estimate[float64]{SRTT: 100e6, RTTVAR: 50e6}, e)
	var small rtt.Estimate[float32]
	small.AddSample(100*ms, 0.25)
	assert.Equal(t, rtt.Estimate[float32]{SRTT: 100e6, RTTVAR: 25e6}, small)
}

// TestEstimateSmoothsAsInRFC6298: the deviation is from the average of before (§2.3).
func TestEstimateSmoothsAsInRFC6298(t *testing.T) {
	e := rtt.Estimate[float64]{SRTT: 100e6, RTTVAR: 20e6}
	e.AddSample(180*ms, 0.5)
	assert.Equal(t, rtt.Estimate[float64]{SRTT: 110e6, RTTVAR: 35e6}, e)
	e.AddSample(30*ms, 0.5)
	assert.Equal(t, rtt.Estimate[float64]{SRTT: 100e6, RTTVAR: 46.25e6}, e)
}

func TestEstimateUpperBoundIsFourDeviationsAboveSRTT(t *testing.T) {
	e := rtt.Estimate[float64]{SRTT: 100e6, RTTVAR: 20e6}
	assert.Equal(t, 180*ms, e.UpperBound(5e6, 20*ms))
	assert.Equal(t, 190*ms, e.UpperBound(90e6, 20*ms), "the grain is the least deviation")
	assert.Equal(t, 200*ms, e.UpperBound(5e6, 200*ms), "the floor is the least bound")
	assert.Equal(t, 20*ms, rtt.Estimate[float32]{}.UpperBound(5e6, 20*ms))
}

func TestSmoothRTTStartsWithFirstSample(t *testing.T) {
	avg := rtt.SmoothRTT(0., 80*ms)
	assert.Equal(t, 80e6, avg)
	assert.Equal(t, 81e6, rtt.SmoothRTT(avg, 88*ms))
}
