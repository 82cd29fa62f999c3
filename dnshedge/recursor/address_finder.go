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

// nameHedgeDelay is how long the lookup of a server name may take before the next name is looked up in parallel.
const nameHedgeDelay = 150 * time.Millisecond

// An addressFinder finds further addresses of a zone's servers for one task, when the glue of the referral does not
// suffice.
//
// For a name without glue, it returns cached addresses first, then the glue in the closest cached delegation to the
// name. Glue is used only as a server address, never as an answer. Otherwise it looks up the name. A name with glue
// is looked up if the glue does not work.
type addressFinder struct {
	lookup   *lookup
	zone     *delegation
	selector *responseSelector // selects the responses of the task; selected is not read
	node     *waitNode         // waits for the lookups

	// The fields below belong to newAddressFinder, then to the goroutine of findServers. Other goroutines only send
	// to results. gluelessNames are the names without glue in the order of lookup, and later also the names with
	// glue.
	gluelessNames []string
	plannedNames  map[string]bool   // names whose lookup was planned
	pending       []question        // lookups that are not started yet
	retried       map[question]bool // lookups that are pending again after errGlueArrived
	queriedApexNS bool              // the lookup of the zone's own NS records was planned
	limit         error             // limit because of which names are not looked up; nil: none
	localErr      error             // nameservers.LocalError of a lookup; nil: none
	returned      []netip.AddrPort  // all addresses returned so far
	inProgress    []question        // running lookups
	nameResults   map[string]int    // results of finished lookups by name, see countUnresolvedName
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

// newAddressFinder returns an addressFinder for one task. Its field returned has the glue and the cached addresses
// of the servers. n is the node that waits for lookups.
func newAddressFinder(l *lookup, z *delegation, j *responseSelector, n *waitNode) *addressFinder {
	f := &addressFinder{lookup: l, zone: z, selector: j, node: n, gluelessNames: z.names[:z.gluelessCount], returned: z.addrs[:len(z.addrs):len(z.addrs)]}
	f.cachedAddresses()
	return f
}

// cachedAddresses returns the cached addresses of gluelessNames that were not returned before.
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

// findServers implements nameservers.Task.FindServers. Until needed is closed, lookups are hedges, which the hedge
// budget pays for.
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

// awaitResult waits until a lookup has ended and returns its new addresses. After nameHedgeDelay, it starts the next
// lookup as a hedge and returns. It also returns when needed is closed or ctx ends.
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
			return nil, r.err // only hedges wait for f.node
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

// promoteHedges records that addresses are needed. Running lookups are no longer hedges.
func (f *addressFinder) promoteHedges() {
	f.hedge, f.budgetSpent = false, false
	f.lookup.core.promoteLookups(f.node)
}

// isClosed reports whether a channel that carries no values is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// hasEnoughAddresses reports whether further addresses are not worth a lookup. That is so if a usable fallback
// response has come, or if the question is minimised and an address is known.
func (f *addressFinder) hasEnoughAddresses() bool {
	if r := f.selector.fallback.Load(); r != nil && !r.nonAuthoritative && !r.invalidSignatures && (r.referral != nil || len(r.answer)+len(r.authority) > 0) {
		return true
	}
	return !f.selector.fullName && len(f.returned) > 0
}

// hasServerAnswered reports whether a server of the zone has answered, so that further addresses of known names are
// not needed. An answer for DS with invalid signatures does not count: it affects a whole zone, so all addresses are
// worth a query.
func (f *addressFinder) hasServerAnswered() bool {
	r := f.selector.fallback.Load()
	return r != nil && !(r.invalidSignatures && f.selector.q.qtype == dns.TypeDS)
}

// planLookups adds the lookups of names to pending, first all of one address type, then all of the other. It omits
// cached names, and names above Limits.ServerNamesPerZone.
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

// planFallbackLookups plans lookups when pending has none. First it plans the lookups of names whose glue may be
// wrong. Then it returns glue from other cached delegations. Last it plans the lookup of the zone's own NS records.
// more reports whether it has planned a lookup.
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

// nextPendingLookup returns the index in pending of the next lookup within the scope, or -1.
func (f *addressFinder) nextPendingLookup(e nameservers.SearchScope) int {
	return slices.IndexFunc(f.pending, func(q question) bool { return e == nameservers.AllNames || !dnsname.IsWithin(q.name, f.zone.zone) })
}

// startLookup starts the next lookup within the scope. It reports false if there is none, or if hedge is set and the
// hedge budget has refused a lookup.
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
		rrs, nxdomain, err := c.lookUpServerName(ctx, f.lookup, f.node, q, hedge)
		f.results <- lookupResult{q, rrs, nxdomain, err}
	})
	return true
}

// processResult processes the result of a lookup. It returns the addresses that were not returned before. It may
// plan further lookups.
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
	if errors.Is(r.err, nameservers.ErrNoHedgeBudget) { // the lookup is repeated once it is needed
		f.budgetSpent = f.hedge
		f.pending = append(f.pending, r.question)
		return f.cachedAddresses()
	}
	if r.qtype == dns.TypeNS { // last resort; the answer serves this task only
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
	if errors.Is(r.err, errGlueArrived) && !f.retried[r.question] { // if the glue does not work, the second lookup ignores it
		f.retried[r.question] = true
		f.pending = append(f.pending, r.question)
		return f.cachedAddresses()
	}
	addrs := f.addAddresses(extractAddresses(r.rrs))
	f.countUnresolvedName(r, len(addrs) > 0)
	return addrs
}

// countUnresolvedName counts the name of r as unresolved, once, if it does not exist or has no address of either
// type. It does not count a name with a new address (found).
func (f *addressFinder) countUnresolvedName(r lookupResult, found bool) {
	const resolved, unresolved = 1, 2
	switch {
	case found:
		f.nameResults[r.name] = resolved
	case f.nameResults[r.name] == 0 && (r.nxdomain || !f.isLookupPending(r.name)):
		f.nameResults[r.name] = unresolved
		f.lookup.budget.unresolvedNames.Add(1)
	}
}

// isLookupPending reports whether a lookup of a name is pending or running.
func (f *addressFinder) isLookupPending(name string) bool {
	hasName := func(q question) bool { return q.name == name }
	return slices.ContainsFunc(f.pending, hasName) || slices.ContainsFunc(f.inProgress, hasName)
}

// addAddresses adds addresses to returned. It returns the added ones, with the port of DNS.
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
