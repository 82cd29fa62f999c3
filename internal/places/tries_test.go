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
			h.duel(1, 2, i%2 == 0)
		}
	}
	assert.Positive(t, tries[2])
	assert.Equal(t, 100, tries[0])
}
