//go:build !linux

package nameservers

import (
	"net"
	"net/netip"
)

// dialUDP opens a UDP socket with the given local port that is connected to the address to.
func dialUDP(port uint16, to netip.AddrPort) (net.Conn, error) {
	return dialUDPByNet(&net.UDPAddr{Port: int(port)}, to)
}
