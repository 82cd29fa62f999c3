package recursor

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// lateName is after how long the next name is looked up beside the first.
const lateName = 150 * time.Millisecond

// finder finds addresses of a zone's servers by their names, when those that came with the
// referral are not enough. It is for one task.
type finder struct {
	lookup *lookup
	zone   *delegation
	enough func() bool // whether there is an answer that will do

	left    []question // to look up
	limit   error      // why some are not
	found   []netip.AddrPort
	flying  int
	results chan lookedUp
}

type lookedUp struct {
	addrs []netip.Addr
	err   error
}

// more returns addresses that were not returned before, or none.
func (f *finder) more(ctx context.Context) ([]netip.AddrPort, error) {
	if f.enough() {
		return nil, nil
	}
	if f.results == nil {
		f.results = make(chan lookedUp, maxUnderWay)
		f.found = slices.Clone(f.zone.addrs)
		if known := f.plan(); len(known) > 0 {
			return known, nil
		}
	}
	for {
		if f.flying == 0 && !f.start(ctx) {
			if addrs := f.glue(); len(addrs) > 0 {
				return addrs, nil
			}
			return nil, f.limit
		}
		timer := time.NewTimer(lateName)
		select {
		case r := <-f.results:
			f.flying--
			if addrs := f.fresh(r.addrs); len(addrs) > 0 {
				timer.Stop()
				return addrs, nil
			}
			f.lookup.bill.vain.Add(1)
			if limit := (*limitError)(nil); errors.As(r.err, &limit) {
				f.limit = limit
			}
		case <-timer.C:
			if f.flying < maxUnderWay && len(f.left) > 0 && f.lookup.core.fleet.spend() {
				f.start(ctx)
			}
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// plan chooses the names to look up: at first those without glue, then those whose glue
// may be wrong; at first one kind of address, then the other. It returns the addresses that
// are known already.
func (f *finder) plan() []netip.AddrPort {
	c := f.lookup.core
	var types []uint16
	if !c.conf.NoIPv4 {
		types = append(types, dns.TypeA)
	}
	if !c.conf.NoIPv6 {
		types = append(types, dns.TypeAAAA)
	}
	bare, glued := slices.Clone(f.zone.names[:f.zone.bare]), f.zone.names[f.zone.bare:]
	rand.Shuffle(len(bare), func(i, j int) { bare[i], bare[j] = bare[j], bare[i] })
	var known []netip.AddrPort
	names := make(map[string]bool)
	now := time.Now()
	for _, group := range [...][]string{bare, glued} {
		for _, t := range types {
			for _, name := range group {
				q := question{name: name, qtype: t}
				if r := c.cache.reply(q, now); r != nil && r.next == "" {
					known = append(known, f.fresh(addressesOf(r.answer))...)
					continue
				}
				if limit := f.lookup.bill.limits.ServerNamesPerZone; !names[name] && len(names) >= limit {
					f.limit = &limitError{"ServerNamesPerZone", limit}
					continue
				}
				names[name] = true
				f.left = append(f.left, q)
			}
		}
	}
	return known
}

// glue returns the addresses that the parents of the names' own zones have for them. They are
// the last to be asked, because the zones themselves have said something else, or nothing.
func (f *finder) glue() []netip.AddrPort {
	c := f.lookup.core
	now := time.Now()
	var addrs []netip.AddrPort
	for _, name := range f.zone.names {
		for zone := name; zone != "."; zone = parent(zone) {
			if z := c.cache.zone(zone, now); z != nil {
				addrs = append(addrs, f.fresh(z.glueOf(name))...)
			}
		}
	}
	return addrs
}

// start begins to look up the next name, or reports false if there is none.
func (f *finder) start(ctx context.Context) bool {
	if len(f.left) == 0 {
		return false
	}
	q := f.left[0]
	f.left = f.left[1:]
	f.flying++
	c := f.lookup.core
	c.running.Go(func() {
		addrs, err := c.addresses(ctx, f.lookup, q)
		f.results <- lookedUp{addrs, err}
	})
	return true
}

// fresh returns those addresses that were not returned before.
func (f *finder) fresh(addrs []netip.Addr) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addrs {
		if ap := netip.AddrPortFrom(a, dnsPort); !slices.Contains(f.found, ap) {
			f.found = append(f.found, ap)
			out = append(out, ap)
		}
	}
	return out
}
