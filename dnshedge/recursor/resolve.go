package recursor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

// A lookup resolves one question. This is a question of a client, or a question of the Resolver itself: for the address
// of a server, or for the keys of a zone.
type lookup struct {
	// Not changed once it runs.
	core       *core
	budget     *questionBudget
	nameLookup *nameLookup // the nameLookup that is resolved; nil if the lookup belongs to a client's question
	depth      int         // number of nameLookups that depend on this lookup, each on the next
	awaitUntil time.Time   // time until which the lookup waits for slow servers, see nameservers.Task.AwaitUntil; zero for the default

	queries            atomic.Int32     // number of queries for the current name in the chain of aliases
	referrals          int              // number of referrals followed
	avoidServers       []netip.AddrPort // servers that have sent bogus answers to the question
	cnameHint          *parsedResponse  // records of the alias target from the response with the alias, or nil
	hasRecheckedParent bool             // recheckDelegation has queried a parent zone
}

// followReferrals resolves q up to the next alias, without validation of the answer. It starts at the closest cached
// delegation, and follows referrals to the zone of the name.
//
// shared is true if other lookups may need the answer too. It is then looked up in the cache and stored there. A
// response without any records is cached in any case, because it has no SOA record, so that a client cannot cache it.
func (l *lookup) followReferrals(ctx context.Context, q question, shared bool) (*parsedResponse, error) {
	c := l.core
	if r := c.cache.lookUpAnswer(q, time.Now()); r != nil && (shared || r.isEmpty()) && !(q.cd && c.validator != nil) {
		return r, nil
	}
	if shared {
		if r := c.answerSpecialUseName(q); r != nil {
			return r, nil
		}
	}
	z, err := l.findClosestDelegation(ctx, q)
	if err != nil {
		return nil, err
	}
	synth := l.newSynthesizer(q)
	if r := synth.synthesizeAnswer(z); r != nil {
		return r, nil
	}
	l.prefetchKeys(q, z)
	minimised := &minimiser{q: q, do: c.wantsSignatures(), disabled: c.conf.NoMinimise || c.hasQueriedFullName(z, q)}
	for {
		part, full := minimised.nextQuestion(z.zone)
		if !full && synth.canSkipLabel(part, z) {
			continue
		}
		r, err := l.queryZone(ctx, z, part, full)
		switch {
		case err != nil && !full && (errors.Is(err, errMinimisedUnanswered) || errors.Is(err, nameservers.ErrNoServers)):
			minimised.disabled = true
		case err != nil:
			if errors.Is(err, nameservers.ErrNoServers) && !isLocalFailure(err) || errors.Is(err, errTimeout) {
				c.expireRoot(z)
			}
			return nil, err
		case r.kind == kindReferral:
			if l.referrals++; l.referrals > l.budget.limits.Referrals {
				return nil, &limitError{"Referrals", l.budget.limits.Referrals}
			}
			z = c.cacheDelegation(r.referral)
			if r := synth.synthesizeAnswer(z); r != nil {
				return r, nil
			}
			l.prefetchKeys(q, z)
			if f := l.nameLookup; f != nil && f.hasGlueIn(z) {
				return nil, errGlueArrived
			}
		case !full:
			if r := synth.learnFromMinimised(ctx, part, z, r.parsedResponse); r != nil {
				return r, nil
			}
			minimised.disabled = r.kind == kindMinimisedRefused || r.rcode != dns.RcodeSuccess // false: the next question has more labels
		default:
			if (shared || r.isEmpty()) && (c.validator == nil || l.nameLookup != nil) {
				c.cache.addAnswer(q, r.parsedResponse, time.Now())
			}
			l.cnameHint = r.cnameHint
			return r.parsedResponse, nil
		}
	}
}

// hasQueriedFullName reports whether a server of z has already answered a question for an address of the full name of
// q. Minimising q then hides nothing from these servers.
func (c *core) hasQueriedFullName(z *delegation, q question) bool {
	return slices.ContainsFunc(c.types, func(t uint16) bool {
		e := c.cache.lookUpEntry(answerCacheKey(c.newInternalQuestion(q.name, t)), time.Now())
		return e != nil && slices.Contains(z.addrs, e.answer.server)
	})
}

