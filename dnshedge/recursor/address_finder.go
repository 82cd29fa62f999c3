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
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// nameHedgeDelay is the delay before the next server name is looked up in parallel.
const nameHedgeDelay = 150 * time.Millisecond

// An addressFinder finds addresses of a zone's servers by their names when the glue of the referral does not suffice. It
// serves one task.
//
// It returns cached addresses of the name first, then the glue of the current referral to the name's own zone, which is
// where a lookup would start. Glue is in the bailiwick of its server and is never an answer. If the glue is wrong, the
// name is looked up.
type addressFinder struct {
	lookup   *lookup
	zone     *delegation
	selector *responseSelector // of the task; selected is not read
	node     *waitNode         // waits for the names

	// The fields from unglued on belong to newAddressFinder, then to the goroutine of findMore; only results is sent to by
	// others. unglued has the names without glue of this zone, in the order of lookup.
	gluelessNames []string
	plannedNames  map[string]bool   // names whose lookup was planned
	pending       []question        // not started yet
	retried       map[question]bool // put back because glue had come
	queriedApexNS bool              // the zone's own NS records were asked for
	limit         error             // why some names are not looked up
	localErr      error             // the local error of a lookup
	returned      []netip.AddrPort  // all addresses returned so far
	inProgress    []question        // running lookups
	nameResults   map[string]int    // results of finished names, see countEmptyName
	results       chan lookupResult
	hedge         bool // lookups are hedges: no address is needed yet
	budgetSpent   bool // the hedge budget has refused a lookup
}

// A lookupResult is the result of a server name lookup.
type lookupResult struct {
	question
	rrs      []dns.RR
	nxdomain bool // the name does not exist
	err      error
}

// newAddressFinder returns a finder for a task with the cached addresses.
func newAddressFinder(l *lookup, z *delegation, j *responseSelector, n *waitNode) *addressFinder {
	f := &addressFinder{lookup: l, zone: z, selector: j, node: n, gluelessNames: z.names[:z.gluelessCount], returned: z.addrs[:len(z.addrs):len(z.addrs)]}
	f.cachedAddresses()
	return f
}

// cachedAddresses returns new cached addresses of names without glue.
func (f *addressFinder) cachedAddresses() []netip.AddrPort {
	var addrs []netip.AddrPort
	c, now := f.lookup.core, time.Now()
	for _, name := range f.gluelessNames {
		for _, t := range c.types {
			rrs, _, _ := c.cache.lookUpRecords(c.serverQuestion(name, t), now)
			addrs = append(addrs, f.addAddresses(extractAddresses(rrs))...)
		}
		if z := c.cache.lookUpClosestDelegation(name, now); z != nil {
			addrs = append(addrs, f.addAddresses(z.glueAddresses(name))...)
		}
	}
	return addrs
}

// findServers implements Task.FindMore. Until the addresses are needed, lookups are hedges, for which the hedge budget pays.
func (f *addressFinder) findServers(ctx context.Context, e nameservers.SearchScope, needed <-chan struct{}) ([]netip.AddrPort, error) {
	if f.hasEnoughAddresses() {
		return nil, nil
	}
	if f.results == nil {
		f.results = make(chan lookupResult, maxParallelLookups)
		f.plannedNames, f.retried = make(map[string]bool), make(map[question]bool)
		f.nameResults = make(map[string]int)
		f.gluelessNames = slices.Clone(f.gluelessNames)
		rand.Shuffle(len(f.gluelessNames), func(i, j int) { f.gluelessNames[i], f.gluelessNames[j] = f.gluelessNames[j], f.gluelessNames[i] })
		f.planLookups(f.gluelessNames)
	}
	f.hedge, f.budgetSpent = true, false
	for {
		if isClosed(needed) {
			f.promoteHedges()
		}
		if addrs := f.cachedAddresses(); len(addrs) > 0 {
			return addrs, nil
		}
		if len(f.inProgress) == 0 && !f.startLookup(ctx, e, f.hedge) {
			if f.hasServerAnswered() || f.budgetSpent {
				return nil, nil
			}
			if addrs, more := f.planFallbackLookups(e); len(addrs) > 0 || !more {
				return addrs, cmp.Or(f.localErr, f.limit)
			}
			continue
		}
		if addrs, err := f.awaitResult(ctx, e, needed); len(addrs) > 0 || err != nil {
			return addrs, err
		}
	}
}

