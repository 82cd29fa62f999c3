//go:build !unix

// Package cputime measures the processor time that a benchmark uses.
package cputime

import "time"

// OfThisProcess reports false, because processor time is not measured on this system.
func OfThisProcess() (used time.Duration, known bool) { return 0, false }
