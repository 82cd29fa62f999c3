package recursor

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/waitgraph"
)

// nameHedgeDelay is the time after which an unfinished lookup of a server name is hedged, by a lookup of the next name
// in parallel.
const nameHedgeDelay = 150 * time.Millisecond

// An addressFinder finds further addresses of a zone's servers while a question is sent to them. It is used when the
// addresses in the referral (glue) do not suffice.
//
// For a server name without glue, it first returns cached addresses, and then the glue in the closest cached delegation
// to the name. Finally, it looks up the name. A name with glue is looked up only if the glue does not work. Glue is used
// only as a server address, never as an answer.
type addressFinder struct {
	lookup   *lookup           // lookup that needs the addresses
	zone     *delegation       // delegation of the zone
	selector *responseSelector // selects the responses of the task
	node     *waitgraph.Node   // waits for the lookups of server names

	// gluelessNames are the names without glue in the order of lookup. Later it also has the names with glue.
	//
	// Only newAddressFinder, and then the goroutine of findServers, use this and the following fields. Other goroutines
	// only send to results.
	gluelessNames []string
	plannedNames  map[string]bool        // names whose lookup was planned
	pending       []nameLookupKey        // lookups that have not started yet
	retried       map[nameLookupKey]bool // lookups that were repeated after errGlueArrived
	queriedParent bool                   // glue is being looked up at the parent zone, or was
	queriedApexNS bool                   // the NS records of the zone itself are being looked up, or were
	limit         error                  // limitError, if names are not looked up because of a limit; otherwise nil
	localErr      error                  // nameservers.LocalError of a lookup, or nil
	returned      []netip.AddrPort       // all addresses that were returned so far
	inProgress    []nameLookupKey        // running lookups
	nameResults   map[string]int         // by name: result of the finished lookups, see countUnresolvedName
	results       chan lookupResult
	isHedging     bool // the lookups are hedges, because no address is needed yet
	budgetSpent   bool // the hedge budget has refused a lookup
}

// A nameLookupKey identifies the lookup of one address type of a server name, or of the NS records of a zone. Its
// question is a result of newInternalQuestion.
type nameLookupKey struct {
	question
	childZone string // if it is not empty, the servers of this zone's parent are queried for glue, see lookUpGlueAtParent
}

// maxNamesAtParent is the number of server names of a zone whose glue is looked up at the parent zone.
const maxNamesAtParent = 2

// A lookupResult is the result of looking up a server name: records or an error.
type lookupResult struct {
	nameLookupKey
	rrs      []dns.RR
	nxdomain bool // true if the name does not exist
	err      error
}

// newAddressFinder returns an addressFinder for one question to the servers of the zone z, which the lookup l asks.
// selector selects the responses to the question. n is the node of the wait-for graph that waits for lookups of server
// names.
//
// The addresses that are known without a lookup are already in the field returned. The queries must start with them.
func newAddressFinder(l *lookup, z *delegation, selector *responseSelector, n *waitgraph.Node) *addressFinder {
	f := &addressFinder{lookup: l, zone: z, selector: selector, node: n, gluelessNames: z.names[:z.gluelessCount], returned: z.addrs[:len(z.addrs):len(z.addrs)]}
	f.findCachedAddresses()
	return f
}

// findCachedAddresses returns addresses of the zone's servers that the cache has and that were not returned before.
// They come from cached answers and from the glue of cached delegations.
func (f *addressFinder) findCachedAddresses() []netip.AddrPort {
	var addrs []netip.AddrPort
	c, now := f.lookup.core, time.Now()
	for _, name := range f.gluelessNames {
		for _, t := range c.types {
			rrs, _, _ := c.cache.lookUpRecords(c.newInternalQuestion(name, t), now)
			addrs = append(addrs, f.addAddresses(extractAddresses(rrs))...)
		}
		if z := c.cache.lookUpClosestDelegation(name, now); z != nil {
			addrs = append(addrs, f.addAddresses(z.glueAddresses(name))...)
		}
	}
	return addrs
}