// awaitResult waits until a lookup has ended, addresses are needed, or the lookup is late. Then it starts the next lookup
// as a hedge.
func (f *addressFinder) awaitResult(ctx context.Context, e nameservers.SearchScope, needed <-chan struct{}) ([]netip.AddrPort, error) {
	if !f.hedge {
		needed = nil
	}
	timer := time.NewTimer(nameHedgeDelay)
	defer timer.Stop()
	select {
	case r := <-f.results:
		f.inProgress = slices.DeleteFunc(f.inProgress, func(q question) bool { return q == r.question })
		addrs := f.processResult(r)
		switch {
		case f.hedge:
		case errors.Is(r.err, nameservers.ErrNoHedgeBudget) && len(f.inProgress) == 0 && f.lookup.core.isOnlyHedged(f.node):
			return nil, r.err // only hedges wait for this lookup
		default:
			f.promoteHedges() // running lookups replace the failed one
		}
		return addrs, nil
	case <-timer.C:
		if len(f.inProgress) < maxParallelLookups && f.nextPendingLookup(e) >= 0 && f.lookup.core.pool.HasHedgeBudget() {
			f.startLookup(ctx, e, true)
		}
	case <-needed:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return nil, nil
}

// promoteHedges turns running hedges into necessary lookups.
func (f *addressFinder) promoteHedges() {
	f.hedge, f.budgetSpent = false, false
	f.lookup.core.promoteLookups(f.node)
}

// isClosed reports whether a channel without senders is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// hasEnoughAddresses reports whether more addresses are not worth a lookup: there is a usable fallback, or a minimised question has
// addresses.
func (f *addressFinder) hasEnoughAddresses() bool {
	if r := f.selector.fallback.Load(); r != nil && !r.nonAuthoritative && !r.invalidSignatures && (r.referral != nil || len(r.answer)+len(r.authority) > 0) {
		return true
	}
	return !f.selector.fullName && len(f.returned) > 0
}

// hasServerAnswered reports whether a server of the zone has answered, so that better addresses of known servers are not
// needed. An unproven denial of DS affects a whole zone; then all addresses are worth a query.
func (f *addressFinder) hasServerAnswered() bool {
	r := f.selector.fallback.Load()
	return r != nil && !(r.invalidSignatures && f.selector.q.qtype == dns.TypeDS)
}

// planLookups plans the lookups of names: first all of one address type, then of the other.
func (f *addressFinder) planLookups(names []string) {
	for _, t := range f.lookup.core.types {
		for _, name := range names {
			q := f.lookup.core.serverQuestion(name, t)
			if _, _, ok := f.lookup.core.cache.lookUpRecords(q, time.Now()); ok || slices.Contains(f.pending, q) {
				continue
			}
			if limit := f.lookup.budget.limits.ServerNamesPerZone; !f.plannedNames[name] && len(f.plannedNames) >= limit {
				f.limit = &limitError{"ServerNamesPerZone", limit}
				continue
			}
			f.plannedNames[name] = true
			f.pending = append(f.pending, q)
		}
	}
}

// planFallbackLookups plans lookups of names whose glue may be wrong, then of the zone's own NS records. It reports whether
// there was more to plan. It returns older glue from other cached referrals if nothing else is left.
func (f *addressFinder) planFallbackLookups(e nameservers.SearchScope) (addrs []netip.AddrPort, more bool) {
	if e == nameservers.GluelessNames {
		return nil, false
	}
	c, now := f.lookup.core, time.Now()
	if glued := f.zone.names[f.zone.gluelessCount:]; len(f.gluelessNames) < len(f.zone.names) {
		f.gluelessNames = append(f.gluelessNames, glued...)
		f.planLookups(glued)
		return nil, true
	}
	for _, name := range f.zone.names {
		for zone := name; zone != "."; zone = dnsname.Parent(zone) {
			if z := c.cache.lookUpDelegation(zone, now); z != nil {
				addrs = append(addrs, f.addAddresses(z.glueAddresses(name))...)
			}
		}
	}
	if len(addrs) > 0 || f.queriedApexNS || e < nameservers.AllNames {
		return addrs, false
	}
	f.queriedApexNS = true
	f.pending = append(f.pending, f.lookup.core.serverQuestion(f.zone.zone, dns.TypeNS))
	return nil, true
}

// nextPendingLookup returns the index of the next pending lookup, or -1.
func (f *addressFinder) nextPendingLookup(e nameservers.SearchScope) int {
	return slices.IndexFunc(f.pending, func(q question) bool { return e == nameservers.AllNames || !dnsname.IsWithin(q.name, f.zone.zone) })
}

// startLookup starts the next lookup. It reports false if there is none or the hedge budget is empty.
func (f *addressFinder) startLookup(ctx context.Context, e nameservers.SearchScope, hedge bool) bool {
	i := f.nextPendingLookup(e)
	if i < 0 || hedge && f.budgetSpent {
		return false
	}
	q := f.pending[i]
	f.pending = slices.Delete(f.pending, i, i+1)
	f.inProgress = append(f.inProgress, q)
	c := f.lookup.core
	c.running.Go(func() {
		rrs, gone, err := c.lookUpServerName(ctx, f.lookup, f.node, q, hedge)
		f.results <- lookupResult{q, rrs, gone, err}
	})
	return true
}

// processResult records the result of a lookup of addresses, and returns the addresses in it that f has not returned before.
func (f *addressFinder) processResult(r lookupResult) []netip.AddrPort {
	if limit := (*limitError)(nil); errors.As(r.err, &limit) {
		f.limit = limit
	}
	if isLocalFailure(r.err) { // the name may have addresses
		f.localErr = r.err
		return f.cachedAddresses()
	}
	if errors.Is(r.err, errCycle) || errors.Is(r.err, errTooDeep) {
		f.selector.lookupSpecific.Store(true)
	}
	if errors.Is(r.err, errTooManyUnresolvedNames) || isQuestionSpecific(r.err) {
		f.selector.questionSpecific.Store(true)
	}
	if errors.Is(r.err, nameservers.ErrNoHedgeBudget) { // retry it once it is needed
		f.budgetSpent = f.hedge
		f.pending = append(f.pending, r.question)
		return f.cachedAddresses()
	}
	if r.qtype == dns.TypeNS { // the last resort, for this task alone
		var names []string
		for _, rr := range r.rrs {
			if ns, ok := rr.(*dns.NS); ok && len(names) < nameservers.MaxNames && !slices.Contains(f.gluelessNames, dnsname.ToLower(ns.Ns)) {
				names = append(names, dnsname.ToLower(ns.Ns))
			}
		}
		f.gluelessNames = append(f.gluelessNames, names...)
		f.planLookups(names)
		return nil
	}
	if errors.Is(r.err, errGlueArrived) && !f.retried[r.question] { // if the glue is wrong, the second lookup ignores it
		f.retried[r.question] = true
		f.pending = append(f.pending, r.question)
		return f.cachedAddresses()
	}
	addrs := f.addAddresses(extractAddresses(r.rrs))
	f.countUnresolvedName(r, len(addrs) > 0)
	return addrs
}

// countUnresolvedName counts a name without an address: it does not exist, or has an address of neither type.
func (f *addressFinder) countUnresolvedName(r lookupResult, found bool) {
	const gave, counted = 1, 2
	switch {
	case found:
		f.nameResults[r.name] = gave
	case f.nameResults[r.name] == 0 && (r.nxdomain || !f.isLookupPending(r.name)):
		f.nameResults[r.name] = counted
		f.lookup.budget.unresolvedNames.Add(1)
	}
}

// isLookupPending reports whether the other address type of a name is or will be looked up.
func (f *addressFinder) isLookupPending(name string) bool {
	is := func(q question) bool { return q.name == name }
	return slices.ContainsFunc(f.pending, is) || slices.ContainsFunc(f.inProgress, is)
}

// addAddresses returns the addresses that were not returned before.
func (f *addressFinder) addAddresses(addrs []netip.Addr) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addrs {
		if ap := netip.AddrPortFrom(a, dnsPort); !slices.Contains(f.returned, ap) {
			f.returned = append(f.returned, ap)
			out = append(out, ap)
		}
	}
	return out
}
