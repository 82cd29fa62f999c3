//go:build !linux

package transport

import (
	"net"
	"time"
)

// kernelRTT returns the smoothed round trip time of c as measured by the kernel. It returns 0 for a connection other
// than TCP, and on systems other than Linux.
func kernelRTT(net.Conn) time.Duration { return 0 }
