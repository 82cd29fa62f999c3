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

// maxNameLookupTime is the time limit of a server name lookup.
const maxNameLookupTime = 10 * time.Second

// errCycle means that a server name lookup would wait for itself.
var errCycle = errors.New("recursor: the lookup of a server name depends on itself")

// errGlueArrived ends a server name lookup before it queries the zone of the name, because the referral to that zone
// has glue for the name.
var errGlueArrived = errors.New("recursor: a referral has glue for the server name")

// errTooDeep means that more than maxLookupDepth server name lookups depend on each other.
var errTooDeep = errors.New("recursor: too many lookups of server names depend on each other")

// errTooManyUnresolvedNames means that maxUnresolvedNames server names of a question have no address.
var errTooManyUnresolvedNames = errors.New("recursor: too many server names have no address")

// A questionSpecificError is the failure to reach a zone because of the limits of one question. Other questions may
// reach the zone.
type questionSpecificError struct{ error }

func (e *questionSpecificError) Unwrap() error { return e.error }

// isQuestionSpecific reports whether an error is a questionSpecificError.
func isQuestionSpecific(err error) bool { return errors.As(err, new(*questionSpecificError)) }

// isLocalFailure reports whether an error is a nameservers.LocalError: no query could leave this machine. This error
// is not cached.
func isLocalFailure(err error) bool { return errors.As(err, new(*nameservers.LocalError)) }

// A lookupGroup shares running server name lookups and zone queries between callers (single flight). It refuses a
// wait that would close a cycle of lookups that wait for each other.
type lookupGroup struct {
	mu          sync.Mutex // guards the fields below, and the graph of waitNode
	lookups     map[cacheKey]*nameLookup
	zoneQueries map[zoneQueryKey]*zoneQuery
}

// A waitNode is a node in the graph of lookups that wait for each other: a nameLookup or a zoneQuery. A nil node is
// a client's question, for which no lookup waits. lookupGroup.mu guards it.
//
// A wait may be a hedge: the result is of use only because a server is late. The hedge budget pays for lookups that
// only hedges wait for. The budget of the question pays for all other lookups.
type waitNode struct {
	waitsFor map[*waitNode]waitCount
	needed   bool // a client's question waits for it, directly or through other nodes, and not as a hedge
}

// waitCount counts the waits of one node for another: all waits, and the hedges among them.
type waitCount struct{ all, hedges int }

// addWait adds a wait of n for o.
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

// removeWait removes a wait of n for o.
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

// markNeeded records that a client's question needs n, and all nodes that n waits for other than as a hedge.
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

// promoteHedgedWaits records that n needs all nodes that it waits for. Its waits are no longer hedges.
func (n *waitNode) promoteHedgedWaits() {
	for o, w := range n.waitsFor {
		n.waitsFor[o] = waitCount{all: w.all}
		if n.needed {
			o.markNeeded()
		}
	}
}

// waitsForNode reports whether n is o, or waits for o directly or through other nodes. visited has the nodes already
// visited.
func (n *waitNode) waitsForNode(o *waitNode, visited map[*waitNode]bool) bool {
	if n == o {
		return true
	}
	visited[n] = true
	for next := range n.waitsFor {
		if !visited[next] && next.waitsForNode(o, visited) {
			return true
		}
	}
	return false
}

// A nameLookup is a running lookup of a server name, for one address type. It is canceled when no caller waits for
// it any more.
type nameLookup struct {
	waitNode
	key    cacheKey
	lookup *lookup // resolves the name on a goroutine of its own
	done   chan struct{}
	cancel context.CancelCauseFunc

	waiters int // guarded by lookupGroup.mu

	rrs      []dns.RR // must not be changed
	nxdomain bool     // the name does not exist
	err      error
}

// hasGlueIn reports whether a delegation has glue that makes the lookup unnecessary.
func (f *nameLookup) hasGlueIn(z *delegation) bool {
	return slices.ContainsFunc(z.glueAddresses(f.key.name), func(a netip.Addr) bool {
		return f.key.qtype == dns.TypeA && a.Is4() || f.key.qtype == dns.TypeAAAA && a.Is6()
	})
}

