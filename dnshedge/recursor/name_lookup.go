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

// maxNameLookupTime is how long the address of a server is looked up.
const maxNameLookupTime = 10 * time.Second

// errCycle is why the lookup of a server's name is not waited for: it waits for who asks.
var errCycle = errors.New("recursor: looking up a server's name needs itself")

// errGlueArrived is why the lookup of a server's name ends before it has asked the name's own zone: glue
// for it has come on the way.
var errGlueArrived = errors.New("recursor: there is glue for the server's name")

// errTooDeep is why a server's name is not looked up.
var errTooDeep = errors.New("recursor: too many names of servers are served by servers whose names have to be looked up")

// errTooManyEmptyNames is why a server's name is not looked up: too many others of the question have no address.
var errTooManyEmptyNames = errors.New("recursor: too many names of servers have no address")

// queryLocalError is why no server has answered that is about the question which has asked: for others it says nothing of the zone.
type queryLocalError struct{ error }

func (e *queryLocalError) Unwrap() error { return e.error }

// isQueryLocal reports whether an error says nothing of a zone, for other questions.
func isQueryLocal(err error) bool { return errors.As(err, new(*queryLocalError)) }

// isLocalFailure reports whether nothing could leave this machine, as without a network or descriptors: that says nothing of a question or a zone, and is not kept.
func isLocalFailure(err error) bool { return errors.As(err, new(*nameservers.LocalError)) }

// flights are the lookups of servers' names that are under way, and the steps, which all who need the same
// one share. None of them waits for itself, through others or not: who would close such a
// circle does not wait.
type lookupGroup struct {
	mu          sync.Mutex // guards the fields below, and nodes
	lookups     map[cacheKey]*nameLookup
	zoneQueries map[zoneQueryKey]*zoneQuery
}

// waitNode is a flight or a step in the graph of those that wait for others. It is guarded by flights.mu.
// A nil node is a caller's question, for which nobody waits.
//
// Who waits may do so as a hedge: it would have done without, had no server been late. What is looked up for hedges alone is
// paid for by their budget, and not by the question.
type waitNode struct {
	waitsFor map[*waitNode]waitCount
	needed   bool // a caller's question waits for it, through others or not, and not as a hedge
}

// wait is how often one node waits for another.
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

// markNeeded takes that a caller's question waits for n.
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

// need takes that what n waits for as a hedge is needed.
func (n *waitNode) markWaitsNeeded() {
	for o, w := range n.waitsFor {
		n.waitsFor[o] = waitCount{all: w.all}
		if n.needed {
			o.markNeeded()
		}
	}
}

// waitsForNode reports whether n is o or waits for it, through others or not. Those in seen have
// been looked at.
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

// nameLookup is one of them. It ends with the last who waits for it.
type nameLookup struct {
	waitNode
	key    cacheKey
	lookup *lookup // of the flight's own goroutine
	done   chan struct{}
	cancel context.CancelCauseFunc

	waiters int // for this one; guarded by flights.mu

	// Written before done is closed.
	rrs      []dns.RR // they must not be changed
	nxdomain bool     // the name does not exist
	err      error
}

// hasGlueIn reports whether a zone that f is referred to has glue that makes f needless.
func (f *nameLookup) hasGlueIn(z *delegation) bool {
	return slices.ContainsFunc(z.glueAddresses(f.key.name), func(a netip.Addr) bool {
		return f.key.qtype == dns.TypeA && a.Is4() || f.key.qtype == dns.TypeAAAA && a.Is6()
	})
}

