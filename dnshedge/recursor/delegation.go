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

// dnsPort is the port of name servers.
const dnsPort = 53

// maxTTL is the longest time that data is cached (RFC 8767 §4).
const maxTTL = 7 * 24 * time.Hour

// A delegation has the name servers of a zone as received from its parent zone, or as configured. It does not change
// once it is shared.
type delegation struct {
	zone          string
	names         []string         // NS names; names without glue first
	gluelessCount int              // number of names without glue
	addrs         []netip.AddrPort // addresses of servers: glue, or as configured
	glueOwners    []string         // owner name of the glue record of each address
	// expires is the wall clock time when the parent has to be queried again. Zero: never.
	expires time.Time

	chain     *chain.Zone // the zone in the chain of trust; never nil
	stub      bool        // from Resolver.Zones: the servers need not be authoritative
	privateOK bool        // servers may have private addresses
}

// newEmptyDelegation returns a delegation without servers.
func newEmptyDelegation(name string) *delegation {
	z := &delegation{zone: name}
	z.chain = &chain.Zone{Name: name, Servers: z}
	return z
}

// parseDelegation returns the delegation of a zone. ns has its NS records, and extra the glue. It ignores glue whose
// owner is not at or below parent, the delegating zone. It returns nil if there is no NS record.
func parseDelegation(zone, parent string, ns, extra []dns.RR, now time.Time) *delegation {
	z := newEmptyDelegation(zone)
	glued := make(map[string]bool)
	ttl := uint32(maxTTL / time.Second)
	for _, rr := range ns {
		if s, ok := rr.(*dns.NS); ok && s.Hdr.Class == dns.ClassINET && dnsname.ToLower(s.Hdr.Name) == zone {
			ttl = min(ttl, validTTL(rr))
			name := dnsname.ToLower(s.Ns)
			if _, listed := glued[name]; !listed && len(z.names) < maxNSRecords {
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
		if _, listed := glued[name]; !listed || !dnsname.IsWithin(name, parent) {
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
	if len(z.names) > nameservers.MaxNames { // prefer names with glue, which need no lookup
		slices.SortStableFunc(z.names, func(a, b string) int { return compareTrueFirst(glued[a], glued[b]) })
		z.names = slices.Clone(z.names[:nameservers.MaxNames])
	}
	slices.SortStableFunc(z.names, func(a, b string) int { return compareTrueFirst(!glued[a], !glued[b]) })
	for _, name := range z.names {
		if !glued[name] {
			z.gluelessCount++
		}
	}
	z.expires = now.Add(time.Duration(max(ttl, minZoneTTL)) * time.Second).Round(0)
	return z
}

// hasSameServers reports whether two delegations have the same zone, server names and addresses.
func (z *delegation) hasSameServers(o *delegation) bool {
	same := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	addrs := func(z *delegation) []netip.AddrPort {
		return slices.SortedFunc(slices.Values(z.addrs), netip.AddrPort.Compare)
	}
	return z.zone == o.zone && same(z.names, o.names) && slices.Equal(addrs(z), addrs(o))
}

// glueAddresses returns the addresses in the glue of a server name.
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
	maxNSRecords = 256 // largest number of NS records of a response that are read
	minZoneTTL   = 1   // shortest lifetime in seconds, so that a delegation lasts for the current question
)

// compareTrueFirst is a comparison function for sorting true before false.
func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// recordAddress returns the address in an A or AAAA record of class IN, and false for any other record.
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

// validTTL returns the TTL of a record in seconds. A value from 2^31 on counts as 0 (RFC 2181 §8).
func validTTL(rr dns.RR) uint32 {
	if ttl := rr.Header().Ttl; ttl < 1<<31 {
		return ttl
	}
	return 0
}

// memorySize estimates the memory of the delegation, in bytes.
func (z *delegation) memorySize() int64 {
	n := 256 + int64(len(z.zone)) + 48*int64(cap(z.addrs))
	for _, names := range [...][]string{z.names, z.glueOwners} {
		for _, name := range names {
			n += 32 + int64(len(name))
		}
	}
	return n + estimateRecordMemory(z.chain.DSEvidence)
}
