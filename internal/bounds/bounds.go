// Package bounds says what settings may be.
package bounds

import (
	"fmt"
	"math"
)

// A Number is what a number may be.
type Number struct {
	Want      string // in words: "in [0, 1)"
	low, high float64
	open      bool // high itself is not allowed
}

// Finite are the numbers from 0 on but infinity.
var Finite = Number{Want: "finite and at least 0", high: math.MaxFloat64}

// AtLeast are the numbers from low on.
func AtLeast(low float64) Number {
	return Number{Want: fmt.Sprintf("at least %v", low), low: low, high: math.Inf(1)}
}

// Within are the numbers from low to high.
func Within(low, high float64) Number {
	return Number{Want: fmt.Sprintf("in [%v, %v]", low, high), low: low, high: high}
}

// Below are the numbers from low on that are below high.
func Below(low, high float64) Number {
	return Number{Want: fmt.Sprintf("in [%v, %v)", low, high), low: low, high: high, open: true}
}

// Allow reports whether x is within the bounds. NaN is not.
func (n Number) Allow(x float64) bool {
	return x >= n.low && x <= n.high && !(n.open && x == n.high)
}
