package dnsserver

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// StartAll starts contenders one after another by the function start, and returns the results. It skips a peer that
// does not start, and a program that is not installed, and reports the error to r. After any other error, it returns
// that error and the contenders started so far. If no contender starts, it returns the errors of all. owner is the
// name of the lab, for errors.
func StartAll[E, C, S any](owner string, contenders []lab.Contender[E, C], r lab.Reporter, start func(lab.Contender[E, C]) (S, error)) (started []S, err error) {
	var skipped []error
	for _, c := range contenders {
		s, err := start(c)
		if err == nil {
			started = append(started, s)
			continue
		}
		err = fmt.Errorf("%s: %s: %w", owner, c.Name, err)
		if PeerOf(c.Name) == "" && !errors.Is(err, exec.ErrNotFound) {
			return started, err
		}
		skipped = append(skipped, err)
		r.SkipContender(err)
	}
	if len(started) == 0 {
		return nil, errors.Join(skipped...)
	}
	return started, nil
}

// AnswerAddress is the handler of a server that answers each query by one address.
var AnswerAddress = dnstest.Fixed(netip.MustParseAddr("192.0.2.1"), 0)

// ServeDNS starts a DNS server with a handler on a host, at port 53 over UDP and TCP.
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
