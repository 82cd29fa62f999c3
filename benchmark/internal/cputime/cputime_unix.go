//go:build unix

// Package cputime tells what a benchmark costs.
package cputime

import (
	"syscall"
	"time"
)

// Used returns the processor time that this process has used.
func Used() (used time.Duration, known bool) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
