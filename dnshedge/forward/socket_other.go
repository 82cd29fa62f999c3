//go:build !unix || solaris || illumos

package forward

import "syscall"

// maxSockets is 1, because on these systems the kernel does not distribute clients among several sockets.
const maxSockets = 1

func reusePort(_, _ string, _ syscall.RawConn) error { return nil }
