//go:build !unix || solaris || illumos

package forward

import "syscall"

// maxSockets is 1, because on these systems the kernel does not distribute clients among several sockets.
const maxSockets = 1

// reusePort does nothing, because on this system only one UDP socket is opened for each address (maxSockets). It is a
// function for the field Control of a net.ListenConfig.
func reusePort(_, _ string, _ syscall.RawConn) error { return nil }
