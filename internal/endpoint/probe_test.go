package endpoint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDetectorProbesEveryEjectedEndpoint has three endpoints, of which the first two are ejected.
func TestDetectorProbesEveryEjectedEndpoint(t *testing.T) {
	const all = Mask(7)
	d := new(Detector)
	d.SelectPrimary(all)
	for range ejectRun {
		d.recordFailure(0)
		d.recordFailure(1)
	}
	require.Equal(t, 2, d.SelectPrimary(all))
	probes := map[int]int{}
	for range 100 * probeInterval {
		if to, _ := d.selectProbe(all, 2, 0); to >= 0 {
			d.recordProbe(to, 2, 0)
			probes[to]++
		}
	}
	assert.Equal(t, map[int]int{0: 100, 1: 99}, probes, "they take turns")
	d.endpoints[0].ejected = false
	to, _ := d.selectProbe(all, 0, 0)
	assert.NotEqual(t, 1, to, "the second endpoint is ejected, and after the endpoint of the primaries")
}

// TestDetectorRepeatsDeniedProbeSoon denies every probe.
func TestDetectorRepeatsDeniedProbeSoon(t *testing.T) {
	d := new(Detector)
	for range ejectRun {
		d.recordFailure(0)
	}
	var at []int
	for n := range probeInterval + 3*deniedProbeInterval {
		if to, _ := d.selectProbe(both, 1, 0); to == 0 {
			at = append(at, n+1)
		}
	}
	assert.Equal(t, []int{probeInterval, probeInterval + deniedProbeInterval, probeInterval + 2*deniedProbeInterval, probeInterval + 3*deniedProbeInterval}, at)
}

// TestSelectionCountsLosingProbeAsBadOnlyAfterLimit has an ejected endpoint whose usual latency is 20 ms.
func TestSelectionCountsLosingProbeAsBadOnlyAfterLimit(t *testing.T) {
	s, err := NewSet([]Config{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	const usual = 20 * time.Millisecond
	for took, bad := range map[time.Duration]bool{lateAnswerFactor*usual - 1: false, lateAnswerFactor * usual: true} {
		d := new(Detector)
		for range ejectRun {
			d.recordFailure(0)
		}
		d.endpoints[0].expectedLatency = usual
		sel := s.Select(t.Context(), d, both)
		require.Equal(t, 1, sel.Primary().endpoint)
		d.calls += probeInterval
		sel.SelectProbe(time.Millisecond)
		require.True(t, sel.HasProbe())
		sel.addHedge(0, true)
		sel.RecordCallEnd(CallEnd{Winner: 0, Latency: took})
		assert.Equal(t, bad, d.Snapshot(0).Overtaken == 1, took)
	}
}

// TestDetectorGivesLimitOnlyToProbesOfEjectedEndpoints has an ejected endpoint before the primary's, and another one after it.
func TestDetectorGivesLimitOnlyToProbesOfEjectedEndpoints(t *testing.T) {
	d, all := new(Detector), Mask(7)
	for range ejectRun {
		d.recordFailure(0)
	}
	d.endpoints[0].expectedLatency = 20 * time.Millisecond
	limits := make(map[int][]time.Duration)
	for range 2 * measureInterval {
		if to, limit := d.selectProbe(all, 1, 30*time.Millisecond); to >= 0 {
			d.recordProbe(to, 1, 30*time.Millisecond)
			limits[to] = append(limits[to], limit)
		}
	}
	for to, want := range map[int]time.Duration{0: lateAnswerFactor * 20 * time.Millisecond, 2: 0} {
		require.NotEmpty(t, limits[to])
		for _, limit := range limits[to] {
			assert.Equal(t, want, limit, "endpoint %d", to)
		}
	}
}

// TestDetectorProbesEndpointUntilItsLatencyIsKnown has an endpoint after the primary's that is not ejected.
func TestDetectorProbesEndpointUntilItsLatencyIsKnown(t *testing.T) {
	const usual = 10 * time.Millisecond
	probes := func(d *Detector) (n int) {
		for range 10 * promisingInterval {
			if to, given := d.selectProbe(both, 0, usual); to == 1 {
				assert.Zero(t, given)
				d.recordProbe(1, 0, usual)
				n++
			}
		}
		return n
	}
	d := new(Detector)
	assert.Equal(t, 10, probes(d))
	d.recordNoAnswer(1, usual-1)
	assert.Equal(t, 10, probes(d))
	d.recordNoAnswer(1, usual)
	assert.Zero(t, probes(d), "it takes longer")
	d = new(Detector)
	for range minLatencies {
		assert.Equal(t, 10, probes(d))
		d.recordAnswer(both, 1, 1)
	}
	assert.Zero(t, probes(d), "it is known")
}

// TestRotationRestoresConnectionAfterOneSuccessThoughPrimariesFail has a connection for hedges that no primary uses.
func TestRotationRestoresConnectionAfterOneSuccessThoughPrimariesFail(t *testing.T) {
	d := new(Detector)
	var r Rotation
	r.Init(d, 0)
	for range ejectRun {
		r.RecordResult(0, 0, false, false)
	}
	r.AddHedge(1)
	r.AddHedge(2)
	for range ejectRun {
		r.RecordResult(1, 1, false, false)
	}
	r.RecordResult(2, 2, true, false)
	require.True(t, d.Snapshot(0).Ejected && d.Snapshot(1).Ejected)
	r.RecordResult(1, 1, true, false)
	assert.False(t, d.Snapshot(1).Ejected)
}
