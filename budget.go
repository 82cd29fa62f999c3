package hedge

import (
	"fmt"
	"math"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/race"
)

// A Budget is a token bucket that limits the hedges of all clients and latency keys that share it. Pass it to each
// client by [WithBudget]. Each request that may be hedged adds percent/100 tokens, and each hedge takes one. So in any
// period there are at most percent/100 × requests + burst hedges, independent of the request rate.
//
// A retrier can pay for its retries from the same Budget, by [Budget.Spend], and mark them by [MarkRetry]. The limit then
// holds for hedges and retries together, and requests are those without a mark. Nothing is kept for one of them: hedges, also
// those that failures start (see [WithEndpoints]), and retries may each spend all tokens.
//
// A Budget is safe for concurrent use. The zero Budget is not usable; call NewBudget.
type Budget struct {
	bucket  *budget.Bucket
	percent float64 // tokens per 100 requests
	burst   int     // maximum number of tokens
}

// NewBudget returns a Budget that allows percent hedges per 100 requests. It holds at most burst tokens, but at least
// one, and is full at the start. NewBudget panics unless percent is in [0, 400] and burst is not negative.
func NewBudget(percent float64, burst int) *Budget {
	if !(percent >= 0 && percent <= 100*race.MaxHedges) {
		panic(fmt.Sprintf("hedge: NewBudget: percent %v is not in [0, %d]", percent, 100*race.MaxHedges))
	}
	if burst < 0 || burst > math.MaxInt32 {
		panic(fmt.Sprintf("hedge: NewBudget: burst %d is not in [0, %d]", burst, math.MaxInt32))
	}
	return &Budget{bucket: budget.NewBucket(percent/100, float64(burst)), percent: percent, burst: burst}
}

// Spend pays for one attempt that is not a hedge, such as a retry: it takes one token. If there is less than one token, it
// takes none and returns false, and the attempt should not be made. It returns false for a zero or nil Budget.
//
// Spend does not check whether the server pushes back or hedging is disabled. The calls that it pays for should have the mark
// of [MarkRetry], because they would earn tokens otherwise.
func (b *Budget) Spend() bool { return b != nil && b.bucket != nil && b.bucket.Spend() }

// Refund puts back a token that Spend took for an attempt that was not made. It must be called at most once for each call of
// Spend that returned true. It has no effect on a zero or nil Budget.
func (b *Budget) Refund() {
	if b != nil && b.bucket != nil {
		b.bucket.Refund()
	}
}

// Tokens returns the number of tokens that the budget holds now, rounded to 0.001. It returns
// 0 for a zero or nil Budget.
func (b *Budget) Tokens() float64 {
	if b == nil || b.bucket == nil {
		return 0
	}
	return b.bucket.Tokens()
}

// constructorCall returns the call that made the budget as Go code, such as "NewBudget(10, 5)", for error texts.
func (b *Budget) constructorCall() string {
	return fmt.Sprintf("NewBudget(%v, %d)", b.percent, b.burst)
}
