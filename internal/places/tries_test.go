package places

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAPlaceIsTriedThoughAnotherIsComparedAllTheTime: of three places the first one is out, and the third one is as quick as the second one, to which calls go.
func TestAPlaceIsTriedThoughAnotherIsComparedAllTheTime(t *testing.T) {
	const usual = 40 * time.Millisecond
	h := new(Health)
	h.primary(7)
	h.hedged(1)
	for range badRow {
		h.outcome(0, false)
	}
	require.Equal(t, 1, h.primary(7))
	tries := map[int]int{}
	for i := range 100 * probeEvery {
		to := h.rival(7, 1, usual)
		if to < 0 {
			continue
		}
		h.besides(to)
		if tries[to]++; to == 2 {
			h.duel(1, 2, i%2 == 0, false)
		}
	}
	assert.Positive(t, tries[2])
	assert.Equal(t, 100, tries[0])
}

// TestACopyThatLosesByLittleIsNoBadOutcome of a place that is out, unless it loses as a rule.
func TestACopyThatLosesByLittleIsNoBadOutcome(t *testing.T) {
	s, err := New([]Place{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	const usual = 20 * time.Millisecond
	for name, c := range map[string]struct {
		took time.Duration
		wins int // of ten
		bad  bool
	}{
		"by little":               {farther*usual - 1, 5, false},
		"long after it was asked": {farther * usual, 5, true},
		"as a rule":               {usual, 2, true},
	} {
		h := new(Health)
		h.hedged(1)
		for range badRow {
			h.outcome(0, false)
		}
		h.at[0].quick = usual
		for i := range 20 {
			trip := s.Begin(t.Context(), h, both)
			require.Equal(t, 1, trip.Primary(), name)
			trip.rival, trip.given = 0, h.expected(0)
			trip.Add(1, 0, true)
			won := i%10 < c.wins
			trip.End(End{Winner: map[bool]int{true: 1, false: 0}[won], Took: c.took})
		}
		assert.Equal(t, c.bad, h.View(0).Overtaken > 0, name)
	}
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
	require.True(t, h.View(0).Out && h.View(1).Out)
	tour.Ended(1, true, false)
	assert.False(t, h.View(1).Out)
}
