//go:build unix && !solaris && !illumos

package main

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenPackets opens n UDP sockets of the same address (SO_REUSEPORT). After an error it returns the sockets opened so
// far.
func listenPackets(at string, n int) (all []net.PacketConn, err error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if n > 1 {
			cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
			if cerr != nil {
				return cerr
			}
		}
		return err
	}}
	for range n {
		pc, err := c.ListenPacket(context.Background(), "udp", at)
		if err != nil {
			return all, err
		}
		all = append(all, pc)
	}
	return all, nil
}
