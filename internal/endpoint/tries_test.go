package endpoint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestProbesGoToEveryEndpointThatIsOut has three endpoints, of which the first two are ejected.
func TestProbesGoToEveryEndpointThatIsOut(t *testing.T) {
	const all = Mask(7)
	h := new(Health)
	h.primary(all)
	for range badRow {
		h.outcome(0, false)
		h.outcome(1, false)
	}
	require.Equal(t, 2, h.primary(all))
	probes := map[int]int{}
	for range 100 * probeEvery {
		if to, _ := h.probe(all, 2, 0); to >= 0 {
			h.probed(to)
			probes[to]++
		}
	}
	assert.Equal(t, map[int]int{0: 100, 1: 99}, probes, "they take turns")
	h.at[0].out = false
	to, _ := h.probe(all, 0, 0)
	assert.Equal(t, -1, to, "the second endpoint comes after that which calls go to")
}

// TestUnpaidProbeComesAgainSoon never pays for a probe.
func TestUnpaidProbeComesAgainSoon(t *testing.T) {
	h := new(Health)
	for range badRow {
		h.outcome(0, false)
	}
	var at []int
	for n := range probeEvery + 3*deniedEvery {
		if to, _ := h.probe(both, 1, 0); to == 0 {
			at = append(at, n+1)
		}
	}
	assert.Equal(t, []int{probeEvery, probeEvery + deniedEvery, probeEvery + 2*deniedEvery, probeEvery + 3*deniedEvery}, at)
}

// TestProbeThatLosesIsBadOnlyIfItHadLongEnough has an endpoint that is ejected and used to answer after 20 ms.
func TestProbeThatLosesIsBadOnlyIfItHadLongEnough(t *testing.T) {
	s, err := New([]Endpoint{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	const usual = 20 * time.Millisecond
	for took, bad := range map[time.Duration]bool{late*usual - 1: false, late * usual: true} {
		h := new(Health)
		for range badRow {
			h.outcome(0, false)
		}
		h.at[0].quick = usual
		trip := s.Begin(t.Context(), h, both)
		require.Equal(t, 1, trip.Primary())
		h.calls += probeEvery
		trip.ChooseProbe(time.Millisecond)
		require.True(t, trip.Probes())
		trip.Add(1, 0, true)
		trip.End(End{Winner: 0, Took: took})
		assert.Equal(t, bad, h.View(0).Overtaken == 1, took)
	}
}

// TestProbesAskAnEndpointUntilItIsKnown has an endpoint that is not ejected, after that which calls go to.
func TestProbesAskAnEndpointUntilItIsKnown(t *testing.T) {
	const usual = 10 * time.Millisecond
	probes := func(h *Health) (n int) {
		for range 10 * hopeEvery {
			if to, given := h.probe(both, 0, usual); to == 1 {
				assert.Zero(t, given)
				h.probed(1)
				n++
			}
		}
		return n
	}
	h := new(Health)
	assert.Equal(t, 10, probes(h))
	h.silent(1, usual-1)
	assert.Equal(t, 10, probes(h))
	h.silent(1, usual)
	assert.Zero(t, probes(h), "it takes longer")
	h = new(Health)
	for range minAnswers {
		assert.Equal(t, 10, probes(h))
		h.answered(both, 1, 1)
	}
	assert.Zero(t, probes(h), "it is known")
}

// TestOneSuccessBringsAConnectionBackThoughPrimariesFail: no call goes over it, nor over the one behind it.
func TestOneSuccessBringsAConnectionBackThoughPrimariesFail(t *testing.T) {
	h := new(Health)
	var tour Tour
	tour.Begin(h, 0)
	for range badRow {
		tour.Ended(0, false, false)
	}
	tour.Add(1, 1, true)
	tour.Add(2, 2, true)
	for range badRow {
		tour.Ended(1, false, false)
	}
	tour.Ended(2, true, false)
	require.True(t, h.View(0).Ejected && h.View(1).Ejected)
	tour.Ended(1, true, false)
	assert.False(t, h.View(1).Ejected)
}
