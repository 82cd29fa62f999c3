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
	judge  *judge   // of the task
	types  []uint16 // of addresses that are of use

	names   map[string]bool // that are looked up
	left    []question      // to look up
	own     bool            // the zone was asked for its own NS records
	limit   error           // why some are not looked up
	found   []netip.AddrPort
	flying  int
	results chan lookedUp
}

type lookedUp struct {
	question
	rrs []dns.RR
	err error
}

// newFinder returns a finder for a task, and the addresses that are known: glue, and those of
// names that have none.
func newFinder(l *lookup, z *delegation, j *judge) *finder {
	f := &finder{lookup: l, zone: z, judge: j, types: l.core.types, found: z.addrs[:len(z.addrs):len(z.addrs)]}
	now := time.Now()
	for _, name := range z.names[:z.bare] {
		for _, t := range f.types {
			rrs, _ := l.core.cache.records(question{name: name, qtype: t}, now)
			f.fresh(rrs)
		}
	}
	return f
}

// more returns addresses that were not returned before, or none.
func (f *finder) more(ctx context.Context) ([]netip.AddrPort, error) {
	if f.enough() {
		return nil, nil
	}
	if f.results == nil {
		f.results = make(chan lookedUp, maxUnderWay)
		f.names = make(map[string]bool)
		// At first those without glue, in any order, then those whose glue may be wrong.
		bare := slices.Clone(f.zone.names[:f.zone.bare])
		rand.Shuffle(len(bare), func(i, j int) { bare[i], bare[j] = bare[j], bare[i] })
		if addrs := append(f.plan(bare), f.plan(f.zone.names[f.zone.bare:])...); len(addrs) > 0 {
			return addrs, nil
		}
	}
	for {
		if f.flying == 0 && !f.start(ctx) {
			if addrs := f.glue(); len(addrs) > 0 {
				return addrs, nil
			}
			if f.own {
				return nil, f.limit
			}
			f.own = true
			f.left = append(f.left, question{name: f.zone.zone, qtype: dns.TypeNS})
			continue
		}
		timer := time.NewTimer(lateName)
		select {
		case r := <-f.results:
			f.flying--
			if addrs := f.take(r); len(addrs) > 0 {
				timer.Stop()
				return addrs, nil
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

// enough reports whether it is not worth the while: there is an answer that will do, or a
// part of a name was asked of some.
func (f *finder) enough() bool {
	if r := f.judge.poor.Load(); r != nil && len(r.answer)+len(r.authority) > 0 {
		return true
	}
	return !f.judge.whole && len(f.found) > 0
}

// plan adds what is to be looked up of names: at first one kind of address, then the other. It
// returns addresses that are known already.
func (f *finder) plan(names []string) []netip.AddrPort {
	var known []netip.AddrPort
	now := time.Now()
	for _, t := range f.types {
		for _, name := range names {
			q := question{name: name, qtype: t}
			if rrs, ok := f.lookup.core.cache.records(q, now); ok {
				known = append(known, f.fresh(rrs)...)
				continue
			}
			if limit := f.lookup.bill.limits.ServerNamesPerZone; !f.names[name] && len(f.names) >= limit {
				f.limit = &limitError{"ServerNamesPerZone", limit}
				continue
			}
			f.names[name] = true
			f.left = append(f.left, q)
		}
	}
	return known
}

// glue returns the addresses that the parents of the names' own zones have for them. They are
// nearly the last to be asked, because the zones themselves have said something else, or nothing.
func (f *finder) glue() []netip.AddrPort {
	now := time.Now()
	var addrs []netip.AddrPort
	for _, name := range f.zone.names {
		for zone := name; zone != "."; zone = parent(zone) {
			if z := f.lookup.core.cache.zone(zone, now); z != nil {
				addrs = append(addrs, f.add(z.glueOf(name))...)
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
		rrs, err := c.find(ctx, f.lookup, f.zone.zone, q)
		f.results <- lookedUp{q, rrs, err}
	})
	return true
}

// take returns the new addresses in what was looked up. The zone's own NS records, which are the
// last resort, are for this task alone.
func (f *finder) take(r lookedUp) []netip.AddrPort {
	if limit := (*limitError)(nil); errors.As(r.err, &limit) {
		f.limit = limit
	}
	if r.qtype == dns.TypeNS {
		var names []string
		for _, rr := range r.rrs {
			if ns, ok := rr.(*dns.NS); ok && len(names) < maxServers {
				names = append(names, lower(ns.Ns))
			}
		}
		return f.plan(slices.DeleteFunc(names, func(name string) bool { return slices.Contains(f.zone.names, name) }))
	}
	addrs := f.fresh(r.rrs)
	if len(addrs) == 0 {
		f.lookup.bill.vain.Add(1)
	}
	return addrs
}

// fresh returns those addresses in records that were not returned before.
func (f *finder) fresh(rrs []dns.RR) []netip.AddrPort { return f.add(addressesOf(rrs)) }

func (f *finder) add(addrs []netip.Addr) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addrs {
		if ap := netip.AddrPortFrom(a, dnsPort); !slices.Contains(f.found, ap) {
			f.found = append(f.found, ap)
			out = append(out, ap)
		}
	}
	return out
}
