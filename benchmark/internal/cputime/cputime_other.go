//go:build !unix

// Package cputime measures the processor time that a benchmark uses.
package cputime

import "time"

// Used reports false: this system does not say.
func Used() (used time.Duration, known bool) { return 0, false }
