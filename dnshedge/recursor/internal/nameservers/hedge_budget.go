package nameservers

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/budget"
)

const hedgeBurst = 20 // hedgeBurst is the maximum number of tokens in the hedge budget.

// hedgeBudget decides whether a hedge may be sent. It has tokens, a rate limit, and a switch for outages. It is safe
// for concurrent use.
type hedgeBudget struct {
	off     bool
	account *budget.Account
	limit   *budget.RateLimit
	outage  atomic.Bool  // more than half of the recent queries are unanswered
	denied  atomic.Int64 // hedges that were not sent because a token or slot was missing
}

func newHedgeBudget(conf Hedge) *hedgeBudget {
	return &hedgeBudget{
		off:     conf.Off,
		account: budget.NewAccount(budget.NewBucket(cmp.Or(conf.BudgetPercent, 15)/100, hedgeBurst)),
		limit:   budget.NewRateLimit(conf.MaxPerSecond),
	}
}

// isStopped reports whether hedging is off, or suspended by an outage.
func (h *hedgeBudget) isStopped() bool { return h.off || h.outage.Load() }

// hasToken reports whether a token is available. It does not spend it. If there is none, it counts a denied hedge.
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

// spendToken spends a token for a hedge, and reports whether there was one. If there was none, it counts a denied
// hedge.
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

// refundToken returns the token of a hedge that was not sent. The token of the rate limit is not returned.
func (h *hedgeBudget) refundToken() { h.account.Refund(time.Now(), nil, 1) }
