package dnshedge_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
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

func TestSpellingsOfADomainInScutilAreOneDomain(t *testing.T) {
	const two = "resolver #1\n nameserver[0] : 192.0.2.1\nresolver #2\n domain : Corp.Example.\n nameserver[0] : 192.0.2.2\n" +
		"resolver #3\n domain : corp.example\n nameserver[0] : 192.0.2.3\nresolver #4\n domain : .\n nameserver[0] : 192.0.2.4\n"
	servers, domains := dnshedge.ParseScutil(two)
	assert.Equal(t, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.4:53")}, servers)
	assert.Equal(t, map[string][]netip.AddrPort{
		"corp.example": {netip.MustParseAddrPort("192.0.2.2:53"), netip.MustParseAddrPort("192.0.2.3:53")},
	}, domains)
}

func TestScutilNamesServersOfAllNamesAndOfDomains(t *testing.T) {
	at := func(all ...string) (out []netip.AddrPort) {
		for _, s := range all {
			out = append(out, netip.MustParseAddrPort(s))
		}
		return out
	}
	servers, domains := dnshedge.ParseScutil(scutilVPN)
	assert.Equal(t, at("192.168.1.1:53", "[fe80::1%en0]:53"), servers)
	assert.Equal(t, map[string][]netip.AddrPort{
		"corp.example":    at("10.8.0.1:53", "10.8.0.2:53"),
		"10.in-addr.arpa": at("10.8.0.1:53"),
		"test":            at("127.0.0.1:5353"),
	}, domains)

	// A VPN alone, whose servers are for a domain; and no network.
	servers, domains = dnshedge.ParseScutil("DNS configuration\n\nresolver #1\n  domain   : corp.example\n  nameserver[0] : 10.8.0.1\n  flags    : Supplemental, Request A records\n")
	assert.Empty(t, servers)
	assert.Equal(t, map[string][]netip.AddrPort{"corp.example": at("10.8.0.1:53")}, domains)
	servers, domains = dnshedge.ParseScutil("No DNS configuration available\n")
	assert.Empty(t, servers)
	assert.Empty(t, domains)
}

func TestTheSystemsServersOfADomainAreAskedAboutItsNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	bubble(t, func(l *lab) {
		all := l.serve("a", with("A 192.0.2.1"))
		l.serve("b", with("A 10.0.0.2"))
		l.serve("c", with("A 192.0.2.3"))
		require.NoError(t, os.WriteFile(file, []byte("nameserver "+l.net.Host("c").Addr().String()+"\n"), 0o600))
		resolver := func(domain, host string) string {
			return fmt.Sprintf("resolver #1\n%s  nameserver[0] : %s\n", domain, l.net.Host(host).Addr())
		}
		normal := resolver("", "a") + resolver("  domain : corp.example\n", "b") + resolver("  domain : test\n", "b")
		out, err := normal, error(nil)
		c := l.client(&dnshedge.Client{
			ResolvConf: file, Cache: new(dnshedge.Cache), SpecialUse: dnshedge.SpecialUseForwarder, RebindFilter: new(dnshedge.RebindFilter),
			Routes: map[string]dnshedge.Exchanger{"public.corp.example": exchangeFunc(func(m *dns.Msg) *dns.Msg {
				r := new(dns.Msg)
				r.SetRcode(m, dns.RcodeRefused)
				return r
			})},
		})
		require.NoError(t, dnshedge.AskScutil(c, func() (string, error) { return out, err }))
		answers := func(want map[string]string) {
			t.Helper()
			for name, address := range want {
				r, _ := l.must(c, name)
				assert.Equal(t, address, addr(r), name)
			}
		}
		answers(map[string]string{
			"x.test.": "10.0.0.2", "corp.example.": "10.0.0.2", "X.Corp.Example.": "10.0.0.2", // private addresses, which are wanted there
			"xcorp.example.": "192.0.2.1", "example.": "192.0.2.1",
			"public.corp.example.": "", // Routes count more
		})

		// No answer is no reason to tell other servers what is asked.
		out, err = "", errors.New("busy")
		time.Sleep(time.Minute)
		before := all.Queries.Load()
		answers(map[string]string{"y.corp.example.": "10.0.0.2"})
		assert.Equal(t, before, all.Queries.Load())

		out, err = "No DNS configuration available", nil
		time.Sleep(time.Minute)
		answers(map[string]string{"z.corp.example.": "192.0.2.3"})

		out = normal
		time.Sleep(time.Minute)
		answers(map[string]string{"z2.corp.example.": "10.0.0.2", "z2.example.": "192.0.2.1"})
	})
}

func TestWithoutScutilTheFileIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	bubble(t, func(l *lab) {
		l.serve("c", with("A 192.0.2.3"))
		require.NoError(t, os.WriteFile(file, []byte("nameserver "+l.net.Host("c").Addr().String()+"\n"), 0o600))
		c := l.client(&dnshedge.Client{ResolvConf: file})
		require.NoError(t, dnshedge.AskScutil(c, func() (string, error) { return "", os.ErrNotExist }))
		for range 2 {
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.3", addr(r))
			time.Sleep(time.Minute)
		}
	})
}
