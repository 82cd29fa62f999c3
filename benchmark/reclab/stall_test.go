package reclab

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestQuestionsBeforeAStallAreLeftOut(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	var r Row
	for i := range 10 {
		c := Call{Begun: at(float64(i))}
		if i < 6 {
			c.Winner = -1
		}
		r.Calls = append(r.Calls, c)
	}
	r.UDP = 30
	r.leaveOut([]stall{{at(4.3), at(4.5)}})
	assert.Equal(t, 2, r.Stalled, "those of the seconds 3 and 4")
	assert.Len(t, r.Calls, 8)
	assert.Equal(t, 4, r.Failures)
	assert.Equal(t, 3.0, r.Sent(), "all questions cost queries")
}

func TestNothingStallsInFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watchStalls()
		time.Sleep(10 * time.Second)
		s.stop()
		assert.Empty(t, s.seen)
	})
}
