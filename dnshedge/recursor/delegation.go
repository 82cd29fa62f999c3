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

// maxTTL is the maximum time for which data is cached (RFC 8767 §4).
const maxTTL = 7 * 24 * time.Hour

// A delegation holds the names and addresses of a zone's servers. It comes from a referral by the parent zone, from
// priming, or from the configuration. It must not be changed once several goroutines share it.
type delegation struct {
	zone          string
	names         []string         // names in NS records; names without glue come first
	gluelessCount int              // number of names without glue
	addrs         []netip.AddrPort // addresses of the servers, from glue or from the configuration
	glueOwners    []string         // for each address from glue, the owner name of its record
	// expires is the wall clock time from which the parent zone must be queried again. The zero time means never.
	expires time.Time

	chain     *chain.Zone // the same zone for package chain; never nil
	isStub    bool        // the zone is in Resolver.Zones, so that its servers need not be authoritative
	privateOK bool        // servers may have private addresses
}

// newEmptyDelegation returns a delegation of the named zone, without servers.
func newEmptyDelegation(name string) *delegation {
	z := &delegation{zone: name}
	z.chain = &chain.Zone{Name: name, Servers: z}
	return z
}

// parseDelegation returns the delegation of a zone, from the NS records in ns and the glue in extra. It returns nil if
// ns has no NS record of the zone.
//
// parent is the zone that has sent the records. Glue whose owner is not in parent is ignored.
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

// hasSameServers reports whether z and o have the same zone, server names and addresses, in any order.
func (z *delegation) hasSameServers(o *delegation) bool {
	same := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	addrs := func(z *delegation) []netip.AddrPort {
		return slices.SortedFunc(slices.Values(z.addrs), netip.AddrPort.Compare)
	}
	return z.zone == o.zone && same(z.names, o.names) && slices.Equal(addrs(z), addrs(o))
}

// glueAddresses returns the addresses of a server name in the glue of the delegation.
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
	maxNSRecords = 256 // maximum number of NS records that are read from a response
	minZoneTTL   = 1   // minimum lifetime in seconds, so that a delegation does not expire before the current question ends
)

// compareTrueFirst is a comparison function for package slices that sorts true before false.
func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// recordAddress returns the address in an A or AAAA record of class IN. The boolean is false for any other record.
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

// validTTL returns the TTL of a record in seconds. A TTL of 2^31 or more counts as 0 (RFC 2181 §8).
func validTTL(rr dns.RR) uint32 {
	if ttl := rr.Header().Ttl; ttl < 1<<31 {
		return ttl
	}
	return 0
}

// memorySize returns the estimated memory of the delegation, in bytes.
func (z *delegation) memorySize() int64 {
	n := 256 + int64(len(z.zone)) + 48*int64(cap(z.addrs))
	for _, names := range [...][]string{z.names, z.glueOwners} {
		for _, name := range names {
			n += 32 + int64(len(name))
		}
	}
	return n + estimateRecordMemory(z.chain.DSEvidence)
}
