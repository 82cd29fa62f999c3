//go:build !unix

// Package cputime measures the processor time that a benchmark uses.
package cputime

import "time"

// OfThisProcess reports false: this system does not measure it.
func OfThisProcess() (used time.Duration, known bool) { return 0, false }
