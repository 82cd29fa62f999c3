//go:build !windows

package dnshedge

import (
	"errors"
	"net/netip"
)

// systemConf is where the system's servers are read. On macOS the system writes it: it
// has the servers of the first network service, and not those that a VPN or a file in
// /etc/resolver sets for some domains only.
const systemConf = "/etc/resolv.conf"

// systemServers is for systems without systemConf.
func systemServers() ([]netip.Addr, error) { return nil, errors.ErrUnsupported }
