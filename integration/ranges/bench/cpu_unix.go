//go:build unix

package main

import (
	"syscall"
	"time"
)

// cpu returns how long the processors have worked for this process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // of itself it cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
