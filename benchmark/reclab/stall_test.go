package reclab

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestQuestionsBeforeAStallAreLeftOut(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	var r Row
	for i := range 10 {
		q := Lookup{Begin: at(float64(i))}
		if i < 6 {
			q.Winner = -1
		}
		r.Questions = append(r.Questions, q)
	}
	r.Sent, r.Asked = 30, 10
	r.removeStalledQuestions([]stall{{at(4.3), at(4.5)}})
	assert.Equal(t, 2, r.Stalled, "those of the seconds 3 and 4")
	assert.Len(t, r.Questions, 8)
	assert.Equal(t, 4, r.Failures)
	assert.Equal(t, 3.0, r.SentPerCall(), "all questions cost queries")
}

func TestNothingStallsInFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		assert.Empty(t, recordStalls(ctx))
	})
}
