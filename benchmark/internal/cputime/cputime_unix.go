//go:build unix

// Package cputime measures the processor time that a benchmark uses.
package cputime

import (
	"syscall"
	"time"
)

// Process returns the processor time that this process has used so far, in user and in system mode. known is false if
// the system does not measure processor time.
func Process() (used time.Duration, known bool) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
