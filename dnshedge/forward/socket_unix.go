//go:build unix && !solaris && !illumos

package forward

import (
	"cmp"
	"math"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSockets allows any number of UDP sockets at one address (SO_REUSEPORT).
const maxSockets = math.MaxInt

// reusePort sets SO_REUSEPORT on the socket raw, so that several sockets can have the same address. It is a function
// for the field Control of a net.ListenConfig.
func reusePort(_, _ string, raw syscall.RawConn) (err error) {
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return cmp.Or(failed, err)
}
