package reclab

import (
	"context"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
)

const (
	stallCheckInterval = 10 * time.Millisecond
	minStallDelay      = 100 * time.Millisecond // shortest delay of a timer that counts as a stall
	stallMargin        = 2 * time.Second        // a stall may delay questions asked so long before its end
)

// A stall is a period in which this process did not run, so that a timer was more than 100 ms late.
type stall struct{ from, to time.Time }

// recordStalls watches until ctx ends for stalls, periods in which this process did not run, and then returns them.
func recordStalls(ctx context.Context) (stalls []stall) {
	for ctx.Err() == nil {
		begin := time.Now()
		_ = lab.SleepContext(ctx, stallCheckInterval)
		if now := time.Now(); now.Sub(begin) > stallCheckInterval+minStallDelay {
			stalls = append(stalls, stall{begin, now})
		}
	}
	return stalls
}

// removeStalledQuestions removes the questions whose answers a stall of this process may have delayed, and counts the rest.
func (r *Row) removeStalledQuestions(stalls []stall) {
	n := len(r.Questions)
	r.Questions = slices.DeleteFunc(r.Questions, func(q Lookup) bool {
		return slices.ContainsFunc(stalls, func(s stall) bool {
			return q.Begin.After(s.to.Add(-max(stallMargin, s.to.Sub(s.from)))) && q.Begin.Before(s.to)
		})
	})
	r.Stalled = n - len(r.Questions)
	r.countVerdicts()
}
