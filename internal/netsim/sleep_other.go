//go:build !linux

package netsim

import "time"

// sleep waits for the duration d with the precision of a timer.
func sleep(d time.Duration) { time.Sleep(d) }
