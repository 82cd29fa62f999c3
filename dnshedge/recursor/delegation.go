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

// A delegation holds the names and addresses of a zone's servers. It comes from a referral by the parent zone, from the
// priming response for the root, or from the configuration. It must not be changed once several goroutines share it.
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

// parseDelegation returns the delegation of a zone, from the NS records in ns and the address records (glue) in extra.
// It returns nil if ns has no NS record of the zone. now is the present time, from which its lifetime counts.
//
// parent is the zone that has sent the records. Glue whose owner is not in parent is ignored.
func parseDelegation(zone, parent string, ns, extra []dns.RR, now time.Time) *delegation {
	z := newEmptyDelegation(zone)
	var names []string
	glued := make(map[string]bool) // by name
	ttl := uint32(maxTTL / time.Second)
	for _, rr := range ns {
		if s, ok := rr.(*dns.NS); ok && s.Hdr.Class == dns.ClassINET && dnsname.ToLower(s.Hdr.Name) == zone {
			ttl = min(ttl, effectiveTTL(rr))
			name := dnsname.ToLower(s.Ns)
			if _, listed := glued[name]; !listed && len(names) < maxNSRecords {
				names = append(names, name)
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
			ttl = min(ttl, effectiveTTL(rr))
		}
		glued[name] = true
	}
	if len(names) == 0 {
		return nil
	}
	withGlue := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !glued[name] })
	withGlue = withGlue[:min(len(withGlue), nameservers.MaxNames)] // they need no lookup, and are therefore preferred
	glueless := slices.DeleteFunc(names, func(name string) bool { return glued[name] })
	z.gluelessCount = min(len(glueless), nameservers.MaxNames-len(withGlue))
	z.names = slices.Concat(glueless[:z.gluelessCount], withGlue)
	z.expires = now.Add(time.Duration(max(ttl, minZoneTTL)) * time.Second).Round(0)
	return z
}

// hasSameServers reports whether the delegations d and o have the same zone, server names and addresses, in any order.
func (d *delegation) hasSameServers(o *delegation) bool {
	same := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	addrs := func(z *delegation) []netip.AddrPort {
		return slices.SortedFunc(slices.Values(z.addrs), netip.AddrPort.Compare)
	}
	return d.zone == o.zone && same(d.names, o.names) && slices.Equal(addrs(d), addrs(o))
}

// glueAddresses returns the addresses in the glue of the delegation for the server with the given name.
func (d *delegation) glueAddresses(name string) []netip.Addr {
	var addrs []netip.Addr
	for i, owner := range d.glueOwners {
		if owner == name {
			addrs = append(addrs, d.addrs[i].Addr())
		}
	}
	return addrs
}

// parentDelegation returns the delegation of the parent zone whose servers have sent the referral to d. It returns nil
// if d does not come from a referral.
func (d *delegation) parentDelegation() *delegation { return zoneDelegation(d.chain.Parent) }

// zoneDelegation returns the delegation, with the servers, that belongs to the zone z of package chain. It returns nil
// if z is nil.
func zoneDelegation(z *chain.Zone) *delegation {
	if z == nil {
		return nil
	}
	return z.Servers.(*delegation)
}

const (
	maxNSRecords = 256 // maximum number of NS records that are read from a response
	minZoneTTL   = 1   // minimum lifetime in seconds, so that a delegation does not expire before the current question ends
)

// memorySize returns the estimated memory of the delegation, in bytes.
func (d *delegation) memorySize() int64 {
	n := 256 + int64(len(d.zone)) + 48*int64(cap(d.addrs))
	for _, names := range [...][]string{d.names, d.glueOwners} {
		for _, name := range names {
			n += 32 + int64(len(name))
		}
	}
	return n + estimateRecordMemory(d.chain.DSEvidence)
}
