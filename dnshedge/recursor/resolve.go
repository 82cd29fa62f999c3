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

// A lookup resolves one question, of a client or for another lookup.
type lookup struct {
	// Not changed once it runs.
	core       *core
	budget     *questionBudget
	nameLookup *nameLookup // the nameLookup that it serves; nil: a client's question
	depth      int         // number of lookups that wait for it in sequence
	awaitUntil time.Time   // until when slow servers are awaited; zero: no longer than losers

	queries            atomic.Int32 // for its own name, or the current alias
	referrals          int
	avoid              []netip.AddrPort // servers with bogus answers to the question
	cnameHint          *parsedResponse  // records of the current alias target that came with the alias; nil: none
	hasRecheckedParent bool             // a parent was asked again for a delegation
}

// waitNode returns the node that waits for the lookup's needs.
func (l *lookup) waitNode() *waitNode {
	if l.nameLookup == nil {
		return nil
	}
	return &l.nameLookup.waitNode
}

// followReferrals answers q from the closest cached zone down. shared enables the cache, for questions whose answers other
// questions need. An answer without TTL is always cached, because the client cannot cache it.
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
	z, err := l.closestDelegation(ctx, q)
	if err != nil {
		return nil, err
	}
	known := l.newSynthesizer(q)
	if r := known.synthesizeAnswer(z); r != nil {
		return r, nil
	}
	l.prefetchKeys(q, z)
	parts := &minimiser{q: q, do: c.wantsSignatures(), off: c.conf.NoMinimise || c.hasQueriedFullName(z, q)}
	for {
		step, whole := parts.nextQuestion(z.zone)
		if !whole && known.canSkipLabel(step, z) {
			continue
		}
		r, err := l.queryZone(ctx, z, step, whole)
		switch {
		case err != nil && !whole && (errors.Is(err, errMinimisedUnanswered) || errors.Is(err, nameservers.ErrNoServers)):
			parts.off = true
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
			if r := known.synthesizeAnswer(z); r != nil {
				return r, nil
			}
			l.prefetchKeys(q, z)
			if f := l.nameLookup; f != nil && f.hasGlueIn(z) {
				return nil, errGlueArrived
			}
		case !whole:
			if r := known.learnFromMinimised(ctx, step, z, r.parsedResponse); r != nil {
				return r, nil
			}
			parts.off = r.kind == kindMinimisedRefused || r.rcode != dns.RcodeSuccess // otherwise, one label more
		default:
			if (shared || r.isEmpty()) && (c.validator == nil || l.nameLookup != nil) {
				c.cache.addAnswer(q, r.parsedResponse, time.Now())
			}
			l.cnameHint = r.cnameHint
			return r.parsedResponse, nil
		}
	}
}

// hasQueriedFullName reports whether a server of z has answered for the other address type of q's name. Then a minimised
// question hides nothing.
func (c *core) hasQueriedFullName(z *delegation, q question) bool {
	return slices.ContainsFunc(c.types, func(t uint16) bool {
		e := c.cache.lookUpEntry(cacheKeyOf(c.serverQuestion(q.name, t)), time.Now())
		return e != nil && slices.Contains(z.addrs, e.answer.server)
	})
}

// newSynthesizer returns a synthesizer for q. It answers only validated questions of clients.
func (l *lookup) newSynthesizer(q question) *synthesizer {
	k := &synthesizer{validationBudget: validationBudget{l.budget, l.core}, questionBudget: l.budget, q: q}
	if l.nameLookup == nil && !q.cd {
		k.validator = l.core.validator
	}
	return k
}

func (c *core) cacheDelegation(z *delegation) *delegation {
	c.cache.addDelegation(z, time.Now())
	return z
}

