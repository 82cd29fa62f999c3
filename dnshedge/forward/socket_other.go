//go:build !unix || solaris || illumos

package main

import "net"

// listenPackets opens one UDP socket. On these systems the kernel does not distribute clients among several sockets.
func listenPackets(at string, _ int) ([]net.PacketConn, error) {
	pc, err := net.ListenPacket("udp", at)
	if err != nil {
		return nil, err
	}
	return []net.PacketConn{pc}, nil
}
