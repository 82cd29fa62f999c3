package fleet

import (
	"cmp"
	"math"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/gohedge/hedge/internal/budget"
)

const hedgeBurst = 20 // hedges that the budget holds at most

// hedges says whether one more may be sent. It is safe for concurrent use.
type hedges struct {
	off     bool
	bucket  *budget.Bucket
	ceiling *rate.Limiter // nil: there is none
	outage  atomic.Bool   // more than half of the recent queries had no answer
	denied  atomic.Int64
}

func (h *hedges) init(conf Hedge) {
	h.off = conf.Off
	h.bucket = budget.NewBucket(cmp.Or(conf.BudgetPercent, 15)/100, hedgeBurst)
	if n := conf.MaxPerSecond; n > 0 {
		h.ceiling = rate.NewLimiter(rate.Limit(min(n, math.MaxFloat64)), int(min(max(n, 1), math.MaxInt32)))
	}
}

// spend takes a hedge from the budget, or reports false.
func (h *hedges) spend() bool {
	if h.off || h.outage.Load() {
		return false
	}
	ok := h.bucket.Spend()
	if ok && h.ceiling != nil && !h.ceiling.Allow() {
		h.bucket.GiveBack()
		ok = false
	}
	if !ok {
		h.denied.Add(1)
	}
	return ok
}
