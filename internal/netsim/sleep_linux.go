package netsim

import (
	"syscall"
	"time"
)

// sleep waits for the duration d with a system call, which is more precise than a timer. It may return earlier if a signal
// arrives.
func sleep(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil) // if a signal ends it, the caller looks at the clock
}
