package recursor

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

// maxNameLookupTime is the maximum time of a server name lookup.
const maxNameLookupTime = 10 * time.Second

// errCycle means that a server name lookup would wait for itself.
var errCycle = errors.New("recursor: looking up a server's name needs itself")

// errGlueArrived ends a server name lookup before it asks the name's own zone, because a referral has had glue for it.
var errGlueArrived = errors.New("recursor: there is glue for the server's name")

// errTooDeep means that server names depend on other server names too deeply.
var errTooDeep = errors.New("recursor: too many names of servers are served by servers whose names have to be looked up")

// errTooManyUnresolvedNames means that too many server names of the question have no address.
var errTooManyUnresolvedNames = errors.New("recursor: too many names of servers have no address")

// A questionSpecificError is the failure of a zone for a reason in the question that asked. It says nothing of the zone for
// other questions.
type questionSpecificError struct{ error }

func (e *questionSpecificError) Unwrap() error { return e.error }

// isQuestionSpecific reports whether an error is a queryLocalError.
func isQuestionSpecific(err error) bool { return errors.As(err, new(*questionSpecificError)) }

// isLocalFailure reports whether no query could leave this machine, as without a network or descriptors. This error is not
// cached.
func isLocalFailure(err error) bool { return errors.As(err, new(*nameservers.LocalError)) }

// A lookupGroup shares running server name lookups and zone queries between callers (single flight). It refuses a wait
// that would close a cycle of waiting lookups.
type lookupGroup struct {
	mu          sync.Mutex // guards the fields below, and the graph of waitNode
	lookups     map[cacheKey]*nameLookup
	zoneQueries map[zoneQueryKey]*zoneQuery
}

// A waitNode is a node of the graph of waiting lookups: a nameLookup or a zoneQuery. lookupGroup.mu guards it. A nil node
// is a client's question, for which nothing waits.
//
// A lookup may wait as a hedge: it would not need the result if a server were not late. The hedge budget, and not the
// question, pays for lookups that are only needed by hedges.
type waitNode struct {
	waitsFor map[*waitNode]waitCount
	needed   bool // a client's question waits for it, directly or not, and not as a hedge
}

// waitCount counts the waits of one node for another.
type waitCount struct{ all, hedges int }

func (n *waitNode) addWait(o *waitNode, hedge bool) {
	if n == nil {
		o.markNeeded()
		return
	}
	if n.waitsFor == nil {
		n.waitsFor = make(map[*waitNode]waitCount)
	}
	w := n.waitsFor[o]
	w.all++
	if hedge {
		w.hedges++
	} else if n.needed {
		o.markNeeded()
	}
	n.waitsFor[o] = w
}

func (n *waitNode) removeWait(o *waitNode) {
	if n == nil {
		return
	}
	w := n.waitsFor[o]
	if w.all--; w.all <= 0 {
		delete(n.waitsFor, o)
		return
	}
	w.hedges = min(w.hedges, w.all)
	n.waitsFor[o] = w
}

// markNeeded records that a client's question needs n, and all that n waits for.
func (n *waitNode) markNeeded() {
	if n.needed {
		return
	}
	n.needed = true
	for o, w := range n.waitsFor {
		if w.all > w.hedges {
			o.markNeeded()
		}
	}
}

// promoteHedgedWaits turns the hedged waits of n into necessary ones.
func (n *waitNode) promoteHedgedWaits() {
	for o, w := range n.waitsFor {
		n.waitsFor[o] = waitCount{all: w.all}
		if n.needed {
			o.markNeeded()
		}
	}
}

// waitsForNode reports whether n is o or waits for it, directly or not. seen has the visited nodes.
func (n *waitNode) waitsForNode(o *waitNode, seen map[*waitNode]bool) bool {
	if n == o {
		return true
	}
	seen[n] = true
	for next := range n.waitsFor {
		if !seen[next] && next.waitsForNode(o, seen) {
			return true
		}
	}
	return false
}

