package hedge

import (
	"fmt"
	"math"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/race"
)

// A Budget pays for the hedges of everything that it is given to by [WithBudget]. It
// earns a share of their requests. It is safe for concurrent use. The zero Budget pays
// for nothing, and WithBudget panics if it is given one; NewBudget makes one.
//
// It is a token bucket whose clock is the number of
// requests: hedges stay within percent/100 × requests + burst at one request
// per second as at 100,000.
type Budget struct {
	bucket  *budget.Bucket
	percent float64
	burst   int
}

// NewBudget returns a full budget that earns percent hedges per 100 requests and can
// save up burst hedges, but at least one. It panics unless percent is in
// [0, 400] and burst is not negative.
func NewBudget(percent float64, burst int) *Budget {
	if !(percent >= 0 && percent <= 100*race.MaxHedges) {
		panic(fmt.Sprintf("hedge: NewBudget: percent %v is not in [0, %d]", percent, 100*race.MaxHedges))
	}
	if burst < 0 || burst > math.MaxInt32 {
		panic(fmt.Sprintf("hedge: NewBudget: burst %d is not in [0, %d]", burst, math.MaxInt32))
	}
	return &Budget{bucket: budget.NewBucket(percent/100, float64(burst)), percent: percent, burst: burst}
}

// Tokens returns how many hedges the budget would pay for now, to a thousandth. It is 0 for a zero or nil Budget.
func (b *Budget) Tokens() float64 {
	if b == nil || b.bucket == nil {
		return 0
	}
	return b.bucket.Tokens()
}

// describe returns the call that has made the budget.
func (b *Budget) describe() string { return fmt.Sprintf("NewBudget(%v, %d)", b.percent, b.burst) }
