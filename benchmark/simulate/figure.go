package main

import (
	"fmt"
	"math"
	"time"
)

func toMillis(d time.Duration) float64 { return float64(d) / 1e6 }

// roundToFourDecimals returns x rounded to four decimals, for figures in results: tenths of a microsecond in milliseconds.
func roundToFourDecimals(x float64) float64 { return math.Round(x*1e4) / 1e4 }

// formatMillis returns x, a number of milliseconds, as text: with two decimals below 10, one decimal below 100, and
// otherwise as a whole number.
func formatMillis(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.2f", x)
	}
}

// formatErrorMargin returns the text after a figure in tables that says how uncertain the figure is: a space, ±, and x
// milliseconds. The text is empty if x is 0.
func formatErrorMargin(x float64) string {
	if x == 0 {
		return ""
	}
	return " ±" + formatMillis(x)
}

func formatPercent(x float64) string { return fmt.Sprintf("%.1f %%", x) }

// formatThousands returns the decimal digits of n with a comma before each group of three digits.
func formatThousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