// findServers returns further addresses of the zone's servers, after lookups of their names if necessary. It implements
// nameservers.Task.FindServers. It returns nil if no more can be found within the scope e.
//
// needed is closed when no known server is left to query. Until then, the lookups are hedges and cost tokens of the
// hedge budget.
func (f *addressFinder) findServers(ctx context.Context, e nameservers.SearchScope, needed <-chan struct{}) ([]netip.AddrPort, error) {
	if f.canSkipLookups() {
		return nil, nil
	}
	if f.results == nil {
		f.results = make(chan lookupResult, maxParallelLookups)
		f.plannedNames, f.retried = make(map[string]bool), make(map[nameLookupKey]bool)
		f.nameResults = make(map[string]int)
		f.gluelessNames = slices.Clone(f.gluelessNames)
		rand.Shuffle(len(f.gluelessNames), func(i, j int) { f.gluelessNames[i], f.gluelessNames[j] = f.gluelessNames[j], f.gluelessNames[i] })
		if len(f.returned) == 0 { // an ordinary lookup of a name within the zone would need one of the zone's servers
			f.addLookupsAtParent()
		}
		f.addPendingLookups(f.gluelessNames)
	}
	f.isHedging, f.budgetSpent = true, false
	for {
		if isClosed(needed) {
			f.promoteHedges()
		}
		if addrs := f.findCachedAddresses(); len(addrs) > 0 {
			return addrs, nil
		}
		if len(f.inProgress) == 0 && !f.startLookup(ctx, e, f.isHedging) {
			if f.hasServerAnswered() || f.budgetSpent {
				return nil, nil
			}
			if addrs, more := f.addFallbackLookups(e); len(addrs) > 0 || !more {
				return addrs, cmp.Or(f.localErr, f.limit)
			}
			continue
		}
		if addrs, err := f.awaitResult(ctx, e, needed); len(addrs) > 0 || err != nil {
			return addrs, err
		}
	}
}

// hasRunningLookups implements nameservers.Task.HasRunningLookups.
func (f *addressFinder) hasRunningLookups() bool { return len(f.inProgress) > 0 }