// A nameLookup is a running lookup of a server's address. It is canceled when its last waiter leaves.
type nameLookup struct {
	waitNode
	key    cacheKey
	lookup *lookup // of its own goroutine
	done   chan struct{}
	cancel context.CancelCauseFunc

	waiters int // guarded by lookupGroup.mu

	rrs      []dns.RR // must not be changed
	nxdomain bool     // the name does not exist
	err      error
}

// hasGlueIn reports whether a referral has glue that makes the lookup unnecessary.
func (f *nameLookup) hasGlueIn(z *delegation) bool {
	return slices.ContainsFunc(z.glueAddresses(f.key.name), func(a netip.Addr) bool {
		return f.key.qtype == dns.TypeA && a.Is4() || f.key.qtype == dns.TypeAAAA && a.Is6()
	})
}

// lookUpServerName returns the records that answer q, from the cache or a shared lookup. nxdomain means that the name does
// not exist. n is the waiting node of l. The records must not be changed.
func (c *core) lookUpServerName(ctx context.Context, l *lookup, n *waitNode, q question, hedge bool) (rrs []dns.RR, gone bool, err error) {
	for try := 0; ; try++ {
		if rrs, gone, ok := c.cache.lookUpRecords(q, time.Now()); ok {
			return rrs, gone, nil
		}
		if l.budget.unresolvedNames.Load() >= maxUnresolvedNames {
			return nil, false, errTooManyUnresolvedNames
		}
		f, mine, err := c.joinNameLookup(l, n, q, hedge)
		if err != nil {
			return nil, false, err
		}
		select {
		case <-f.done:
			c.leaveNameLookup(n, f, nil)
		case <-ctx.Done():
			c.leaveNameLookup(n, f, context.Cause(ctx))
			return nil, false, context.Cause(ctx)
		}
		var limit *limitError
		if f.err == nil || mine || try == 2 || !errors.Is(f.err, errCycle) && !errors.As(f.err, &limit) && !isQuestionSpecific(f.err) && !errors.Is(f.err, errTooDeep) && !errors.Is(f.err, nameservers.ErrNoHedgeBudget) {
			return f.rrs, f.nxdomain, f.err
		}
		// It failed for a reason of the question that started it. This question may succeed.
	}
}

// joinNameLookup makes n, a node of l, wait for the lookup of q. mine reports whether l has started it.
func (c *core) joinNameLookup(l *lookup, n *waitNode, q question, hedge bool) (f *nameLookup, mine bool, err error) {
	k := cacheKeyOf(q)
	fs := &c.lookups
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f = fs.lookups[k]
	if f == nil {
		if l.depth >= maxLookupDepth {
			return nil, false, errTooDeep
		}
		if !hedge && (n == nil || n.needed) {
			if err := countWithinLimit(&l.budget.serverNames, "ServerNames", l.budget.limits.ServerNames); err != nil {
				return nil, false, err
			}
		}
		f, mine = c.startNameLookup(l, k), true
	} else if n != nil && f.waitsForNode(n, make(map[*waitNode]bool)) {
		return nil, false, errCycle
	}
	f.waiters++
	n.addWait(&f.waitNode, hedge)
	return f, mine, nil
}

// startNameLookup starts a lookup. The caller holds the lock.
func (c *core) startNameLookup(l *lookup, k cacheKey) *nameLookup {
	ctx, cancel := context.WithCancelCause(c.ctx)
	f := &nameLookup{key: k, done: make(chan struct{}), cancel: cancel}
	f.lookup = &lookup{core: c, budget: l.budget, nameLookup: f, depth: l.depth + 1}
	if c.lookups.lookups == nil {
		c.lookups.lookups = make(map[cacheKey]*nameLookup)
	}
	c.lookups.lookups[k] = f
	c.counters.lookups.Add(1)
	c.running.Go(func() {
		stack.GrowTo16KiB()
		ctx, stop := context.WithTimeout(ctx, maxNameLookupTime)
		defer stop()
		defer cancel(nil)
		q := c.serverQuestion(k.name, k.qtype)
		r, err := f.lookup.followAliases(ctx, q)
		if err == nil {
			f.rrs, f.nxdomain = r.answer, r.rcode == dns.RcodeNameError
		}
		f.err = err
		if errors.Is(err, nameservers.ErrNoServers) && !isQuestionSpecific(err) && !isLocalFailure(err) {
			c.cache.addFailure(q, time.Now())
		}
		c.lookups.mu.Lock()
		if c.lookups.lookups[k] == f {
			delete(c.lookups.lookups, k)
		}
		c.lookups.mu.Unlock()
		close(f.done)
	})
	return f
}