// closestDelegation returns the cached delegation closest to the question. DS records are asked of the parent zone (RFC
// 4035 §3.1.4.1).
func (l *lookup) closestDelegation(ctx context.Context, q question) (*delegation, error) {
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

// errTimeout ends a question that takes too long.
var errTimeout = errors.New("recursor: no answer in time")

// errMinimisedUnanswered means that too many queries for a minimised question are unanswered.
var errMinimisedUnanswered = errors.New("recursor: no answer to a minimised question")

// queryServers sends q to the servers of a zone. n waits for server name lookups.
func (l *lookup) queryServers(ctx context.Context, z *delegation, q question, whole bool, s *zoneQuery, n *waitNode) (zoneAnswer, error) {
	var tries atomic.Int32
	j := &responseSelector{core: l.core, budget: l.budget, zone: z, q: q, fullName: whole}
	t := &nameservers.Task{
		Name: q.name, Type: q.qtype, DO: q.do, CD: q.cd, RequireSignatures: l.core.expectsSignatures(z), Zone: z.zone, Servers: z.addrs, PrivateOK: z.privateOK, Avoid: l.avoid,
		Minimised: !whole, EndEarly: !whole, AwaitUntil: func() time.Time { return l.core.zoneQueryDeadline(s) }, CheckResponse: j.selectResponse,
		IsHedge: func() bool { return l.core.isOnlyHedged(n) },
		SpendQuery: func(hedge bool) error {
			if tries.Add(1) > maxMinimisedAttempts && !whole {
				return errMinimisedUnanswered
			}
			return l.spendQuery(hedge)
		},
	}
	if !z.privateOK {
		f := newAddressFinder(l, z, j, n)
		t.Servers, t.FindServers = f.returned, f.findServers
	}
	j.task = t
	defer j.releaseMemory()
	m, err := l.core.pool.QueryServers(ctx, t)
	var r zoneAnswer
	switch {
	case err == nil:
		r.parsedResponse = j.selected
		if whole {
			r.cnameHint = l.readCNAMEHint(m, z, q, j.selected)
		}
	case ctx.Err() == nil && j.fallback.Load() != nil:
		r.parsedResponse = j.fallback.Load()
	default:
		s.leaderSpecific = j.lookupSpecific.Load() || j.questionSpecific.Load()
		err = fmt.Errorf("%w: zone %s", err, z.zone)
		if z.stub && j.refused {
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

func (l *lookup) spendQuery(hedge bool) error {
	if !hedge {
		if err := countWithinLimit(&l.queries, "ChainQueries", l.budget.limits.ChainQueries); err != nil {
			return err
		}
	}
	return l.budget.spendQuery(hedge)
}

// prefetchKeys starts the lookup of a zone's keys in parallel with a question that will be validated.
func (l *lookup) prefetchKeys(q question, z *delegation) {
	if c := l.core; c.validator != nil && l.nameLookup == nil && !q.cd && c.validator.ShouldValidate(q.name, q.qtype) {
		c.validator.PrefetchKeys(validationBudget{l.budget, c}, z.chain)
	}
}

// expectsSignatures reports whether the parent of a zone says that it is signed.
func (c *core) expectsSignatures(z *delegation) bool {
	return c.validator != nil && c.validator.ExpectsSignatures(z.chain)
}

// A validationBudget is the chain.WorkBudget of a client's question.
type validationBudget struct {
	*questionBudget
	core *core
}

// Query implements chain.WorkBudget.
func (p validationBudget) Query(ctx context.Context, z *chain.Zone, name string, qtype uint16, avoid []netip.AddrPort) (*chain.Response, error) {
	stack.GrowTo16KiB()
	l := &lookup{core: p.core, budget: p.questionBudget, awaitUntil: time.Now().Add(keyQueryTimeout), avoid: avoid}
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
	s := r.chainResponse(name, qtype)
	s.Zone = z
	if r.invalidSignatures {
		s.Status = validate.Bogus
	}
	return s, nil
}

// keyQueryTimeout is how long keys of slow servers are awaited.
const keyQueryTimeout = 4500 * time.Millisecond
