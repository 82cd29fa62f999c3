//go:build !linux

package transport

import (
	"net"
	"time"
)

// kernelRTT returns the smoothed round trip time of a TCP connection as measured by the kernel. On this system it
// always returns 0, which means that the time is unknown.
func kernelRTT(net.Conn) time.Duration { return 0 }
