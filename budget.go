package hedge

import (
	"fmt"
	"math"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/race"
)

// A Budget is a token bucket that pays for the hedges of all clients and keys that share it by [WithBudget]. Their
// requests refill it: over any period, hedges are at most percent/100 × requests + burst, independent of the request
// rate.
//
// It is safe for concurrent use. The zero Budget is not usable; call NewBudget.
type Budget struct {
	bucket  *budget.Bucket
	percent float64
	burst   int
}

// NewBudget returns a full budget that earns percent hedges per 100 requests, and holds at most burst hedges, but at
// least one. It panics unless percent is in [0, 400] and burst is not negative.
func NewBudget(percent float64, burst int) *Budget {
	if !(percent >= 0 && percent <= 100*race.MaxHedges) {
		panic(fmt.Sprintf("hedge: NewBudget: percent %v is not in [0, %d]", percent, 100*race.MaxHedges))
	}
	if burst < 0 || burst > math.MaxInt32 {
		panic(fmt.Sprintf("hedge: NewBudget: burst %d is not in [0, %d]", burst, math.MaxInt32))
	}
	return &Budget{bucket: budget.NewBucket(percent/100, float64(burst)), percent: percent, burst: burst}
}

// Tokens returns the number of hedges that the budget can pay for now, with a precision of 0.001. It is 0 for a zero or
// nil Budget.
func (b *Budget) Tokens() float64 {
	if b == nil || b.bucket == nil {
		return 0
	}
	return b.bucket.Tokens()
}

// constructorCall returns the call that made the budget, such as "NewBudget(10, 5)", for error texts.
func (b *Budget) constructorCall() string {
	return fmt.Sprintf("NewBudget(%v, %d)", b.percent, b.burst)
}
