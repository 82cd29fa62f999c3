package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
)

// kernelRTT returns the smoothed round trip time of c as measured by the kernel. It returns 0 for a connection other
// than TCP, and on systems other than Linux.
func kernelRTT(c net.Conn) time.Duration {
	if w, ok := c.(*usercode.Conn); ok {
		c = w.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0
	}
	var rtt time.Duration
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			rtt = time.Duration(info.Rtt) * time.Microsecond
		}
	})
	return rtt
}
