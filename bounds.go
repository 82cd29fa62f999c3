package hedge

import (
	"fmt"
	"math"
)

// A numberRange is the set of values that a number of [Config] may have. NaN is in none.
type numberRange struct {
	want      string // the range in words: "in [0, 1)"
	low, high float64
	open      bool // high itself is not in the range
}

// finite is the range of the finite numbers from 0 on.
var finite = numberRange{want: "finite and at least 0", high: math.MaxFloat64}

// atLeast returns the range of the numbers from low on.
func atLeast(low float64) numberRange {
	return numberRange{want: fmt.Sprintf("at least %v", low), low: low, high: math.Inf(1)}
}

// within returns the range of the numbers from low to high.
func within(low, high float64) numberRange {
	return numberRange{want: fmt.Sprintf("in [%v, %v]", low, high), low: low, high: high}
}

// below returns the range of the numbers from low on that are less than high.
func below(low, high float64) numberRange {
	return numberRange{want: fmt.Sprintf("in [%v, %v)", low, high), low: low, high: high, open: true}
}

// contains reports whether x is in the range.
func (r numberRange) contains(x float64) bool {
	return x >= r.low && x <= r.high && !(r.open && x == r.high)
}