// isOnlyHedged reports whether only hedges wait for n.
func (c *core) isOnlyHedged(n *waitNode) bool {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	return !n.needed
}

// markNeeded turns the hedged waits of n into necessary ones.
func (c *core) promoteLookups(n *waitNode) {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	n.promoteHedgedWaits()
}

// leaveNameLookup ends n's wait for f. The last waiter cancels the lookup with the cause why.
func (c *core) leaveNameLookup(n *waitNode, f *nameLookup, why error) {
	fs := &c.lookups
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n.removeWait(&f.waitNode)
	if f.waiters--; f.waiters == 0 && why != nil {
		if fs.lookups[f.key] == f {
			delete(fs.lookups, f.key)
		}
		f.cancel(why)
	}
}

// extractAddresses returns the addresses in A and AAAA records.
func extractAddresses(rrs []dns.RR) []netip.Addr {
	var addrs []netip.Addr
	for _, rr := range rrs {
		if a, ok := recordAddress(rr); ok && len(addrs) < nameservers.MaxAddrs {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// A zoneQueryKey identifies queries to a zone's servers with the same answer.
type zoneQueryKey struct {
	zone string
	question
	fullName bool // the question is not minimised
}

// A zoneQuery is a running query to a zone's servers. Callers that need the same answer wait for the leader, which sends
// it. So a forger has one query to answer (RFC 5452 §5), and many clients cost a zone and its parents as much as one.
type zoneQuery struct {
	waitNode
	key  zoneQueryKey
	zone *chain.Zone // of the leader
	done chan struct{}

	waiters    int       // without the leader; guarded by lookupGroup.mu
	awaitUntil time.Time // the latest lookup.awaitUntil of all callers; guarded by lookupGroup.mu

	// Written before done is closed.
	answer         zoneAnswer
	leaderSpecific bool // err is specific to the leader; others may succeed
	err            error
}

// A zoneAnswer is the answer of a zone's servers.
type zoneAnswer struct {
	*parsedResponse
	cnameHint *parsedResponse // records of the alias target in the same response; nil: none may be believed
}

// clone returns a copy without shared mutable data.
func (s zoneAnswer) clone() zoneAnswer {
	return zoneAnswer{s.parsedResponse.clone(), s.cnameHint.clone()}
}

func (r *parsedResponse) clone() *parsedResponse {
	if r == nil {
		return nil
	}
	c := *r
	c.answer, c.authority = copyWithAge(r.answer, 0), copyWithAge(r.authority, 0)
	return &c
}

// queryZone sends q to the servers of a zone, or waits for a running query.
func (l *lookup) queryZone(ctx context.Context, z *delegation, q question, whole bool) (zoneAnswer, error) {
	c := l.core
	for alone := 0; ; {
		s, leads := c.joinZoneQuery(l, z, zoneQueryKey{z.zone, q, whole})
		if s == nil { // the leader waits for this lookup
			return l.queryServers(ctx, z, q, whole, &zoneQuery{awaitUntil: l.awaitUntil}, l.waitNode())
		}
		if leads {
			return l.runZoneQuery(ctx, z, s)
		}
		select {
		case <-s.done:
			c.leaveZoneQuery(l, s)
		case <-ctx.Done():
			c.leaveZoneQuery(l, s)
			return zoneAnswer{}, context.Cause(ctx)
		}
		if s.err != nil && s.leaderSpecific || s.zone.HasMovedFor(z.chain) {
			continue
		}
		if s.err == nil && slices.Contains(l.avoid, s.answer.server) && alone < maxAvoidedAnswers { // the leader did not avoid this server
			alone++
			continue
		}
		if s.err != nil {
			return zoneAnswer{}, s.err
		}
		return s.answer.clone(), nil
	}
}

// maxAvoidedAnswers is the number of shared answers of avoided servers that a lookup rejects.
const maxAvoidedAnswers = 4

// zoneQueryDeadline returns until when a query awaits slow servers. A waiter with a later deadline extends it.
func (c *core) zoneQueryDeadline(s *zoneQuery) time.Time {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	return s.awaitUntil
}

// runZoneQuery sends the query for all that wait.
func (l *lookup) runZoneQuery(ctx context.Context, z *delegation, s *zoneQuery) (r zoneAnswer, err error) {
	err = errTimeout // if this function does not return
	defer func() { l.core.finishZoneQuery(l, s, r, err, ctx.Err() != nil || err == errTimeout) }()
	r, err = l.queryServers(ctx, z, s.key.question, s.key.fullName, s, &s.waitNode)
	return r, err
}

// joinZoneQuery returns the running query with a key, and whether l is its leader. It returns nil if the leader waits for
// l.
func (c *core) joinZoneQuery(l *lookup, z *delegation, k zoneQueryKey) (s *zoneQuery, leads bool) {
	fs := &c.lookups
	fs.mu.Lock()
	defer fs.mu.Unlock()
	s = fs.zoneQueries[k]
	switch {
	case s == nil, s.zone.HasMovedFor(z.chain):
		s, leads = &zoneQuery{key: k, zone: z.chain, done: make(chan struct{})}, true
		if fs.zoneQueries == nil {
			fs.zoneQueries = make(map[zoneQueryKey]*zoneQuery)
		}
		fs.zoneQueries[k] = s
	case l.nameLookup != nil && s.waitsForNode(&l.nameLookup.waitNode, make(map[*waitNode]bool)):
		return nil, false
	default:
		s.waiters++
	}
	if l.awaitUntil.After(s.awaitUntil) {
		s.awaitUntil = l.awaitUntil
	}
	l.waitNode().addWait(&s.waitNode, false)
	return s, leads
}

// leaveZoneQuery ends l's wait for s.
func (c *core) leaveZoneQuery(l *lookup, s *zoneQuery) {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	s.waiters--
	l.waitNode().removeWait(&s.waitNode)
}

// finishZoneQuery publishes the leader's result. left reports that the leader was canceled.
func (c *core) finishZoneQuery(l *lookup, s *zoneQuery, r zoneAnswer, err error, left bool) {
	fs := &c.lookups
	fs.mu.Lock()
	if fs.zoneQueries[s.key] == s {
		delete(fs.zoneQueries, s.key)
	}
	l.waitNode().removeWait(&s.waitNode)
	shared := s.waiters > 0
	fs.mu.Unlock()
	if err == nil && shared {
		s.answer = r.clone() // the caller may change its response
	}
	s.err = err
	s.leaderSpecific = s.leaderSpecific || left || errors.As(err, new(*limitError)) || errors.Is(err, nameservers.ErrNoHedgeBudget)
	close(s.done)
}

// readCNAMEHint returns the records of an alias target in the response with the alias, if the target is in the same zone.
// They are used if no server answers for the target. It returns nil if there are none, or too many to keep.
func (l *lookup) readCNAMEHint(m *dns.Msg, z *delegation, q question, r *parsedResponse) *parsedResponse {
	if r.aliasTarget == "" || !dnsname.IsWithin(r.aliasTarget, z.zone) || l.core.stubZone(r.aliasTarget) != l.core.stubZone(z.zone) {
		return nil
	}
	q.name = r.aliasTarget
	h := readResponse(m, z, q, true, time.Now())
	h.zone, h.server = r.zone, r.server
	if l.core.wantsSignatures() {
		h.ttl = min(h.ttl, limitTTLsBySignatures(time.Now(), chooseLongest, h.answer, h.authority))
	}
	if h.kind != kindAnswer || len(h.answer) == 0 || estimateRecordMemory(h.answer, h.authority) > uncountedBytes {
		return nil
	}
	return h
}
