package dnsserver

import (
	"net/netip"

	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// AnswerAddress is the handler of a server that answers each query by one address.
var AnswerAddress = dnstest.Fixed(netip.MustParseAddr("192.0.2.1"), 0)

// ServeDNS starts a DNS server in this process, with a handler, at port 53 of a host over UDP and TCP.
func ServeDNS(host *netsim.Host, handler dnstest.Handler) (*dnstest.Server, error) {
	socket, err := host.ListenPacket("udp", ":53")
	if err != nil {
		return nil, err
	}
	s := &dnstest.Server{Handler: handler}
	s.ServeUDP(socket)
	listener, err := host.Listen("tcp", ":53")
	if err != nil {
		s.Close()
		return nil, err
	}
	s.ServeTCP(listener)
	return s, nil
}
