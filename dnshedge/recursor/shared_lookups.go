package recursor

import (
	"context"
	"errors"
	"fmt"
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

// A nameLookupKey identifies a nameLookup by the server name and the type of the records.
type nameLookupKey struct {
	cacheKey
	childZone string // if it is not empty, the servers of this zone's parent are queried for glue, see lookUpGlueAtParent
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
func (f *nameLookup) hasGlueIn(z *delegation) bool {
	return slices.ContainsFunc(z.glueAddresses(f.Key.name), func(a netip.Addr) bool {
		return f.Key.qtype == dns.TypeA && a.Is4() || f.Key.qtype == dns.TypeAAAA && a.Is6()
	})
}

// lookUpServerName returns the records that the key k identifies: the addresses of a server name, or the NS records of
// a zone. They come from the cache, or from a lookup that several callers may share. The caller must not change them.
// nxdomain is true if the name does not exist.
//
// n is the node of the wait-for graph that waits for the result, on behalf of the lookup l. hedge is true if the wait
// is a hedge.
func (c *core) lookUpServerName(ctx context.Context, l *lookup, n *waitgraph.Node, k nameLookupKey, hedge bool) (rrs []dns.RR, nxdomain bool, err error) {
	q, w := c.newInternalQuestion(k.name, k.qtype), waitgraph.Wait{By: n, Hedge: hedge}
	for try := 0; ; try++ {
		if k.childZone != "" {
			if rrs, ok := c.cache.lookUpGlue(q, time.Now()); ok {
				return rrs, false, nil
			}
		} else if rrs, nxdomain, ok := c.cache.lookUpRecords(q, time.Now()); ok {
			return rrs, nxdomain, nil
		}
		if l.budget.unresolvedNames.Load() >= maxUnresolvedNames {
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
		q := c.newInternalQuestion(k.name, k.qtype)
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

// A zoneQueryKey identifies a zoneQuery by zone and question. Zone queries with the same key have the same answer.
type zoneQueryKey struct {
	zone string
	question
	fullName bool // false if the question is minimised
}

// A zoneQuery is a running question to the servers of a zone, which several callers share (single flight). The first
// caller, the leader, sends the queries, and the other callers wait for the answer.
//
// An attacker can therefore forge the response to only one query at a time (RFC 5452 §5), and many clients cause no
// more queries than one client.
type zoneQuery struct {
	waitgraph.Flight[zoneQueryKey]
	zone *chain.Zone // the zone, through the referral that the leader has used

	// The result may only be read after the end of the Flight.
	answer         zoneAnswer
	leaderSpecific bool // err concerns only the leader, so that the other callers must try again
	err            error
}

// A zoneAnswer is the answer of a zone's servers to a question. If the answer is an alias, it may also have the records
// of the target.
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
	c.Answer, c.Authority = copyWithAge(r.Answer, 0), copyWithAge(r.Authority, 0)
	return &c
}

// errMinimisedUnanswered is the error of a minimised question after maxMinimisedAttempts queries without an answer. The
// full question is then sent.
var errMinimisedUnanswered = errors.New("recursor: minimised question is unanswered")

// queryZone sends q to the servers of the zone z and returns their answer. If another caller is already sending the
// same question, it waits for that caller's answer instead. fullName is false if the name of q is minimised (RFC 9156).
//
// The error is the error of the queries, or the cause of ctx.
func (l *lookup) queryZone(ctx context.Context, z *delegation, q question, fullName bool) (zoneAnswer, error) {
	group, k, w := l.core.zoneQueries, zoneQueryKey{z.zone, q, fullName}, waitgraph.Wait{Until: l.awaitUntil}
	if l.nameLookup != nil {
		w.By = &l.nameLookup.Node
	}
	isOutdated := func(s *zoneQuery) bool { return s.zone.IsOutdatedFor(z.chain) }
	start := func(bool) (*zoneQuery, error) {
		s := &zoneQuery{zone: z.chain}
		s.Key = k
		return s, nil
	}
	for rejected := 0; ; {
		s, leads, err := group.Join(k, w, isOutdated, start)
		if err != nil { // the running query waits for this lookup
			s, _ = start(true)
			leads = true
			group.JoinAlone(s, w)
		}
		if leads {
			return l.runZoneQuery(ctx, z, s, w)
		}
		if err := group.Await(ctx, s, w); err != nil {
			return zoneAnswer{}, err
		}
		if s.err != nil && s.leaderSpecific || isOutdated(s) {
			continue
		}
		if s.err == nil && slices.Contains(l.avoidServers, s.answer.From) && rejected < maxAvoidedAnswers { // the leader has not avoided this server
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

// runZoneQuery sends the question of s to the servers of the zone z, and returns the best response. The caller is the
// leader of s, whose wait in the wait-for graph is w. It also passes the result to the other callers, which wait for
// the leader.
//
// If ctx ends, or if the error concerns only the leader, the other callers try again.
func (l *lookup) runZoneQuery(ctx context.Context, z *delegation, s *zoneQuery, w waitgraph.Wait) (r zoneAnswer, err error) {
	err = errTimeout // remains if this function panics
	defer func() {
		l.core.zoneQueries.Leave(s, w, nil)
		l.core.zoneQueries.Finish(s, func(shared bool) {
			if err == nil && shared {
				s.answer = r.clone() // the caller may change its response
			}
			s.err = err
			s.leaderSpecific = s.leaderSpecific || ctx.Err() != nil || err == errTimeout || errors.As(err, new(*limitError)) || errors.Is(err, nameservers.ErrNoHedgeBudget)
		})
	}()
	q, full := s.Key.question, s.Key.fullName
	var tries atomic.Int32
	j := &responseSelector{core: l.core, budget: l.budget, zone: z, q: q, fullName: full}
	t := &nameservers.Task{
		Name: q.name, Type: q.qtype, DO: q.do, CD: q.cd, Zone: z.zone, Servers: z.addrs, PrivateOK: z.privateOK, Avoid: l.avoidServers,
		RequireSignatures: l.core.validator != nil && l.core.validator.ExpectsSignatures(z.chain),
		PreferSignatures:  l.core.validator != nil && l.core.validator.HasAnchorBelow(z.zone, q.name),
		Minimised:         !full, EndEarly: !full, AwaitUntil: func() time.Time { return l.core.zoneQueries.LatestDeadline(s) }, CheckResponse: j.checkResponse,
		IsHedge: func() bool { return !l.core.waits.IsNeeded(&s.Node) },
		SpendQuery: func(hedge bool) error {
			if tries.Add(1) > maxMinimisedAttempts && !full {
				return errMinimisedUnanswered
			}
			return l.budget.spendQuery(hedge, &l.queries)
		},
	}
	if z.gluelessCount > 0 || !z.privateOK {
		f := newAddressFinder(l, z, j, &s.Node)
		t.Servers, t.FindServers = f.returned, f.findServers
	}
	j.task = t
	defer j.dropResponses()
	m, failed := l.core.pool.QueryServers(ctx, t)
	switch {
	case failed == nil:
		r.parsedResponse = j.selected
		if full && r.aliasTarget != "" {
			r.cnameHint = l.readCNAMEHint(m, z, q, j.selected)
		}
	case ctx.Err() == nil && j.fallback.Load() != nil:
		r.parsedResponse = j.fallback.Load()
	default:
		s.leaderSpecific = j.lookupSpecific.Load() || j.questionSpecific.Load()
		failed = fmt.Errorf("%w: zone %s", failed, z.zone)
		if z.isStub && j.refused {
			failed = fmt.Errorf("%w: a server of Resolver.Zones has refused a query without RD", failed)
		}
		if j.questionSpecific.Load() {
			failed = &questionSpecificError{failed}
		}
		return zoneAnswer{}, failed
	}
	l.core.counters.scrubbed.Add(int64(r.scrubbed))
	return r, nil
}

// readCNAMEHint returns the records of the alias target that a server has added to its answer. They are a last resort:
// they are used only if no server of the target's zone answers.
//
// m is the response to q from a server of the zone z, and r is the same response after parsing. r must be an alias. The
// result is nil if m has no such records, if they are too large to keep, or if the target is outside of z.
func (l *lookup) readCNAMEHint(m *dns.Msg, z *delegation, q question, r *parsedResponse) *parsedResponse {
	if !dnsname.IsWithin(r.aliasTarget, z.zone) || l.core.findStubZone(r.aliasTarget) != l.core.findStubZone(z.zone) {
		return nil
	}
	q.name = r.aliasTarget
	h := readResponse(m, z, q, true, time.Now())
	h.From = r.From
	if l.core.validator != nil {
		h.ttl = min(h.ttl, limitTTLsBySignatures(time.Now(), maxLifetime, h.Answer, h.Authority))
	}
	if h.kind != kindAnswer || len(h.Answer) == 0 || estimateRecordMemory(h.Answer, h.Authority) > uncountedBytes {
		return nil
	}
	return h
}
