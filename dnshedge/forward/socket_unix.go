//go:build unix && !solaris && !illumos

package forward

import (
	"cmp"
	"math"
	"syscall"

	"golang.org/x/sys/unix"
)

const maxSockets = math.MaxInt

// reusePort sets SO_REUSEPORT, so that several sockets can have the same address.
func reusePort(_, _ string, raw syscall.RawConn) (err error) {
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return cmp.Or(failed, err)
}
