package recursor

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// dnsPort is where servers are asked.
const dnsPort = 53

// maxTTL is the longest that anything is believed (RFC 8767 §4).
const maxTTL = 7 * 24 * time.Hour

// delegation is where a zone is served, as its parent said. It is not changed once it is made.
type delegation struct {
	zone        string
	names       []string         // of its servers; those without glue first
	withoutGlue int              // how many of them have no glue
	addrs       []netip.AddrPort // glue, or what was configured
	glueOwners  []string         // of each glue record
	// expires is when the parent has to be asked again, by the time of day. Zero: never.
	expires time.Time

	chain      *chain.Zone // what signatures say of it; not nil
	stub       bool        // of Resolver.Zones: the servers need not have authority
	anyAddress bool        // they may be asked whatever their addresses
}

// newEmptyDelegation returns a zone of which nothing is known.
func newEmptyDelegation(name string) *delegation {
	z := &delegation{zone: name}
	z.chain = &chain.Zone{Name: name, Servers: z}
	return z
}

// parseDelegation reads the NS records of a zone, and the addresses that come with them. Glue
// lies at or below the zone that delegates; other records are ignored. It returns nil if there
// is no server.
func parseDelegation(zone, parent string, ns, extra []dns.RR, now time.Time) *delegation {
	z := newEmptyDelegation(zone)
	glued := make(map[string]bool)
	ttl := uint32(maxTTL / time.Second)
	for _, rr := range ns {
		if s, ok := rr.(*dns.NS); ok && s.Hdr.Class == dns.ClassINET && dnsname.ToLower(s.Hdr.Name) == zone {
			ttl = min(ttl, validTTL(rr))
			name := dnsname.ToLower(s.Ns)
			if _, twice := glued[name]; !twice && len(z.names) < maxNSRecords {
				z.names = append(z.names, name)
				glued[name] = false
			}
		}
	}
	for _, rr := range extra {
		h := rr.Header()
		addr, ok := recordAddress(rr)
		if !ok || len(z.addrs) >= nameservers.MaxAddrs {
			continue
		}
		name := dnsname.ToLower(h.Name)
		if _, ours := glued[name]; !ours || !dnsname.IsWithin(name, parent) {
			continue
		}
		if a := netip.AddrPortFrom(addr, dnsPort); !slices.Contains(z.addrs, a) {
			z.addrs, z.glueOwners = append(z.addrs, a), append(z.glueOwners, name)
			ttl = min(ttl, validTTL(rr))
		}
		glued[name] = true
	}
	if len(z.names) == 0 {
		return nil
	}
	if len(z.names) > nameservers.MaxNames { // those with glue cost nothing to find
		slices.SortStableFunc(z.names, func(a, b string) int { return compareTrueFirst(glued[a], glued[b]) })
		z.names = slices.Clone(z.names[:nameservers.MaxNames])
	}
	slices.SortStableFunc(z.names, func(a, b string) int { return compareTrueFirst(!glued[a], !glued[b]) })
	for _, name := range z.names {
		if !glued[name] {
			z.withoutGlue++
		}
	}
	z.expires = now.Add(time.Duration(max(ttl, minZoneTTL)) * time.Second).Round(0)
	return z
}

// hasSameServers reports whether two referrals are to the same zone at the same servers.
func (z *delegation) hasSameServers(o *delegation) bool {
	same := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	addrs := func(z *delegation) []netip.AddrPort {
		return slices.SortedFunc(slices.Values(z.addrs), netip.AddrPort.Compare)
	}
	return z.zone == o.zone && same(z.names, o.names) && slices.Equal(addrs(z), addrs(o))
}

// glueAddresses returns the addresses that came with the name of a server.
func (z *delegation) glueAddresses(name string) []netip.Addr {
	var addrs []netip.Addr
	for i, owner := range z.glueOwners {
		if owner == name {
			addrs = append(addrs, z.addrs[i].Addr())
		}
	}
	return addrs
}

const (
	maxNSRecords = 256 // names of servers that are read of one response
	minZoneTTL   = 1   // seconds: a referral is for the question that it came with, at least
)

// compareTrueFirst sorts true before false.
func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// recordAddress returns the address in an A or AAAA record of class IN.
func recordAddress(rr dns.RR) (netip.Addr, bool) {
	switch rr := rr.(type) {
	case *dns.A:
		a, ok := netip.AddrFromSlice(rr.A)
		return a.Unmap(), ok && rr.Hdr.Class == dns.ClassINET
	case *dns.AAAA:
		a, ok := netip.AddrFromSlice(rr.AAAA)
		return a, ok && rr.Hdr.Class == dns.ClassINET
	}
	return netip.Addr{}, false
}

// validTTL returns the TTL of a record in seconds. From 2^31 on it counts as 0 (RFC 2181 §8).
func validTTL(rr dns.RR) uint32 {
	if ttl := rr.Header().Ttl; ttl < 1<<31 {
		return ttl
	}
	return 0
}

// memorySize estimates the memory that a delegation takes, in bytes.
func (z *delegation) memorySize() int64 {
	n := 256 + int64(len(z.zone)) + 48*int64(cap(z.addrs))
	for _, names := range [...][]string{z.names, z.glueOwners} {
		for _, name := range names {
			n += 32 + int64(len(name))
		}
	}
	return n + memoryOfRecords(z.chain.DSEvidence)
}
