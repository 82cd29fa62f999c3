package main

import (
	"fmt"
	"math"
	"time"
)

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

// round keeps four decimals: a tenth of a microsecond.
func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }

// formatMillis returns milliseconds with three digits, and whole ones from a hundred on.
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

// formatSpread returns a spread in milliseconds as it stands behind a figure; empty if it is zero.
func formatSpread(x float64) string {
	if x == 0 {
		return ""
	}
	return " ±" + formatMillis(x)
}

func formatPercent(x float64) string { return fmt.Sprintf("%.1f %%", x) }

// thousands writes a number with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