// lookUpServerName returns the records that answer q, from the cache or a shared lookup. nxdomain means that the
// name does not exist. The records must not be changed.
//
// n is the node of l that waits for the lookup. hedge means that n waits as a hedge.
func (c *core) lookUpServerName(ctx context.Context, l *lookup, n *waitNode, q question, hedge bool) (rrs []dns.RR, nxdomain bool, err error) {
	for try := 0; ; try++ {
		if rrs, nxdomain, ok := c.cache.lookUpRecords(q, time.Now()); ok {
			return rrs, nxdomain, nil
		}
		if l.budget.unresolvedNames.Load() >= maxUnresolvedNames {
			return nil, false, errTooManyUnresolvedNames
		}
		f, started, err := c.joinNameLookup(l, n, q, hedge)
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
		if f.err == nil || started || try == 2 || !errors.Is(f.err, errCycle) && !errors.As(f.err, &limit) && !isQuestionSpecific(f.err) && !errors.Is(f.err, errTooDeep) && !errors.Is(f.err, nameservers.ErrNoHedgeBudget) {
			return f.rrs, f.nxdomain, f.err
		}
		// The lookup has failed for a reason in the question that started it. This question may succeed.
	}
}

// joinNameLookup makes n, a node of l, wait for the running lookup of q. If there is none, it starts one, and
// started is true. It fails with errCycle, errTooDeep or a limitError.
func (c *core) joinNameLookup(l *lookup, n *waitNode, q question, hedge bool) (f *nameLookup, started bool, err error) {
	k := cacheKeyOf(q)
	group := &c.lookups
	group.mu.Lock()
	defer group.mu.Unlock()
	f = group.lookups[k]
	if f == nil {
		if l.depth >= maxLookupDepth {
			return nil, false, errTooDeep
		}
		if !hedge && (n == nil || n.needed) {
			if err := countWithinLimit(&l.budget.serverNames, "ServerNames", l.budget.limits.ServerNames); err != nil {
				return nil, false, err
			}
		}
		f, started = c.startNameLookup(l, k), true
	} else if n != nil && f.waitsForNode(n, make(map[*waitNode]bool)) {
		return nil, false, errCycle
	}
	f.waiters++
	n.addWait(&f.waitNode, hedge)
	return f, started, nil
}

// startNameLookup starts a lookup on the budget of l. The caller holds lookupGroup.mu.
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

// isOnlyHedged reports whether only hedges wait for n, directly or through other nodes.
func (c *core) isOnlyHedged(n *waitNode) bool {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	return !n.needed
}

// promoteLookups records that n needs the lookups that it waits for. They are no longer hedges.
func (c *core) promoteLookups(n *waitNode) {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	n.promoteHedgedWaits()
}

// leaveNameLookup ends the wait of n for f. If no other caller waits and cause is not nil, it cancels the lookup
// with cause.
func (c *core) leaveNameLookup(n *waitNode, f *nameLookup, cause error) {
	group := &c.lookups
	group.mu.Lock()
	defer group.mu.Unlock()
	n.removeWait(&f.waitNode)
	if f.waiters--; f.waiters == 0 && cause != nil {
		if group.lookups[f.key] == f {
			delete(group.lookups, f.key)
		}
		f.cancel(cause)
	}
}

