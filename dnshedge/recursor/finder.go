package recursor

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
)

// lateName is after how long the next name is looked up beside the first.
const lateName = 150 * time.Millisecond

// finder finds addresses of a zone's servers by their names, when those that came with the
// referral are not enough. It is for one task.
//
// The first to be taken are those that the name's own zone has for it, and else those that came as
// glue with the living referral to that zone: to look up the name is to ask there. That glue is
// in the bailiwick of who gave it, and is never an answer. If it is wrong, the name is looked up.
type finder struct {
	lookup *lookup
	zone   *delegation
	judge  *judge // of the task; taken is not read
	node   *node  // that waits for the names

	// Of newFinder and then of the goroutine that calls more; results is sent to by others.
	bare    []string          // names without glue of this zone, in the order in which they are looked up
	seen    map[string]bool   // names that are, or were, to be looked up
	left    []question        // to look up
	again   map[question]bool // those that were put back, because there was glue
	own     bool              // the zone was asked for its own NS records
	limit   error             // why some names are not looked up
	stuck   error             // why this machine could not look up a name
	found   []netip.AddrPort
	flying  []question     // that are looked up
	told    map[string]int // what is known of names that were looked up: see tell
	results chan lookedUp
	hedge   bool // what is looked up is a hedge: no address is needed yet
	unpaid  bool // the budget has not paid for all that
}

type lookedUp struct {
	question
	rrs  []dns.RR
	gone bool // the name does not exist
	err  error
}

// newFinder returns a finder for a task, with the addresses that are known.
func newFinder(l *lookup, z *delegation, j *judge, n *node) *finder {
	f := &finder{lookup: l, zone: z, judge: j, node: n, bare: z.names[:z.bare], found: z.addrs[:len(z.addrs):len(z.addrs)]}
	f.known()
	return f
}

// known returns the addresses of names without glue of this zone that are known and were not
// returned before.
func (f *finder) known() []netip.AddrPort {
	var addrs []netip.AddrPort
	c, now := f.lookup.core, time.Now()
	for _, name := range f.bare {
		for _, t := range c.types {
			rrs, _, _ := c.cache.records(c.questionFor(name, t), now)
			addrs = append(addrs, f.add(addressesOf(rrs))...)
		}
		if z := c.cache.above(name, now); z != nil {
			addrs = append(addrs, f.add(z.glueOf(name))...)
		}
	}
	return addrs
}

// more returns addresses that were not returned before, or none that can be had with that effort. Until they are
// needed, to look up names is a hedge, which the budget pays for.
func (f *finder) more(ctx context.Context, e fleet.Effort, needed <-chan struct{}) ([]netip.AddrPort, error) {
	if f.enough() {
		return nil, nil
	}
	if f.results == nil {
		f.results = make(chan lookedUp, maxUnderWay)
		f.seen, f.again = make(map[string]bool), make(map[question]bool)
		f.told = make(map[string]int)
		f.bare = slices.Clone(f.bare)
		rand.Shuffle(len(f.bare), func(i, j int) { f.bare[i], f.bare[j] = f.bare[j], f.bare[i] })
		f.plan(f.bare)
	}
	f.hedge, f.unpaid = true, false
	for {
		if isClosed(needed) {
			f.need()
		}
		if addrs := f.known(); len(addrs) > 0 {
			return addrs, nil
		}
		if len(f.flying) == 0 && !f.start(ctx, e, f.hedge) {
			if f.spoken() || f.unpaid {
				return nil, nil
			}
			if addrs, more := f.last(e); len(addrs) > 0 || !more {
				return addrs, cmp.Or(f.stuck, f.limit)
			}
			continue
		}
		if addrs, err := f.wait(ctx, e, needed); len(addrs) > 0 || err != nil {
			return addrs, err
		}
	}
}