// newSynthesizer returns a synthesizer for the question q. If q is no client's question, or if its answer must not be
// validated, the synthesizer never returns an answer.
func (l *lookup) newSynthesizer(q question) *synthesizer {
	k := &synthesizer{validationBudget: validationBudget{l.budget, l.core}, questionBudget: l.budget, q: q}
	if l.nameLookup == nil && !q.cd {
		k.validator = l.core.validator
	}
	return k
}

// cacheDelegation adds z to the cache, and returns z.
func (c *core) cacheDelegation(z *delegation) *delegation {
	c.cache.addDelegation(z, time.Now())
	return z
}

// findClosestDelegation returns the delegation at which the resolution of q starts. It is that of the closest zone that
// contains the name of q, among stub zones, cached zones and the root.
//
// For DS, the zone must contain the parent of the name, because the parent zone has the DS records (RFC 4035 §3.1.4.1).
// The error is the cause of ctx.
func (l *lookup) findClosestDelegation(ctx context.Context, q question) (*delegation, error) {
	c, now := l.core, time.Now()
	name := q.name
	if q.qtype == dns.TypeDS {
		name = dnsname.Parent(name)
	}
	for ; name != "."; name = dnsname.Parent(name) {
		if z := c.stubs[name]; z != nil {
			return z, nil
		}
		if z := c.cache.lookUpDelegation(name, now); z != nil {
			return z, nil
		}
	}
	if z := c.stubs["."]; z != nil {
		return z, nil
	}
	l.prefetchKeys(q, c.hintsZone)
	return c.rootDelegation(ctx, validationBudget{l.budget, c})
}

// errTimeout is the context cause of a question whose time limit (see chain.WithQuestionDeadline) has passed.
var errTimeout = errors.New("recursor: no answer in time")

// errMinimisedUnanswered is the error of a minimised question after maxMinimisedAttempts queries without an answer. The
// full question is then sent.
var errMinimisedUnanswered = errors.New("recursor: minimised question is unanswered")

// queryServers runs one task of package nameservers: it sends the question of s to the servers of z and returns the best
// response. s waits for lookups of server names.
func (l *lookup) queryServers(ctx context.Context, z *delegation, s *zoneQuery) (zoneAnswer, error) {
	q, full := s.Key.question, s.Key.fullName
	var tries atomic.Int32
	j := &responseSelector{core: l.core, budget: l.budget, zone: z, q: q, fullName: full}
	t := &nameservers.Task{
		Name: q.name, Type: q.qtype, DO: q.do, CD: q.cd, RequireSignatures: l.core.expectsSignatures(z), Zone: z.zone, Servers: z.addrs, PrivateOK: z.privateOK, Avoid: l.avoidServers,
		Minimised: !full, EndEarly: !full, AwaitUntil: func() time.Time { return l.core.zoneQueries.LatestUntil(s) }, CheckResponse: j.selectResponse,
		IsHedge: func() bool { return !l.core.waits.IsNeeded(&s.Node) },
		SpendQuery: func(hedge bool) error {
			if tries.Add(1) > maxMinimisedAttempts && !full {
				return errMinimisedUnanswered
			}
			return l.spendQuery(hedge)
		},
	}
	if !z.privateOK {
		f := newAddressFinder(l, z, j, &s.Node)
		t.Servers, t.FindServers = f.returned, f.findServers
	}
	j.task = t
	defer j.releaseMemory()
	m, err := l.core.pool.QueryServers(ctx, t)
	var r zoneAnswer
	switch {
	case err == nil:
		r.parsedResponse = j.selected
		if full {
			r.cnameHint = l.readCNAMEHint(m, z, q, j.selected)
		}
	case ctx.Err() == nil && j.fallback.Load() != nil:
		r.parsedResponse = j.fallback.Load()
	default:
		s.leaderSpecific = j.lookupSpecific.Load() || j.questionSpecific.Load()
		err = fmt.Errorf("%w: zone %s", err, z.zone)
		if z.isStub && j.refused {
			err = fmt.Errorf("%w: a server of Resolver.Zones has refused a query without RD", err)
		}
		if j.questionSpecific.Load() {
			err = &questionSpecificError{err}
		}
		return zoneAnswer{}, err
	}
	l.core.counters.scrubbed.Add(int64(r.scrubbed))
	return r, nil
}

