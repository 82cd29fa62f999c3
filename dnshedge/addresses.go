package dnshedge

import (
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// Addresses returns the servers that the Client queries for a name, as addresses for ExchangeContext. They are
// Upstreams, or the operating system's servers if Upstreams is empty, followed by Fallback. If the system's servers
// cannot be read, the result has only Fallback. A dnssec.Validator queries these servers in turn when an answer is
// bogus.
//
// The result is nil if one of these conditions holds:
//
//   - Exchanger is set;
//   - a field or the name is invalid, or the file Hosts cannot be read;
//   - the name is in a domain of Routes, or in a domain for which the operating system has separate servers. No other
//     server may see this name.
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
	if core.findDomainRoute(q).isRouted {
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
