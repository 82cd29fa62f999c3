package system

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A scutilResolver is the description of one resolver in the output of "scutil --dns".
type scutilResolver struct {
	domain         string // domain of the names that it resolves, in lower case and without the final dot; empty: all names
	order          int    // the resolver with the lowest order is asked first
	port           uint16
	servers        []netip.Addr
	isMulticast    bool // it uses multicast DNS
	isSupplemental bool // flag "Supplemental": it is for its domain only
}

// ParseScutil parses the output of "scutil --dns" of macOS. It uses the first of the two lists of resolvers. The second
// list, "for scoped queries", is for programs that choose a network interface. Resolvers without servers and resolvers
// for multicast DNS are omitted.
func ParseScutil(out string) Configuration {
	var all []*scutilResolver
	var r *scutilResolver // the current one
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "DNS configuration (") {
			break
		}
		if strings.HasPrefix(line, "resolver #") {
			r = new(scutilResolver)
			all = append(all, r)
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if r == nil || !ok {
			continue
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case key == "domain":
			r.domain = strings.ToLower(strings.TrimSuffix(value, "."))
		case key == "order":
			r.order, _ = strconv.Atoi(value)
		case key == "port":
			n, _ := strconv.ParseUint(value, 10, 16)
			r.port = uint16(n)
		case key == "options":
			r.isMulticast = slices.Contains(strings.Fields(value), "mdns")
		case key == "flags":
			r.isSupplemental = strings.Contains(value, "Supplemental")
		case strings.HasPrefix(key, "nameserver["):
			if ip, err := netip.ParseAddr(value); err == nil {
				r.servers = append(r.servers, ip.Unmap())
			}
		}
	}
	if len(all) > 0 && !all[0].isSupplemental {
		all[0].domain = "" // the network's search domain; its servers resolve all names
	}
	slices.SortStableFunc(all, func(a, b *scutilResolver) int { return cmp.Compare(a.order, b.order) })
	found := Configuration{Domains: make(map[string][]netip.AddrPort)}
	for _, r := range all {
		if r.isMulticast {
			continue
		}
		for _, ip := range r.servers {
			at := netip.AddrPortFrom(ip, cmp.Or(r.port, 53))
			if r.domain == "" {
				found.Servers = append(found.Servers, at)
			} else {
				found.Domains[r.domain] = append(found.Domains[r.domain], at)
			}
		}
	}
	return found
}
