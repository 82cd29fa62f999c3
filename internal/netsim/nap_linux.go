package netsim

import (
	"syscall"
	"time"
)

// nap sleeps in the kernel, for about as long as it is told to.
func nap(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil) // if a signal ends it, the caller looks at the clock
}