// wait waits until something was looked up, which may have brought new addresses, or is needed, or is late: then the next name is
// looked up as well, as a hedge.
func (f *finder) wait(ctx context.Context, e fleet.Effort, needed <-chan struct{}) ([]netip.AddrPort, error) {
	if !f.hedge {
		needed = nil
	}
	timer := time.NewTimer(lateName)
	defer timer.Stop()
	select {
	case r := <-f.results:
		f.flying = slices.DeleteFunc(f.flying, func(q question) bool { return q == r.question })
		addrs := f.take(r)
		switch {
		case f.hedge:
		case errors.Is(r.err, fleet.ErrUnpaid) && len(f.flying) == 0 && f.lookup.core.isHedge(f.node):
			return nil, r.err // who waits for this one does so as a hedge
		default:
			f.need() // those that are late take the place of what was needed
		}
		return addrs, nil
	case <-timer.C:
		if len(f.flying) < maxUnderWay && f.next(e) >= 0 && f.lookup.core.fleet.MayHedge() {
			f.start(ctx, e, true)
		}
	case <-needed:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return nil, nil
}

// need makes what is looked up, as a hedge, needed.
func (f *finder) need() {
	f.hedge, f.unpaid = false, false
	f.lookup.core.need(f.node)
}

// isClosed reports whether a channel is, to which nobody sends.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// enough reports whether it is not worth the while: there is an answer that will do, or a
// part of a name was asked of some.
func (f *finder) enough() bool {
	if r := f.judge.poor.Load(); r != nil && !r.foreign && !r.bad && (r.cut != nil || len(r.answer)+len(r.authority) > 0) {
		return true
	}
	return !f.judge.whole && len(f.found) > 0
}

// spoken reports whether a server has said something, so that only those are missing that
// have not been asked yet, and no better addresses of those that have. DS records that are denied without proof decide about a whole zone:
// then all addresses of the parent's servers are worth a query.
func (f *finder) spoken() bool {
	r := f.judge.poor.Load()
	return r != nil && !(r.bad && f.judge.q.qtype == dns.TypeDS)
}

// plan adds what is to be looked up of names: at first one kind of address, then the other.
func (f *finder) plan(names []string) {
	for _, t := range f.lookup.core.types {
		for _, name := range names {
			q := f.lookup.core.questionFor(name, t)
			if _, _, ok := f.lookup.core.cache.records(q, time.Now()); ok || slices.Contains(f.left, q) {
				continue
			}
			if limit := f.lookup.bill.limits.ServerNamesPerZone; !f.seen[name] && len(f.seen) >= limit {
				f.limit = &limitError{"ServerNamesPerZone", limit}
				continue
			}
			f.seen[name] = true
			f.left = append(f.left, q)
		}
	}
}

// last plans what is left to try when no name without glue has an address that works: names
// whose glue may be wrong, then the zone's own NS records. It reports whether there was
// more to plan, and returns what glue there is elsewhere: though these zones have said something
// else, or nothing, in the meantime, nothing else is left.
func (f *finder) last(e fleet.Effort) (addrs []netip.AddrPort, more bool) {
	if e == fleet.Glueless {
		return nil, false
	}
	c, now := f.lookup.core, time.Now()
	if glued := f.zone.names[f.zone.bare:]; len(f.bare) < len(f.zone.names) {
		f.bare = append(f.bare, glued...)
		f.plan(glued)
		return nil, true
	}
	for _, name := range f.zone.names {
		for zone := name; zone != "."; zone = dnsname.Parent(zone) {
			if z := c.cache.zone(zone, now); z != nil {
				addrs = append(addrs, f.add(z.glueOf(name))...)
			}
		}
	}
	if len(addrs) > 0 || f.own || e < fleet.Everything {
		return addrs, false
	}
	f.own = true
	f.left = append(f.left, f.lookup.core.questionFor(f.zone.zone, dns.TypeNS))
	return nil, true
}

// next returns which of those left is looked up next, or -1.
func (f *finder) next(e fleet.Effort) int {
	return slices.IndexFunc(f.left, func(q question) bool { return e == fleet.Everything || !dnsname.Within(q.name, f.zone.zone) })
}

// start begins to look up the next name, or reports false if there is none, or none is paid for.
func (f *finder) start(ctx context.Context, e fleet.Effort, hedge bool) bool {
	i := f.next(e)
	if i < 0 || hedge && f.unpaid {
		return false
	}
	q := f.left[i]
	f.left = slices.Delete(f.left, i, i+1)
	f.flying = append(f.flying, q)
	c := f.lookup.core
	c.running.Go(func() {
		rrs, gone, err := c.find(ctx, f.lookup, f.node, q, hedge)
		f.results <- lookedUp{q, rrs, gone, err}
	})
	return true
}

// take returns the new addresses in what was looked up.
func (f *finder) take(r lookedUp) []netip.AddrPort {
	if limit := (*limitError)(nil); errors.As(r.err, &limit) {
		f.limit = limit
	}
	if isStuck(r.err) { // the name may have addresses
		f.stuck = r.err
		return f.known()
	}
	if errors.Is(r.err, errCycle) || errors.Is(r.err, errDeep) {
		f.judge.mine.Store(true)
	}
	if errors.Is(r.err, errEmpty) || isOwn(r.err) {
		f.judge.own.Store(true)
	}
	if errors.Is(r.err, fleet.ErrUnpaid) { // it may be needed later
		f.unpaid = f.hedge
		f.left = append(f.left, r.question)
		return f.known()
	}
	if r.qtype == dns.TypeNS { // the last resort, for this task alone
		var names []string
		for _, rr := range r.rrs {
			if ns, ok := rr.(*dns.NS); ok && len(names) < fleet.MaxNames && !slices.Contains(f.bare, dnsname.Lower(ns.Ns)) {
				names = append(names, dnsname.Lower(ns.Ns))
			}
		}
		f.bare = append(f.bare, names...)
		f.plan(names)
		return nil
	}
	if errors.Is(r.err, errGlued) && !f.again[r.question] { // if the glue is wrong, it is looked up for good
		f.again[r.question] = true
		f.left = append(f.left, r.question)
		return f.known()
	}
	addrs := f.add(addressesOf(r.rrs))
	f.tell(r, len(addrs) > 0)
	return addrs
}

// tell counts the name that was looked up if it is known now that it gives no address: it does not exist, or has
// none of either kind.
func (f *finder) tell(r lookedUp, found bool) {
	const gave, counted = 1, 2
	switch {
	case found:
		f.told[r.name] = gave
	case f.told[r.name] == 0 && (r.gone || !f.awaits(r.name)):
		f.told[r.name] = counted
		f.lookup.bill.empty.Add(1)
	}
}

// awaits reports whether the other kind of address of a name is looked up, or will be.
func (f *finder) awaits(name string) bool {
	is := func(q question) bool { return q.name == name }
	return slices.ContainsFunc(f.left, is) || slices.ContainsFunc(f.flying, is)
}

// add returns those addresses that were not returned before.
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