// extractAddresses returns the addresses in A and AAAA records, at most nameservers.MaxAddrs.
func extractAddresses(rrs []dns.RR) []netip.Addr {
	var addrs []netip.Addr
	for _, rr := range rrs {
		if a, ok := recordAddress(rr); ok && len(addrs) < nameservers.MaxAddrs {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// A zoneQueryKey identifies the zone queries that have the same answer.
type zoneQueryKey struct {
	zone string
	question
	fullName bool // false: the question is minimised
}

// A zoneQuery is a running question to the servers of a zone, which callers share (single flight). The first caller
// is the leader: it sends the queries, and the other callers wait.
//
// So an attacker can forge the response to one query only (RFC 5452 §5), and many clients cause no more queries than
// one client.
type zoneQuery struct {
	waitNode
	key  zoneQueryKey
	zone *chain.Zone // zone as known to the leader
	done chan struct{}

	waiters    int       // callers that wait, without the leader; guarded by lookupGroup.mu
	awaitUntil time.Time // latest lookup.awaitUntil of all callers; guarded by lookupGroup.mu

	// Written before done is closed.
	answer         zoneAnswer
	leaderSpecific bool // err concerns only the leader; the other callers try again
	err            error
}

// A zoneAnswer is the answer of a zone's servers.
type zoneAnswer struct {
	*parsedResponse
	cnameHint *parsedResponse // records of the alias target in the same response, see readCNAMEHint; may be nil
}

// clone returns a copy whose records may be changed.
func (s zoneAnswer) clone() zoneAnswer {
	return zoneAnswer{s.parsedResponse.clone(), s.cnameHint.clone()}
}

// clone returns a copy whose records may be changed, or nil for nil.
func (r *parsedResponse) clone() *parsedResponse {
	if r == nil {
		return nil
	}
	c := *r
	c.answer, c.authority = copyWithAge(r.answer, 0), copyWithAge(r.authority, 0)
	return &c
}

// queryZone returns the answer of a zone's servers to q. If the same question is running, it waits for that answer.
// full is false for a minimised question.
func (l *lookup) queryZone(ctx context.Context, z *delegation, q question, full bool) (zoneAnswer, error) {
	c := l.core
	for rejected := 0; ; {
		s, leads := c.joinZoneQuery(l, z, zoneQueryKey{z.zone, q, full})
		if s == nil { // the leader waits for this lookup
			return l.queryServers(ctx, z, q, full, &zoneQuery{awaitUntil: l.awaitUntil}, l.waitNode())
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
		if s.err == nil && slices.Contains(l.avoid, s.answer.server) && rejected < maxAvoidedAnswers { // the leader has not avoided this server
			rejected++
			continue
		}
		if s.err != nil {
			return zoneAnswer{}, s.err
		}
		return s.answer.clone(), nil
	}
}

// maxAvoidedAnswers is the number of shared answers that a lookup rejects because their server is in lookup.avoid.
const maxAvoidedAnswers = 4

// zoneQueryDeadline returns the time until which s waits for slow servers. A caller with a later deadline extends
// it.
func (c *core) zoneQueryDeadline(s *zoneQuery) time.Time {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	return s.awaitUntil
}

// runZoneQuery sends the queries of s as its leader, and passes the result to the waiting callers.
func (l *lookup) runZoneQuery(ctx context.Context, z *delegation, s *zoneQuery) (r zoneAnswer, err error) {
	err = errTimeout // remains if queryServers panics
	defer func() { l.core.finishZoneQuery(l, s, r, err, ctx.Err() != nil || err == errTimeout) }()
	r, err = l.queryServers(ctx, z, s.key.question, s.key.fullName, s, &s.waitNode)
	return r, err
}

// joinZoneQuery returns the running zoneQuery with a key, or a new one whose leader is l. leads reports whether l is
// the leader. It returns nil if l cannot wait, because the leader waits for l.
func (c *core) joinZoneQuery(l *lookup, z *delegation, k zoneQueryKey) (s *zoneQuery, leads bool) {
	group := &c.lookups
	group.mu.Lock()
	defer group.mu.Unlock()
	s = group.zoneQueries[k]
	switch {
	case s == nil, s.zone.HasMovedFor(z.chain):
		s, leads = &zoneQuery{key: k, zone: z.chain, done: make(chan struct{})}, true
		if group.zoneQueries == nil {
			group.zoneQueries = make(map[zoneQueryKey]*zoneQuery)
		}
		group.zoneQueries[k] = s
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

// leaveZoneQuery ends the wait of l for s.
func (c *core) leaveZoneQuery(l *lookup, s *zoneQuery) {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	s.waiters--
	l.waitNode().removeWait(&s.waitNode)
}

// finishZoneQuery ends s and passes the result of its leader l to the waiting callers. If the leader was canceled,
// the callers try again.
func (c *core) finishZoneQuery(l *lookup, s *zoneQuery, r zoneAnswer, err error, canceled bool) {
	group := &c.lookups
	group.mu.Lock()
	if group.zoneQueries[s.key] == s {
		delete(group.zoneQueries, s.key)
	}
	l.waitNode().removeWait(&s.waitNode)
	shared := s.waiters > 0
	group.mu.Unlock()
	if err == nil && shared {
		s.answer = r.clone() // the caller may change its response
	}
	s.err = err
	s.leaderSpecific = s.leaderSpecific || canceled || errors.As(err, new(*limitError)) || errors.Is(err, nameservers.ErrNoHedgeBudget)
	close(s.done)
}

// readCNAMEHint returns the records of the alias target in m, the response with the alias. They are used if no
// server answers for the target. It returns nil if there are none, if they are too large to keep, or if the target
// is outside of the zone.
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