// lookUpServerName returns the records that answer q, which n, a step or a flight of l, needs to find servers, and whether the name is known not
// to exist. The records must not be changed.
func (c *core) lookUpServerName(ctx context.Context, l *lookup, n *waitNode, q question, hedge bool) (rrs []dns.RR, gone bool, err error) {
	for try := 0; ; try++ {
		if rrs, gone, ok := c.cache.lookUpRecords(q, time.Now()); ok {
			return rrs, gone, nil
		}
		if l.budget.emptyNames.Load() >= maxEmptyNames {
			return nil, false, errTooManyEmptyNames
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
		if f.err == nil || mine || try == 2 || !errors.Is(f.err, errCycle) && !errors.As(f.err, &limit) && !isQueryLocal(f.err) && !errors.Is(f.err, errTooDeep) && !errors.Is(f.err, nameservers.ErrNoHedgeBudget) {
			return f.rrs, f.nxdomain, f.err
		}
		// It failed because of who else asked for it; for this one it may do better.
	}
}

// joinNameLookup returns the flight for q, with n, which is l's, waiting for it. It is l's own if nobody else has
// asked for it before.
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

// startNameLookup begins a flight. The caller holds the lock.
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
		if errors.Is(err, nameservers.ErrNoServers) && !isQueryLocal(err) && !isLocalFailure(err) {
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

// isOnlyHedged reports whether all who wait for n do so as a hedge.
func (c *core) isOnlyHedged(n *waitNode) bool {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	return !n.needed
}

// need takes that what n waits for is needed, and no hedge any more.
func (c *core) markNeeded(n *waitNode) {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	n.markWaitsNeeded()
}

// leave ends n's waiting for f. If nobody else waits, f ends, for the reason given.
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

// addressesOf returns the addresses in an answer.
func addressesOf(rrs []dns.RR) []netip.Addr {
	var addrs []netip.Addr
	for _, rr := range rrs {
		if a, ok := recordAddress(rr); ok && len(addrs) < nameservers.MaxAddrs {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// zoneQueryKey is what a zone's servers are asked: all that changes the answer.
type zoneQueryKey struct {
	zone string
	question
	wholeName bool // it is all that is asked, and no part of a name
}

// zoneQuery is a question to a zone's servers that is under way. All who need the answer, for whatever
// question of their callers, wait for the one who asks: a forger has one query to answer (RFC 5452 §5), and a crowd
// costs a zone and its parents as much as one.
type zoneQuery struct {
	waitNode
	key  zoneQueryKey
	zone *chain.Zone // that of the one who asks
	done chan struct{}

	waiters    int       // besides the one who asks; guarded by flights.mu
	awaitUntil time.Time // the latest lookup.until of all of them; guarded by flights.mu

	// Written before done is closed.
	answer     zoneAnswer
	ownFailure bool // the error is about the one who asked: for others it may do better
	err        error
}

// said is what the servers of a zone have answered.
type zoneAnswer struct {
	*parsedResponse
	cnameHint *parsedResponse // what the same response says of the alias's target; nil: nothing that may be believed
}

// clone returns a copy that shares nothing which is changed.
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

// queryZone has the servers of a zone answer q, unless somebody else does already.
func (l *lookup) queryZone(ctx context.Context, z *delegation, q question, whole bool) (zoneAnswer, error) {
	c := l.core
	for alone := 0; ; {
		s, leads := c.joinZoneQuery(l, z, zoneQueryKey{z.zone, q, whole})
		if s == nil { // whoever asks waits for this lookup
			return l.queryServers(ctx, z, q, whole, &zoneQuery{awaitUntil: l.awaitUntil}, l.waitNode())
		}
		if leads {
			return l.leadZoneQuery(ctx, z, s)
		}
		select {
		case <-s.done:
			c.leaveZoneQuery(l, s)
		case <-ctx.Done():
			c.leaveZoneQuery(l, s)
			return zoneAnswer{}, context.Cause(ctx)
		}
		if s.err != nil && s.ownFailure || s.zone.HasMovedFor(z.chain) {
			continue
		}
		if s.err == nil && slices.Contains(l.avoid, s.answer.server) && alone < maxAvoidedAnswers { // whose answer was bogus: the one who asked did not avoid it
			alone++
			continue
		}
		if s.err != nil {
			return zoneAnswer{}, s.err
		}
		return s.answer.clone(), nil
	}
}

// maxAvoidedAnswers is how many answers of servers to avoid, for which others have asked, a lookup does not take.
const maxAvoidedAnswers = 4

// zoneQueryDeadline returns until when a step awaits the answers of slow servers: those who join it may wait longer than the one who asks.
func (c *core) zoneQueryDeadline(s *zoneQuery) time.Time {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	return s.awaitUntil
}

// leadZoneQuery asks for all who wait for s.
func (l *lookup) leadZoneQuery(ctx context.Context, z *delegation, s *zoneQuery) (r zoneAnswer, err error) {
	err = errTimeout // if this function does not return
	defer func() { l.core.finishZoneQuery(l, s, r, err, ctx.Err() != nil || err == errTimeout) }()
	r, err = l.queryServers(ctx, z, s.key.question, s.key.wholeName, s, &s.waitNode)
	return r, err
}

// joinZoneQuery returns the step with a key, about a zone, and whether l is the one who asks; otherwise it waits. It is nil if
// the one who asks waits for l.
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

// leaveZoneQuery ends l's waiting for s.
func (c *core) leaveZoneQuery(l *lookup, s *zoneQuery) {
	c.lookups.mu.Lock()
	defer c.lookups.mu.Unlock()
	s.waiters--
	l.waitNode().removeWait(&s.waitNode)
}

// finishZoneQuery ends a step, with what the one who asked has found out.
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
	s.ownFailure = s.ownFailure || left || errors.As(err, new(*limitError)) || errors.Is(err, nameservers.ErrNoHedgeBudget)
	close(s.done)
}

// readCNAMEHint returns what a response of z's servers says of the target of the alias that it is: to be believed
// if nobody else answers, and if it is of the same zone. It is nil if that is nothing, or too large to be kept.
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
	if h.kind != kindAnswer || len(h.answer) == 0 || memoryOfRecords(h.answer, h.authority) > uncountedBytes {
		return nil
	}
	return h
}
