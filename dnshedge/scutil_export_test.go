package dnshedge

import "net/netip"

// ParseScutil returns the servers that scutil prints, and those of some domains.
func ParseScutil(out string) (servers []netip.AddrPort, domains map[string][]netip.AddrPort) {
	found := parseScutil(out)
	return found.servers, found.domains
}

// AskScutil has the Client read what scutil would print, instead of asking the system.
func AskScutil(c *Client, scutil func() (string, error)) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	core.system.ask = func() (systemDNS, error) {
		out, err := scutil()
		return parseScutil(out), err
	}
	return nil
}
