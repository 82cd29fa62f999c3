package netsim

import (
	"syscall"
	"time"
)

// sleep waits for d in the kernel, more precisely than a timer.
func sleep(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil) // if a signal ends it, the caller looks at the clock
}
