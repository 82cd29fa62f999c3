package system_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/system"
)

// A laptop at home, with a VPN for two domains and a file in /etc/resolver.
const scutilVPN = `DNS configuration

resolver #1
  search domain[0] : home
  domain   : home
  nameserver[0] : 192.168.1.1
  nameserver[1] : fe80::1%en0
  if_index : 15 (en0)
  flags    : Request A records, Request AAAA records
  reach    : 0x00020002 (Reachable,Directly Reachable Address)

resolver #2
  domain   : local
  options  : mdns
  timeout  : 5
  flags    : Request A records, Request AAAA records
  reach    : 0x00000000 (Not Reachable)
  order    : 300000

resolver #3
  domain   : 254.169.in-addr.arpa
  options  : mdns
  timeout  : 5
  flags    : Request A records, Request AAAA records
  reach    : 0x00000000 (Not Reachable)
  order    : 300200

resolver #4
  domain   : corp.example
  nameserver[0] : 10.8.0.2
  flags    : Supplemental, Request A records
  reach    : 0x00000003 (Reachable,Transient Connection)
  order    : 103000

resolver #5
  domain   : corp.example
  nameserver[0] : 10.8.0.1
  flags    : Supplemental, Request A records
  reach    : 0x00000003 (Reachable,Transient Connection)
  order    : 102000

resolver #6
  domain   : 10.in-addr.arpa
  nameserver[0] : 10.8.0.1
  flags    : Supplemental, Request A records
  reach    : 0x00000003 (Reachable,Transient Connection)
  order    : 102001

resolver #7
  domain   : test
  nameserver[0] : 127.0.0.1
  port     : 5353
  flags    : Request A records, Request AAAA records
  reach    : 0x00030002 (Reachable,Local Address,Directly Reachable Address)

DNS configuration (for scoped queries)

resolver #1
  search domain[0] : home
  nameserver[0] : 192.168.7.7
  if_index : 15 (en0)
  flags    : Scoped, Request A records, Request AAAA records
  reach    : 0x00020002 (Reachable,Directly Reachable Address)
`

func TestParseScutilMergesSpellingsOfDomain(t *testing.T) {
	const two = "resolver #1\n nameserver[0] : 192.0.2.1\nresolver #2\n domain : Corp.Example.\n nameserver[0] : 192.0.2.2\n" +
		"resolver #3\n domain : corp.example\n nameserver[0] : 192.0.2.3\nresolver #4\n domain : .\n nameserver[0] : 192.0.2.4\n"
	named := system.ParseScutil(two)
	assert.Equal(t, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.4:53")}, named.Servers)
	assert.Equal(t, map[string][]netip.AddrPort{
		"corp.example": {netip.MustParseAddrPort("192.0.2.2:53"), netip.MustParseAddrPort("192.0.2.3:53")},
	}, named.Domains)
}

func TestParseScutilReturnsServersAndDomains(t *testing.T) {
	at := func(all ...string) (out []netip.AddrPort) {
		for _, s := range all {
			out = append(out, netip.MustParseAddrPort(s))
		}
		return out
	}
	named := system.ParseScutil(scutilVPN)
	assert.Equal(t, at("192.168.1.1:53", "[fe80::1%en0]:53"), named.Servers)
	assert.Equal(t, map[string][]netip.AddrPort{
		"corp.example":    at("10.8.0.1:53", "10.8.0.2:53"),
		"10.in-addr.arpa": at("10.8.0.1:53"),
		"test":            at("127.0.0.1:5353"),
	}, named.Domains)

	// A VPN alone, whose servers are for a domain; and no network.
	named = system.ParseScutil("DNS configuration\n\nresolver #1\n  domain   : corp.example\n  nameserver[0] : 10.8.0.1\n  flags    : Supplemental, Request A records\n")
	assert.Empty(t, named.Servers)
	assert.Equal(t, map[string][]netip.AddrPort{"corp.example": at("10.8.0.1:53")}, named.Domains)
	named = system.ParseScutil("No DNS configuration available\n")
	assert.Empty(t, named.Servers)
	assert.Empty(t, named.Domains)
}