// spendQuery counts one query of the lookup before it is sent. If Limits.ChainQueries or Limits.Queries is reached, it
// returns a limitError, and the query must not be sent.
//
// hedge is true if the hedge budget pays for the query. The result is then always nil.
func (l *lookup) spendQuery(hedge bool) error {
	if !hedge {
		if err := countWithinLimit(&l.queries, "ChainQueries", l.budget.limits.ChainQueries); err != nil {
			return err
		}
	}
	return l.budget.spendQuery(hedge)
}

// prefetchKeys starts to look up the keys of the zone z, so that they are known when the answer to q must be validated.
// It does not wait. It does nothing if the answer will not be validated.
func (l *lookup) prefetchKeys(q question, z *delegation) {
	if c := l.core; c.validator != nil && l.nameLookup == nil && !q.cd && c.validator.ShouldValidate(q.name, q.qtype) {
		c.validator.PrefetchKeys(validationBudget{l.budget, c}, z.chain)
	}
}

// expectsSignatures reports whether the zone z is known to be signed, from the DS records of its parent zone or from a
// trust anchor.
func (c *core) expectsSignatures(z *delegation) bool {
	return c.validator != nil && c.validator.ExpectsSignatures(z.chain)
}

// A validationBudget implements chain.WorkBudget for the validation of an answer. It sends the DS and DNSKEY queries
// that the validator needs, and the budget of a client's question pays for them.
type validationBudget struct {
	*questionBudget
	core *core
}

// Query implements chain.WorkBudget: it sends a DS or DNSKEY question for name to the servers of the zone z. The
// servers in avoid have sent bogus data. They are queried last.
//
// It follows referrals, because the servers may serve a child zone, too. If a limit is reached, the error is a
// *validate.Reason.
func (p validationBudget) Query(ctx context.Context, z *chain.Zone, name string, qtype uint16, avoid []netip.AddrPort) (*chain.Response, error) {
	stack.GrowTo16KiB()
	l := &lookup{core: p.core, budget: p.questionBudget, awaitUntil: time.Now().Add(keyQueryTimeout), avoidServers: avoid}
	at, q := z.Servers.(*delegation), question{name: name, qtype: qtype, do: true}
	r, err := l.queryZone(ctx, at, q, true)
	for ; err == nil && r.kind == kindReferral && l.referrals < p.limits.Referrals; l.referrals++ { // the servers may serve a child zone too
		at = p.core.cacheDelegation(r.referral)
		r, err = l.queryZone(ctx, at, q, true)
	}
	limit := (*limitError)(nil)
	switch {
	case errors.As(err, &limit):
		return nil, &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: strings.TrimPrefix(err.Error(), "recursor: "), Zone: z.Name, Name: name, Type: qtype, Limit: limit.field}
	case isQuestionSpecific(err):
		return nil, &validate.Reason{EDE: dns.ExtendedErrorCodeNoReachableAuthority, Text: strings.TrimPrefix(err.Error(), "recursor: "), Zone: z.Name, Name: name, Type: qtype, Limit: "ServerNames"}
	case err != nil:
		return nil, err
	case r.kind != kindAnswer:
		return nil, fmt.Errorf("recursor: no answer to %s %s at the servers of %s", name, dns.Type(qtype), z.Name)
	}
	s := r.toChainResponse(name, qtype)
	s.Zone = z
	if r.invalidSignatures {
		s.Status = validate.Bogus
	}
	return s, nil
}

// keyQueryTimeout is the time for which a query of the validator waits for slow servers.
const keyQueryTimeout = 4500 * time.Millisecond
