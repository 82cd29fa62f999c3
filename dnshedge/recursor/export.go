package recursor

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// Export writes learned data, for Import in another process or after a restart. The export has the round trip times of
// servers, and the delegations and DS records of the root and its child zones.
func (r *Resolver) Export(w io.Writer) error {
	c, err := r.initOnce()
	if err != nil {
		return err
	}
	return c.pool.Export(w, r.serverConfigHash(), c.delegationsToExport())
}

// Identity returns a string that identifies the fields that change answers: Hints, Zones, PrivateOK, Trust and
// Limits.NSEC3Iterations. Resolvers with equal strings give equal answers.
//
// Import of a dnshedge.Client checks this string, so that it accepts cached answers only from an equal configuration.
func (r *Resolver) Identity() string {
	t := r.Trust
	return fmt.Sprintf("%s %d %s", r.serverConfigString(), r.Limits.withDefaults().NSEC3Iterations,
		chain.TrustFingerprint(t.Anchors, t.Insecure, t.AllowSHA1, t.RequireAllAlgorithms, t.Report, t.Off))
}

// serverConfigString describes the configured servers. Two Resolvers have equal strings if their Hints, Zones and
// PrivateOK are equal.
func (r *Resolver) serverConfigString() string {
	zones := make([]string, 0, len(r.Zones))
	for zone, addrs := range r.Zones {
		zones = append(zones, fmt.Sprint(dns.CanonicalName(zone), slices.SortedFunc(slices.Values(addrs), netip.AddrPort.Compare)))
	}
	slices.Sort(zones)
	return fmt.Sprintf("%s %q %v", r.hintsKey(), zones, r.PrivateOK)
}

// serverConfigHash returns a hash of serverConfigString, which is stored in an export. Import uses the delegations in
// an export only if its Resolver has the same hash.
func (r *Resolver) serverConfigHash() string {
	h := sha256.Sum256([]byte(r.serverConfigString()))
	return string(h[:])
}

// hintsKey describes the configured root servers. The strings of two Resolvers are equal if and only if their Hints are
// equal, in any order.
func (r *Resolver) hintsKey() string {
	hints := slices.SortedFunc(slices.Values(r.Hints), netip.Addr.Compare)
	return fmt.Sprint(r.Hints == nil, hints)
}

// Import reads an export and adds its data. Data that the Resolver already has is not changed. The age of the export
// shortens TTLs. If Hints, Zones or PrivateOK differ from the exporting Resolver, it adds only round trip times.
//
// If the export is damaged, has another version, is larger than 16 MiB or older than a day, Import returns an error and
// changes nothing.
func (r *Resolver) Import(rd io.Reader) error {
	c, err := r.initOnce()
	if err != nil {
		return err
	}
	zones, err := c.pool.Import(rd, r.serverConfigHash())
	c.importZones(zones)
	return err
}

// delegationsToExport returns the known delegations of the root and its child zones, for an export.
func (c *core) delegationsToExport() []nameservers.Delegation {
	var zones []nameservers.Delegation
	add := func(z *delegation) {
		if len(z.names) > 0 {
			zones = append(zones, nameservers.Delegation{Zone: z.zone, Names: z.names, Addrs: z.addrs, Expires: z.expires, DSEvidence: packRecords(z.chain.DSEvidence)})
		}
	}
	c.primeMu.Lock()
	if c.rootZone != nil {
		add(c.rootZone)
	}
	c.primeMu.Unlock()
	c.cache.mu.RLock()
	defer c.cache.mu.RUnlock()
	for k, e := range c.cache.entries {
		if k.zone && dnsname.Parent(k.name) == "." {
			add(e.zone)
		}
	}
	return zones
}

// importZones adds the delegations of the root and its child zones in an export to those that the Resolver knows. It
// skips invalid delegations, and zones whose delegation is already known.
func (c *core) importZones(zones []nameservers.Delegation) {
	now := time.Now()
	for _, x := range zones {
		z := newEmptyDelegation(x.Zone)
		z.names, z.addrs, z.expires = x.Names, x.Addrs, x.Expires
		if len(z.names) == 0 || len(z.names) > nameservers.MaxNames || len(z.addrs) > nameservers.MaxAddrs || z.expires.After(now.Add(maxTTL)) ||
			slices.ContainsFunc(append([]string{z.zone}, z.names...), func(name string) bool { canonical, ok := dnsname.CanonicalName(name); return !ok || canonical != name }) {
			continue
		}
		if len(z.addrs) == 0 {
			z.gluelessCount = len(z.names)
		}
		if z.zone == "." {
			z.privateOK = true
			c.primeMu.Lock()
			if c.rootZone == nil && len(z.addrs) > 0 {
				c.rootZone = z
			}
			c.primeMu.Unlock()
			continue
		}
		z.chain.Parent, z.chain.DSEvidence, z.chain.ReceivedAt = c.hintsZone.chain, unpackRecords(x.DSEvidence), now.Add(-time.Minute) // the time of the referral is unknown, but not recent
		if dnsname.Parent(z.zone) == "." && c.cache.lookUpDelegation(z.zone, now) == nil {
			c.cache.addDelegation(z, now)
		}
	}
}
