package dnshedge

import (
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// Addresses returns the servers that the Client queries for a name, as addresses for ExchangeContext: Upstreams, or the
// operating system's servers if Upstreams is empty, followed by Fallback. It omits the system's servers if they cannot
// be read.
//
// The result is nil if Exchanger is set, if the name or the Client is invalid, or if Routes or the operating system has
// separate servers for the name's domain.
func (c *Client) Addresses(name string) []string {
	core, err := c.init()
	if err != nil || c.Exchanger != nil {
		return nil
	}
	q, err := wire.NewAuthoritativeQuery(dns.Fqdn(name), dns.TypeA, false, false)
	if err != nil {
		return nil
	}
	s := core.servers
	if core.findDomainRoute(q).isRouted { // no other server may see the name
		return nil
	}
	var all []string
	if s.system != nil {
		servers, _ := s.system.DefaultServers(time.Now())
		for _, server := range servers {
			all = append(all, systemUpstream(server).String())
		}
	}
	for _, up := range slices.Concat(c.Upstreams, c.Fallback) {
		all = append(all, up.String())
	}
	return all
}
