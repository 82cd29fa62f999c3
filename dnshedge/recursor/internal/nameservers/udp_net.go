package nameservers

import (
	"net"
	"net/netip"
)

// dialUDPByNet opens a UDP socket that is connected to the address to, by package net. If local is nil, the operating
// system selects the local port.
func dialUDPByNet(local *net.UDPAddr, to netip.AddrPort) (net.Conn, error) {
	c, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, err // a nil *net.UDPConn would be a non-nil net.Conn
	}
	return c, nil
}
