//go:build !linux

package netsim

import "time"

// sleep waits as exactly as a timer.
func sleep(d time.Duration) { time.Sleep(d) }
