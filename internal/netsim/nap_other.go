//go:build !linux

package netsim

import "time"

// nap sleeps as long as a timer does.
func nap(d time.Duration) { time.Sleep(d) }
