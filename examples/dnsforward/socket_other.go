//go:build !unix || solaris || illumos

package main

import "net"

// listenPackets opens one UDP socket: these systems do not spread clients among several.
func listenPackets(at string, _ int) ([]net.PacketConn, error) {
	pc, err := net.ListenPacket("udp", at)
	if err != nil {
		return nil, err
	}
	return []net.PacketConn{pc}, nil
}
