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

// errCycle is the error of a server name lookup that would wait for itself.
var errCycle = errors.New("recursor: the lookup of a server name depends on itself")

// errGlueArrived is the error of a server name lookup that was stopped because a referral has glue for the name. The
// caller uses the glue instead of querying the zone of the name.
var errGlueArrived = errors.New("recursor: a referral has glue for the server name")

// errTooDeep is the error of a server name lookup if more than maxLookupDepth lookups would depend on each other.
var errTooDeep = errors.New("recursor: too many lookups of server names depend on each other")

// errTooManyUnresolvedNames is the error of a server name lookup if maxUnresolvedNames server names of the question
// have no address.
var errTooManyUnresolvedNames = errors.New("recursor: too many server names have no address")

// A questionSpecificError is the error of a question that has failed to reach a zone because of its own limits. It must
// not be cached, because other questions may reach the zone.
type questionSpecificError struct{ error }

func (e *questionSpecificError) Unwrap() error { return e.error }

// isQuestionSpecific reports whether err is or wraps a questionSpecificError.
func isQuestionSpecific(err error) bool { return errors.As(err, new(*questionSpecificError)) }

// isLocalFailure reports whether err is or wraps a nameservers.LocalError: no query could leave this machine. This
// error must not be cached.
func isLocalFailure(err error) bool { return errors.As(err, new(*nameservers.LocalError)) }

// A lookupGroup lets callers share running server name lookups and zone queries, so that each runs only once at a time
// (single flight). It prevents lookups from waiting for each other in a cycle. It is safe for concurrent use.
type lookupGroup struct {
	mu          sync.Mutex // guards the following fields, and the fields of each waitNode
	lookups     map[cacheKey]*nameLookup
	zoneQueries map[zoneQueryKey]*zoneQuery
}

// A waitNode is a node in the graph of waiting lookups. It belongs to a nameLookup or a zoneQuery, and its edges lead
// to the nodes for whose results it waits. lookupGroup.mu guards it.
//
// The graph shows whether a new wait would close a cycle, and whether a client's question needs a result. A nil
// *waitNode stands for a client's question.
//
// A wait is a hedge if the result is useful only because a server is late. If only hedges wait for a lookup, the hedge
// budget pays for it. Otherwise the budget of the question does.
type waitNode struct {
	waitsFor map[*waitNode]waitCount // number of waits of this node, by the node that it waits for
	isNeeded bool                    // a client's question waits for the node, directly or through other nodes, and not only as a hedge
}

// waitCount holds the number of waits of one node for another (all), and how many of them are hedges (hedges).
type waitCount struct{ all, hedges int }

// addWait records that n waits for the result of o. hedge is true if the wait is a hedge. n is nil if a client's
// question waits.
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
	} else if n.isNeeded {
		o.markNeeded()
	}
	n.waitsFor[o] = w
}

// removeWait records that n no longer waits for the result of o. It undoes one call of addWait. n is nil if a client's
// question has waited.
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

// markNeeded records that a client's question needs the result of n. The question then also needs each result for which
// n waits, unless the wait is a hedge.
func (n *waitNode) markNeeded() {
	if n.isNeeded {
		return
	}
	n.isNeeded = true
	for o, w := range n.waitsFor {
		if w.all > w.hedges {
			o.markNeeded()
		}
	}
}

// promoteHedgedWaits implements promoteLookups. The caller must hold lookupGroup.mu.
func (n *waitNode) promoteHedgedWaits() {
	for o, w := range n.waitsFor {
		n.waitsFor[o] = waitCount{all: w.all}
		if n.isNeeded {
			o.markNeeded()
		}
	}
}

// waitsForNode reports whether n is o, or waits for o directly or through other nodes. If it is true, o must not wait
// for n, because that would close a cycle.
//
// visited holds the nodes that were already visited, and must not be nil.
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

