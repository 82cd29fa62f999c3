//go:build !unix

// Package cputime measures the processor time that a benchmark uses.
package cputime

import "time"

// Process returns 0 and false: the processor time of this process is not measured on this system.
func Process() (used time.Duration, known bool) { return 0, false }