// awaitResult waits for the next lookup of a server name to end, and returns the addresses that it has found. After
// nameHedgeDelay, it starts another lookup within the scope e as a hedge, and returns nil.
//
// It also returns nil when needed is closed, because no known server is left to query. The error is the cause of ctx,
// or ErrNoHedgeBudget of a lookup that only hedges need.
func (f *addressFinder) awaitResult(ctx context.Context, e nameservers.SearchScope, needed <-chan struct{}) ([]netip.AddrPort, error) {
	if !f.isHedging {
		needed = nil
	}
	timer := time.NewTimer(nameHedgeDelay)
	defer timer.Stop()
	select {
	case r := <-f.results:
		f.inProgress = slices.DeleteFunc(f.inProgress, func(k nameLookupKey) bool { return k == r.nameLookupKey })
		addrs := f.processResult(r)
		switch {
		case f.isHedging:
		case errors.Is(r.err, nameservers.ErrNoHedgeBudget) && len(f.inProgress) == 0 && !f.lookup.core.waits.IsNeeded(f.node):
			return nil, r.err // only hedges wait for f.node
		default:
			f.promoteHedges() // running lookups replace the failed one
		}
		return addrs, nil
	case <-timer.C:
		if len(f.inProgress) < maxParallelLookups && f.nextPendingLookup(e) >= 0 && f.lookup.core.pool.CheckHedgeBudget() {
			f.startLookup(ctx, e, true)
		}
	case <-needed:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return nil, nil
}

// promoteHedges records that an address is needed now, because no known server is left to query. Running and new
// lookups of server names then cost no tokens of the hedge budget.
func (f *addressFinder) promoteHedges() {
	f.isHedging, f.budgetSpent = false, false
	f.lookup.core.waits.PromoteHedges(f.node)
}

// isClosed reports whether c is closed. c must be a channel to which no value is sent.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// canSkipLookups reports whether further addresses of the zone's servers are not worth a lookup. This is so if a
// response was already received that can serve as a fallback. For a question with a minimised name, it is also so if
// any address is known.
func (f *addressFinder) canSkipLookups() bool {
	if r := f.selector.fallback.Load(); r != nil && !r.nonAuthoritative && !r.invalidSignatures && (r.referral != nil || !r.isEmpty()) {
		return true
	}
	return !f.selector.fullName && len(f.returned) > 0
}

// hasServerAnswered reports whether a server of the zone has already answered. The lookups of addFallbackLookups, which
// are a last resort, are then not worthwhile.
//
// A response without signatures from a signed zone does not count as an answer: the address may be outdated. Nor does a
// DS response with invalid signatures. Without valid DS records the whole zone is bogus, so every other server is worth
// a query.
func (f *addressFinder) hasServerAnswered() bool {
	r := f.selector.fallback.Load()
	return r != nil && !(r.invalidSignatures && (r.isUnsigned || f.selector.q.qtype == dns.TypeDS))
}

// addPendingLookups adds lookups of the addresses of the given server names to f.pending, from which startLookup takes
// them. The lookups of one address type come before those of the other. It omits names that are cached, and names above
// Limits.ServerNamesPerZone.
func (f *addressFinder) addPendingLookups(names []string) {
	for _, t := range f.lookup.core.types {
		for _, name := range names {
			q := f.lookup.core.newInternalQuestion(name, t)
			if _, _, ok := f.lookup.core.cache.lookUpRecords(q, time.Now()); ok || slices.Contains(f.pending, nameLookupKey{question: q}) {
				continue
			}
			if limit := f.lookup.budget.limits.ServerNamesPerZone; !f.plannedNames[name] && len(f.plannedNames) >= limit {
				f.limit = &limitError{"ServerNamesPerZone", limit}
				continue
			}
			f.plannedNames[name] = true
			f.pending = append(f.pending, nameLookupKey{question: q})
		}
	}
}

// addFallbackLookups makes another attempt to find servers after all planned lookups have ended without a usable
// address. It returns addresses in addrs, or adds lookups to f.pending and returns more = true. If it returns neither,
// nothing is left to try in the scope e.
//
// Each call makes the next attempt: first the names with glue, because the glue may be wrong, and then the glue in
// other cached delegations. The scope AllNames also allows missing glue at the parent zone, and then the zone's own NS
// records. The scope GluelessNames allows no attempt.
func (f *addressFinder) addFallbackLookups(e nameservers.SearchScope) (addrs []netip.AddrPort, more bool) {
	if e == nameservers.GluelessNames {
		return nil, false
	}
	c, now := f.lookup.core, time.Now()
	if glued := f.zone.names[f.zone.gluelessCount:]; len(f.gluelessNames) < len(f.zone.names) {
		f.gluelessNames = append(f.gluelessNames, glued...)
		f.addPendingLookups(glued)
		return nil, true
	}
	for _, name := range f.zone.names {
		for zone := name; zone != "."; zone = dnsname.Parent(zone) {
			if z := c.cache.lookUpDelegation(zone, now); z != nil {
				addrs = append(addrs, f.addAddresses(z.glueAddresses(name))...)
			}
		}
	}
	switch {
	case len(addrs) > 0 || f.queriedApexNS || e < nameservers.AllNames:
		return addrs, false
	case !f.queriedParent:
		f.addLookupsAtParent()
	default:
		f.queriedApexNS = true
		f.pending = append(f.pending, nameLookupKey{question: c.newInternalQuestion(f.zone.zone, dns.TypeNS)})
	}
	return nil, true
}

// addLookupsAtParent adds lookups to f.pending that ask the servers of the parent zone for missing glue: the addresses
// of server names within the zone itself. The zone's own servers cannot be asked before one of these addresses is
// known. It adds at most maxNamesAtParent names.
func (f *addressFinder) addLookupsAtParent() {
	f.queriedParent = true
	if f.zone.zone == "." {
		return
	}
	names := slices.DeleteFunc(slices.Clone(f.zone.names[:f.zone.gluelessCount]), func(name string) bool { return !dnsname.IsWithin(name, f.zone.zone) })
	for _, t := range f.lookup.core.types {
		for _, name := range names[:min(len(names), maxNamesAtParent)] {
			f.pending = append(f.pending, nameLookupKey{f.lookup.core.newInternalQuestion(name, t), f.zone.zone})
		}
	}
}

// nextPendingLookup returns the index in f.pending of the first lookup within the scope e. It returns -1 if there is
// none.
func (f *addressFinder) nextPendingLookup(e nameservers.SearchScope) int {
	return slices.IndexFunc(f.pending, func(k nameLookupKey) bool { return e == nameservers.AllNames || !dnsname.IsWithin(k.name, f.zone.zone) })
}

// startLookup starts the next pending lookup of a server name within the scope e, on a new goroutine. If hedge is true,
// the lookup is a hedge, and does not start after the hedge budget has refused one. It returns false if it starts no
// lookup.
func (f *addressFinder) startLookup(ctx context.Context, e nameservers.SearchScope, hedge bool) bool {
	i := f.nextPendingLookup(e)
	if i < 0 || hedge && f.budgetSpent {
		return false
	}
	k := f.pending[i]
	f.pending = slices.Delete(f.pending, i, i+1)
	f.inProgress = append(f.inProgress, k)
	c, unresolved := f.lookup.core, f.unresolvedCounter(k.name)
	c.running.Go(func() {
		rrs, nxdomain, err := c.lookUpServerName(ctx, f.lookup, f.node, k, hedge, unresolved)
		f.results <- lookupResult{k, rrs, nxdomain, err}
	})
	return true
}

// processResult handles the finished lookup of a server name, whose result is r. It returns the addresses in r that
// were not returned before. It may add lookups to f.pending, for example of the server names in NS records.
func (f *addressFinder) processResult(r lookupResult) []netip.AddrPort {
	if limit := (*limitError)(nil); errors.As(r.err, &limit) {
		f.limit = limit
	}
	if isLocalFailure(r.err) { // the name may have addresses
		f.localErr = r.err
		return f.findCachedAddresses()
	}
	if errors.Is(r.err, waitgraph.ErrCycle) || errors.Is(r.err, errTooDeep) {
		f.selector.lookupSpecific.Store(true)
	}
	if errors.Is(r.err, errTooManyUnresolvedNames) || isQuestionSpecific(r.err) {
		f.selector.questionSpecific.Store(true)
	}
	if errors.Is(r.err, nameservers.ErrNoHedgeBudget) { // the lookup is repeated once it is needed
		f.budgetSpent = f.isHedging
		f.pending = append(f.pending, r.nameLookupKey)
		return f.findCachedAddresses()
	}
	if r.qtype == dns.TypeNS { // last resort; the answer serves this task only
		var names []string
		for _, rr := range r.rrs {
			if ns, ok := rr.(*dns.NS); ok && len(names) < nameservers.MaxNames && !slices.Contains(f.gluelessNames, dnsname.ToLower(ns.Ns)) {
				names = append(names, dnsname.ToLower(ns.Ns))
			}
		}
		f.gluelessNames = append(f.gluelessNames, names...)
		f.addPendingLookups(names)
		return nil
	}
	if errors.Is(r.err, errGlueArrived) && !f.retried[r.nameLookupKey] { // if the glue does not work, the second lookup ignores it
		f.retried[r.nameLookupKey] = true
		f.pending = append(f.pending, r.nameLookupKey)
		return f.findCachedAddresses()
	}
	addrs := extractAddresses(r.rrs)
	f.countUnresolvedName(r, len(addrs) > 0)
	return f.addAddresses(addrs)
}

// countUnresolvedName updates, after the lookup r of a server name, the number of server names without an address. This
// number limits the lookups for a question (maxUnresolvedNames). Each name counts at most once.
//
// found is true if r has an address. Otherwise the name counts if it does not exist, or if no other lookup of it is
// pending. A lookup that ends in a cycle, or for lack of depth, does not count.
func (f *addressFinder) countUnresolvedName(r lookupResult, found bool) {
	const resolved, unresolved = 1, 2
	switch {
	case found:
		f.nameResults[r.name] = resolved
	case errors.Is(r.err, waitgraph.ErrCycle) || errors.Is(r.err, errTooDeep):
	case f.nameResults[r.name] == 0 && (r.nxdomain || !f.isLookupPending(r.name)):
		f.nameResults[r.name] = unresolved
		f.unresolvedCounter(r.name).Add(1)
	}
}

// unresolvedCounter returns the counter of unresolved names for a server name. Names with glue have their own: they are
// looked up when no server of the zone answers, and must not use up the lookups of other names.
func (f *addressFinder) unresolvedCounter(name string) *atomic.Int32 {
	if len(f.zone.glueAddresses(name)) > 0 {
		return &f.lookup.budget.unresolvedGluedNames
	}
	return &f.lookup.budget.unresolvedNames
}

// isLookupPending reports whether a lookup of the server name is running or waits for its start.
func (f *addressFinder) isLookupPending(name string) bool {
	hasName := func(k nameLookupKey) bool { return k.name == name }
	return slices.ContainsFunc(f.pending, hasName) || slices.ContainsFunc(f.inProgress, hasName)
}

// addAddresses adds server addresses to f.returned, with port 53. It returns the addresses that were not there before.
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

// A nameLookup is a running lookup of one address type of a server name. Several callers may wait for it. When the last
// caller stops waiting, it is canceled.
type nameLookup struct {
	waitgraph.Flight[nameLookupKey]
	lookup *lookup // resolves the name, on a goroutine of its own

	// The result may only be read after the end of the Flight.
	rrs      []dns.RR // must not be changed
	nxdomain bool     // true if the name does not exist
	err      error
}

// hasGlueIn reports whether the delegation z has an address (glue) for the server name and address type of the lookup.
// The lookup is then unnecessary.
func (n *nameLookup) hasGlueIn(z *delegation) bool {
	return slices.ContainsFunc(z.glueAddresses(n.Key.name), func(a netip.Addr) bool {
		return n.Key.qtype == dns.TypeA && a.Is4() || n.Key.qtype == dns.TypeAAAA && a.Is6()
	})
}

// maxNameLookupTime is the time limit of a server name lookup.
const maxNameLookupTime = 10 * time.Second

// errGlueArrived is the error of a server name lookup that was stopped because a referral has glue for the name. The
// caller uses the glue instead of querying the zone of the name.
var errGlueArrived = errors.New("recursor: a referral has glue for the server name")

// errTooDeep is the error of a server name lookup if more than maxLookupDepth lookups would depend on each other.
var errTooDeep = errors.New("recursor: too many lookups of server names depend on each other")

// errTooManyUnresolvedNames is the error of a server name lookup if maxUnresolvedNames server names of the question
// have no address.
var errTooManyUnresolvedNames = errors.New("recursor: too many server names have no address")

// lookUpServerName returns the records that the key k identifies: the addresses of a server name, or the NS records of
// a zone. They come from the cache, or from a lookup that several callers may share. The caller must not change them.
// nxdomain is true if the name does not exist.
//
// n is the node of the wait-for graph that waits for the result, on behalf of the lookup l. hedge is true if the wait
// is a hedge. unresolved counts the names without an address.
func (c *core) lookUpServerName(ctx context.Context, l *lookup, n *waitgraph.Node, k nameLookupKey, hedge bool, unresolved *atomic.Int32) (rrs []dns.RR, nxdomain bool, err error) {
	w := waitgraph.Wait{By: n, Hedge: hedge}
	for try := 0; ; try++ {
		if k.childZone != "" {
			if rrs, ok := c.cache.lookUpGlue(k.question, time.Now()); ok {
				return rrs, false, nil
			}
		} else if rrs, nxdomain, ok := c.cache.lookUpRecords(k.question, time.Now()); ok {
			return rrs, nxdomain, nil
		}
		if unresolved.Load() >= maxUnresolvedNames {
			return nil, false, errTooManyUnresolvedNames
		}
		f, started, err := c.nameLookups.Join(k, w, nil, func(needed bool) (*nameLookup, error) { return c.startNameLookup(l, k, needed) })
		if err == nil {
			err = c.nameLookups.Await(ctx, f, w)
		}
		if err != nil {
			return nil, false, err
		}
		if f.err == nil || started || try == 2 || !isQuestionLimit(f.err) && !errors.Is(f.err, waitgraph.ErrCycle) && !errors.Is(f.err, errTooDeep) && !errors.Is(f.err, nameservers.ErrNoHedgeBudget) {
			return f.rrs, f.nxdomain, f.err
		}
		// The lookup has failed for a reason in the question that started it. This question may succeed.
	}
}

// startNameLookup starts the lookup that the key k identifies, of the addresses of a server name, on a new goroutine.
// Its queries count against the budget of the lookup l.
//
// needed is false if the result is only wanted for a hedge. If it is true, the lookup counts against
// Limits.ServerNames. The error is errTooDeep or a limitError. waitgraph.Group.Join calls this function.
func (c *core) startNameLookup(l *lookup, k nameLookupKey, needed bool) (*nameLookup, error) {
	if l.depth >= maxLookupDepth {
		return nil, errTooDeep
	}
	if needed {
		if err := countWithinLimit(&l.budget.serverNames, "ServerNames", l.budget.limits.ServerNames); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	f := new(nameLookup)
	f.Key, f.Cancel = k, cancel
	f.lookup = &lookup{core: c, budget: l.budget, nameLookup: f, depth: l.depth + 1}
	c.counters.lookups.Add(1)
	c.running.Go(func() {
		stack.GrowTo16KiB()
		ctx, stop := context.WithTimeout(ctx, maxNameLookupTime)
		defer stop()
		defer cancel(nil)
		q := k.question
		var r *chain.Answer
		var err error
		if k.childZone != "" {
			r, err = f.lookup.lookUpGlueAtParent(ctx, q, k.childZone)
		} else {
			r, err = f.lookup.followAliases(ctx, q)
		}
		failed := errors.Is(err, nameservers.ErrNoServers) && !isQuestionSpecific(err) && !isLocalFailure(err)
		switch {
		case k.childZone != "" && err == nil:
			c.cache.addGlue(q, r.Answer, time.Now())
		case k.childZone != "" && failed:
			c.cache.addGlue(q, nil, time.Now())
		case failed:
			c.cache.addFailure(q, time.Now())
		}
		c.nameLookups.Finish(f, func(bool) {
			if f.err = err; err == nil {
				f.rrs, f.nxdomain = r.Answer, r.Rcode == dns.RcodeNameError
			}
		})
	})
	return f, nil
}

// lookUpGlueAtParent asks the servers of the parent zone for the address of a server name within the zone child,
// because the referral lacked this glue. q is the question. The records are used only as addresses of servers, never as
// an answer.
//
// It follows aliases within child, although a server name must not be an alias (RFC 2181 §10.3). The error is
// errGlueArrived if the response is a referral with the glue, which is then cached.
func (l *lookup) lookUpGlueAtParent(ctx context.Context, q question, child string) (*chain.Answer, error) {
	z, err := l.findClosestDelegation(ctx, question{name: dnsname.Parent(child), qtype: q.qtype})
	if err != nil {
		return nil, err
	}
	for range maxGlueAliases + 1 {
		r, err := l.queryZone(ctx, z, q, true)
		switch {
		case err != nil:
			return nil, err
		case r.kind == kindReferral && r.referral.zone == child && l.nameLookup.hasGlueIn(r.referral):
			l.core.cache.addDelegation(r.referral, time.Now())
			return nil, errGlueArrived
		case r.kind != kindAnswer:
			return nil, nameservers.ErrNoServers
		case r.aliasTarget == "":
			return &chain.Answer{Rcode: r.Rcode, Answer: r.Answer}, nil
		case !dnsname.IsWithin(r.aliasTarget, child):
			return nil, nameservers.ErrNoServers
		}
		q.name = r.aliasTarget
	}
	return nil, nameservers.ErrNoServers
}

// maxGlueAliases is the number of aliases that lookUpGlueAtParent follows.
const maxGlueAliases = 2