// A nameLookup is a running lookup of a server name, for one address type. Several callers may wait for it. When the
// last caller stops waiting, it is canceled.
type nameLookup struct {
	waitNode
	key    cacheKey
	lookup *lookup       // resolves the name, on a goroutine of its own
	done   chan struct{} // closed when the results are set
	cancel context.CancelCauseFunc

	waiters int // number of callers that wait; guarded by lookupGroup.mu

	rrs      []dns.RR // result; must not be changed
	nxdomain bool     // true if the name does not exist
	err      error
}

// hasGlueIn reports whether the delegation z has glue for the name and address type, so that the lookup is unnecessary.
func (f *nameLookup) hasGlueIn(z *delegation) bool {
	return slices.ContainsFunc(z.glueAddresses(f.key.name), func(a netip.Addr) bool {
		return f.key.qtype == dns.TypeA && a.Is4() || f.key.qtype == dns.TypeAAAA && a.Is6()
	})
}

// lookUpServerName returns the records that answer q, a question for a server name. They come from the cache, or from a
// lookup that several callers may share. The records must not be changed. nxdomain is true if the name does not exist.
//
// n is the node that waits for the result, on behalf of the lookup l. hedge is true if the wait is a hedge.
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

// joinNameLookup returns the running lookup of the server name in q, and records that n, a node of the lookup l, waits
// for it. If none is running, it starts one, and started is true. hedge is true if the wait is a hedge.
//
// The error is errCycle, errTooDeep or a limitError. If there is no error, the caller must call leaveNameLookup.
func (c *core) joinNameLookup(l *lookup, n *waitNode, q question, hedge bool) (f *nameLookup, started bool, err error) {
	k := answerCacheKey(q)
	group := &c.lookups
	group.mu.Lock()
	defer group.mu.Unlock()
	f = group.lookups[k]
	if f == nil {
		if l.depth >= maxLookupDepth {
			return nil, false, errTooDeep
		}
		if !hedge && (n == nil || n.isNeeded) {
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

// startNameLookup starts a lookup with the key k on a new goroutine. The budget of l pays for its queries. The caller
// must hold lookupGroup.mu.
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
		q := c.newInternalQuestion(k.name, k.qtype)
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

// hasOnlyHedgedWaits reports whether no client's question needs the result of n yet, because only hedges wait for n, directly
// or through other nodes. n must not be nil.
func (c *core) hasOnlyHedgedWaits(n *waitNode) bool {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	return !n.isNeeded
}

// promoteLookups records that the lookups for which n waits as a hedge are needed now. The waits are no longer hedges.
// n must not be nil.
func (c *core) promoteLookups(n *waitNode) {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	n.promoteHedgedWaits()
}

// leaveNameLookup records that n no longer waits for the lookup f. If cause is not nil and no other caller waits, it
// cancels the lookup with this cause.
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

// extractAddresses returns the addresses in A and AAAA records of class IN, but at most nameservers.MaxAddrs.
func extractAddresses(rrs []dns.RR) []netip.Addr {
	var addrs []netip.Addr
	for _, rr := range rrs {
		if a, ok := recordAddress(rr); ok && len(addrs) < nameservers.MaxAddrs {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// A zoneQueryKey identifies a zoneQuery. Zone queries with the same key have the same answer.
type zoneQueryKey struct {
	zone string
	question
	fullName bool // false if the question is minimised
}

// A zoneQuery is a running question to the servers of a zone, which several callers share (single flight). The first
// caller is the leader: it sends the queries, and the other callers wait for the answer.
//
// An attacker can therefore forge the response to only one query at a time (RFC 5452 §5). Many clients cause no more
// queries than one client.
type zoneQuery struct {
	waitNode
	key  zoneQueryKey
	zone *chain.Zone   // the zone, through the referral that the leader has used
	done chan struct{} // closed when the result is set

	waiters    int       // number of callers that wait, without the leader; guarded by lookupGroup.mu
	awaitUntil time.Time // latest lookup.awaitUntil of all callers; guarded by lookupGroup.mu

	// answer, leaderSpecific and err are the result. They may only be read after done is closed.
	answer         zoneAnswer
	leaderSpecific bool // err concerns only the leader, so that the other callers must try again
	err            error
}

// A zoneAnswer is the answer of a zone's servers to a question.
type zoneAnswer struct {
	*parsedResponse
	cnameHint *parsedResponse // records of the alias target in the same response, see readCNAMEHint; nil if there are none
}

// clone returns a copy of the answer whose records the caller may change.
func (s zoneAnswer) clone() zoneAnswer {
	return zoneAnswer{s.parsedResponse.clone(), s.cnameHint.clone()}
}

// clone returns a copy of the response whose records the caller may change. The clone of nil is nil.
func (r *parsedResponse) clone() *parsedResponse {
	if r == nil {
		return nil
	}
	c := *r
	c.answer, c.authority = copyWithAge(r.answer, 0), copyWithAge(r.authority, 0)
	return &c
}

// queryZone sends q to the servers of the zone z and returns their answer. If another caller is already sending the
// same question, queryZone waits for that caller's answer instead. full is false if q is minimised.
//
// The error is the error of the queries, or the cause of ctx.
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
		if s.err == nil && slices.Contains(l.avoidServers, s.answer.server) && rejected < maxAvoidedAnswers { // the leader has not avoided this server
			rejected++
			continue
		}
		if s.err != nil {
			return zoneAnswer{}, s.err
		}
		return s.answer.clone(), nil
	}
}

// maxAvoidedAnswers is the number of shared answers that a lookup rejects because they are from a server in
// lookup.avoidServers.
const maxAvoidedAnswers = 4

// zoneQueryDeadline returns the time until which s waits for overdue answers: the latest awaitUntil of the lookups that
// share s. It may become later when another caller joins.
func (c *core) zoneQueryDeadline(s *zoneQuery) time.Time {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	return s.awaitUntil
}

// runZoneQuery runs the zoneQuery s as its leader: it sends the queries to the servers of z and returns the answer. It
// also passes the result to the callers that wait.
func (l *lookup) runZoneQuery(ctx context.Context, z *delegation, s *zoneQuery) (r zoneAnswer, err error) {
	err = errTimeout // remains if queryServers panics
	defer func() { l.core.finishZoneQuery(l, s, r, err, ctx.Err() != nil || err == errTimeout) }()
	r, err = l.queryServers(ctx, z, s.key.question, s.key.fullName, s, &s.waitNode)
	return r, err
}

// joinZoneQuery finds or creates the zoneQuery with the key k, for the question of l to the servers of z. If one is
// running, l must wait for it. Otherwise s is new, leads is true, and l must run it.
//
// s is nil if l cannot wait, because the running zoneQuery itself waits for l.
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

// leaveZoneQuery records that l no longer waits for s. l must not be the leader.
func (c *core) leaveZoneQuery(l *lookup, s *zoneQuery) {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	s.waiters--
	l.waitNode().removeWait(&s.waitNode)
}

// finishZoneQuery ends s, and passes its result to the callers that wait. The result is the answer r or the error err,
// which the leader l has got.
//
// If canceled is true, or if err concerns only the leader, the other callers try again.
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

// readCNAMEHint extracts records of the alias target from m, the response that contains the alias. These records are
// used only if no server answers for the target. q is the question, and r is the same response after parsing.
//
// It returns nil if there are no such records, if they are too large to keep, or if the target is not in the zone z.
func (l *lookup) readCNAMEHint(m *dns.Msg, z *delegation, q question, r *parsedResponse) *parsedResponse {
	if r.aliasTarget == "" || !dnsname.IsWithin(r.aliasTarget, z.zone) || l.core.findStubZone(r.aliasTarget) != l.core.findStubZone(z.zone) {
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
