package nameservers

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/budget"
)

const hedgeBurst = 20 // hedges that the budget holds at most

// hedgeBudget says whether one more may be sent. It is safe for concurrent use.
type hedgeBudget struct {
	off     bool
	account *budget.Account
	limit   *budget.RateLimit
	outage  atomic.Bool // more than half of the recent queries had no answer
	denied  atomic.Int64
}

func newHedgeBudget(conf Hedge) *hedgeBudget {
	return &hedgeBudget{
		off:     conf.Off,
		account: budget.NewAccount(budget.NewBucket(cmp.Or(conf.BudgetPercent, 15)/100, hedgeBurst)),
		limit:   budget.NewRateLimit(conf.MaxPerSecond),
	}
}

// isStopped reports whether there are none, whatever the budget has.
func (h *hedgeBudget) isStopped() bool { return h.off || h.outage.Load() }

// has reports whether there may be one to spend.
func (h *hedgeBudget) hasToken() bool {
	if h.isStopped() {
		return false
	}
	if h.account.Tokens() < 1 {
		h.denied.Add(1)
		return false
	}
	return true
}

// spend takes a hedge from the budget, or reports false.
func (h *hedgeBudget) spendToken() bool {
	if h.isStopped() {
		return false
	}
	if !h.account.Spend(time.Now(), h.limit, 1) {
		h.denied.Add(1)
		return false
	}
	return true
}

// refundToken returns the token of a hedge that was not sent. The rate limit keeps its token.
func (h *hedgeBudget) refundToken() { h.account.Refund(time.Now(), nil, 1) }
