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

// A delegation has the servers of a zone according to its parent. It is immutable once made.
type delegation struct {
	zone          string
	names         []string         // of its servers; names without glue first
	gluelessCount int              // number of names without glue
	addrs         []netip.AddrPort // glue, or configured addresses
	glueOwners    []string         // owner name of each glue record
	// expires is when the parent has to be asked again, by wall clock. Zero: never.
	expires time.Time

	chain     *chain.Zone // its place in the chain of trust; not nil
	stub      bool        // of Resolver.Zones: the servers need no authority
	privateOK bool        // private addresses are allowed
}

// newEmptyDelegation returns a delegation without servers.
func newEmptyDelegation(name string) *delegation {
	z := &delegation{zone: name}
	z.chain = &chain.Zone{Name: name, Servers: z}
	return z
}

// parseDelegation returns the delegation in the NS records of a zone, with the glue in extra. Glue must lie at or below
// the delegating zone; other records are ignored. It returns nil if there is no server.
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

// hasSameServers reports whether two delegations are of the same zone to the same servers.
func (z *delegation) hasSameServers(o *delegation) bool {
	same := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	addrs := func(z *delegation) []netip.AddrPort {
		return slices.SortedFunc(slices.Values(z.addrs), netip.AddrPort.Compare)
	}
	return z.zone == o.zone && same(z.names, o.names) && slices.Equal(addrs(z), addrs(o))
}

// glueAddresses returns the glue of a server name.
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
	maxNSRecords = 256 // NS records of one response that are read
	minZoneTTL   = 1   // seconds: a referral lasts for the question that it came with
)

// compareTrueFirst orders true before false.
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

// validTTL returns the TTL of a record in seconds, and 0 in place of a value from 2^31 on (RFC 2181 §8).
func validTTL(rr dns.RR) uint32 {
	if ttl := rr.Header().Ttl; ttl < 1<<31 {
		return ttl
	}
	return 0
}

func (z *delegation) memorySize() int64 {
	n := 256 + int64(len(z.zone)) + 48*int64(cap(z.addrs))
	for _, names := range [...][]string{z.names, z.glueOwners} {
		for _, name := range names {
			n += 32 + int64(len(name))
		}
	}
	return n + estimateRecordMemory(z.chain.DSEvidence)
}
