//go:build !unix || solaris || illumos

package forward

import "syscall"

// maxSockets is 1, because on these systems the kernel does not distribute clients among several sockets.
const maxSockets = 1

// reusePort does nothing, because there is at most one socket for an address.
func reusePort(_, _ string, _ syscall.RawConn) error { return nil }
