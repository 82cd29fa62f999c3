package nameservers

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/budget"
)

const (
	hedgeBurst   = 20 // maximum number of tokens in the hedge budget; a hedge costs one token
	hedgeReserve = 3  // tokens that remain for hedges of queries to reliable servers, so that questions about silent zones cannot take all
)

// hedgeBudget decides whether a hedge may be sent. Each hedge costs a token and counts for a rate limit. Queries that
// are not hedges add tokens. In an outage, no hedge may be sent. It is safe for concurrent use.
type hedgeBudget struct {
	off     bool // hedging is disabled
	account *budget.Account
	limit   *budget.RateLimit
	outage  atomic.Bool  // more than half of the recent queries are unanswered
	denied  atomic.Int64 // number of hedges that were not sent, because a token or a slot was missing
}

// newHedgeBudget returns the hedge budget for conf. Every 100 queries that are not hedges add conf.BudgetPercent
// tokens, and a hedge costs one token.
func newHedgeBudget(conf Hedge) *hedgeBudget {
	return &hedgeBudget{
		off:     conf.Off,
		account: budget.NewAccount(budget.NewBucket(cmp.Or(conf.BudgetPercent, 15)/100, hedgeBurst)),
		limit:   budget.NewRateLimit(conf.MaxPerSecond),
	}
}

// isStopped reports whether no hedge may be sent, because hedging is disabled or an outage suspends it.
func (b *hedgeBudget) isStopped() bool { return b.off || b.outage.Load() }

// checkToken returns true if the budget has a token for a hedge, beyond the tokens that hedgeReserve keeps for hedges of
// queries to reliable servers. It does not spend the token. If there is none, it counts a denied hedge. If hedging is
// stopped, it returns false and counts nothing.
func (b *hedgeBudget) checkToken() bool {
	if b.isStopped() {
		return false
	}
	if b.account.Tokens() < hedgeReserve+1 {
		b.denied.Add(1)
		return false
	}
	return true
}

// spendToken spends a token for a hedge, and returns true if the hedge may be sent. It returns false if hedging is
// stopped, the budget has no token, or the rate limit is reached. The latter two are counted as denied hedges.
//
// isReliable must be true if the server whose answer is late usually answers. Only hedges of queries to such a server may
// use the last hedgeReserve tokens.
func (b *hedgeBudget) spendToken(isReliable bool) bool {
	if b.isStopped() {
		return false
	}
	if !isReliable && b.account.Tokens() < hedgeReserve+1 || !b.account.Spend(time.Now(), b.limit, 1) {
		b.denied.Add(1)
		return false
	}
	return true
}

// refundToken returns the token of a hedge that was not sent. The rate limit still counts the hedge.
func (b *hedgeBudget) refundToken() { b.account.Refund(time.Now(), nil, 1) }
