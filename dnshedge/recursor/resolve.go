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
	"github.com/gohedge/hedge/dnshedge/internal/special"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/waitgraph"
)

// A lookup resolves one question: a client's question, or a question of the Resolver itself, for the address of a
// server or for the keys of a zone.
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

// followReferrals sends queries for q, from the closest cached delegation down to the zone of the name, until a server
// answers. It returns this answer, which may be an alias. It does not validate the answer.
//
// If shared is true, other lookups may need the answer too: it may come from the cache, and it is cached. The same
// holds for any answer without records. It lacks an SOA record, so a client cannot cache it.
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
	minimised := &minimiser{q: q, do: c.validator != nil, disabled: c.conf.NoMinimise || c.hasQueriedFullName(z, q)}
	for entered := (*delegation)(nil); ; {
		if synth != nil && z != entered {
			if r := synth.synthesizeOrPrefetchKeys(z); r != nil {
				return r, nil
			}
			entered = z
		}
		part, full := minimised.nextQuestion(z.zone)
		if !full && synth != nil && synth.canSkipLabel(part, z) {
			continue
		}
		r, err := l.queryZone(ctx, z, part, full)
		switch {
		case err != nil && !full && (errors.Is(err, errMinimisedUnanswered) || errors.Is(err, nameservers.ErrNoServers)):
			minimised.disabled = true
		case err != nil:
			if errors.Is(err, nameservers.ErrNoServers) && !isLocalFailure(err) || errors.Is(err, errTimeout) {
				c.expireRootDelegation(z)
			}
			return nil, err
		case r.kind == kindReferral:
			if l.referrals++; l.referrals > l.budget.limits.Referrals {
				return nil, &limitError{"Referrals", l.budget.limits.Referrals}
			}
			z = c.cache.addDelegation(r.referral, time.Now())
			if f := l.nameLookup; f != nil && f.hasGlueIn(z) {
				return nil, errGlueArrived
			}
		case !full:
			if r := synth.cacheMinimisedDenial(ctx, z, r); r != nil {
				return r, nil
			}
			minimised.disabled = r.kind == kindMinimisedRefused || r.Rcode != dns.RcodeSuccess // false: the next question has more labels
		default:
			if (shared || r.isEmpty()) && (c.validator == nil || l.nameLookup != nil) {
				c.cache.addAnswer(q, r, time.Now())
			}
			l.cnameHint = r.cnameHint
			return r, nil
		}
	}
}

// hasQueriedFullName reports whether the servers of the zone z already know the full name of q: one of them has
// answered an address question with it. Minimised names (RFC 9156) then hide nothing from them.
func (c *core) hasQueriedFullName(z *delegation, q question) bool {
	return slices.ContainsFunc(c.types, func(t uint16) bool {
		e := c.cache.lookUpEntry(answerCacheKey(c.newInternalQuestion(q.name, t)), time.Now())
		return e != nil && slices.Contains(z.addrs, e.answer.From)
	})
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
	if c.validator != nil && l.nameLookup == nil && !q.cd && c.validator.ShouldValidate(q.name, q.qtype) {
		c.validator.PrefetchKeys(validationBudget{l.budget, c}, c.hintsZone.chain) // in parallel with priming
	}
	return c.rootDelegation(ctx, validationBudget{l.budget, c})
}

// findSpecialUseZone is special.FindZone, except in tests.
var findSpecialUseZone = special.FindZone

// answerSpecialUseName answers a question for a special-use name without a query. It returns nil if q must be resolved,
// because its name is not special or is in one of Resolver.Zones.
func (c *core) answerSpecialUseName(q question) *parsedResponse {
	top := q.name[strings.LastIndexByte(q.name[:len(q.name)-1], '.')+1:]
	switch top {
	case "arpa.", "localhost.", "invalid.", "onion.", "alt.", "test.", "local.":
	default:
		return nil
	}
	var b [256]byte
	n, err := dns.PackDomainName(q.name, b[:], 0, nil, false)
	if err != nil {
		return nil
	}
	z := findSpecialUseZone(b[:n], true)
	if z == nil {
		return nil
	}
	if z := c.findStubZone(q.name); z != nil && z.zone != "." {
		return nil
	}
	m := z.Answer(q.name, q.qtype)
	if m == nil {
		return nil
	}
	return &parsedResponse{kind: kindAnswer, Response: chain.Response{Status: validate.Insecure, Rcode: m.Rcode, Answer: m.Answer, Authority: m.Ns}}
}

// findStubZone returns the delegation of the closest zone in Resolver.Zones that contains a name. It returns nil if no
// such zone contains it.
func (c *core) findStubZone(name string) *delegation {
	for ; name != "."; name = dnsname.Parent(name) {
		if z := c.stubs[name]; z != nil {
			return z
		}
	}
	return c.stubs["."]
}

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
	answer         *parsedResponse
	leaderSpecific bool // err concerns only the leader, so that the other callers must try again
	err            error
}

// clone returns a copy of the response whose records the caller may change. The clone of nil is nil.
func (r *parsedResponse) clone() *parsedResponse {
	if r == nil {
		return nil
	}
	c := *r
	c.Answer, c.Authority = copyWithAge(r.Answer, 0), copyWithAge(r.Authority, 0)
	c.cnameHint = r.cnameHint.clone()
	return &c
}

// errMinimisedUnanswered is the error of a minimised question after maxMinimisedAttempts queries without an answer. The
// full question is then sent.
var errMinimisedUnanswered = errors.New("recursor: minimised question is unanswered")

// queryZone sends q to the servers of the zone z and returns their answer. If another caller is already sending the
// same question, it waits for that caller's answer instead. fullName is false if the name of q is minimised (RFC 9156).
//
// The error is the error of the queries, or the cause of ctx.
func (l *lookup) queryZone(ctx context.Context, z *delegation, q question, fullName bool) (*parsedResponse, error) {
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
			return nil, err
		}
		if s.err != nil && s.leaderSpecific || isOutdated(s) {
			continue
		}
		if s.err == nil && slices.Contains(l.avoidServers, s.answer.From) && rejected < maxAvoidedAnswers { // the leader has not avoided this server
			rejected++
			continue
		}
		if s.err != nil {
			return nil, s.err
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
func (l *lookup) runZoneQuery(ctx context.Context, z *delegation, s *zoneQuery, w waitgraph.Wait) (r *parsedResponse, err error) {
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
		t.Servers, t.FindServers, t.HasRunningLookups = f.returned, f.findServers, f.hasRunningLookups
	}
	j.task = t
	defer j.dropResponses()
	m, failed := l.core.pool.QueryServers(ctx, t)
	switch {
	case failed == nil:
		r = j.selected
		if full && r.aliasTarget != "" {
			r.cnameHint = l.readCNAMEHint(m, z, q, j.selected)
		}
	case ctx.Err() == nil && j.fallback.Load() != nil:
		r = j.fallbackAfter(failed)
	default:
		s.leaderSpecific = j.lookupSpecific.Load() || j.questionSpecific.Load()
		failed = fmt.Errorf("%w: zone %s", failed, z.zone)
		if z.isStub && j.refused {
			failed = fmt.Errorf("%w: a server of Resolver.Zones has refused a query without RD", failed)
		}
		if j.questionSpecific.Load() {
			failed = &questionSpecificError{failed}
		}
		return nil, failed
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

// A validationBudget implements chain.ValidationBudget for the validation of an answer. It sends the DS and DNSKEY
// queries that the validator needs, and counts them against the budget of the client's question.
type validationBudget struct {
	*questionBudget
	core *core
}

// Query implements chain.ValidationBudget: it sends a DS or DNSKEY question for name to the servers of the zone z. The
// servers in avoid have sent bogus data. They are queried last.
//
// It follows referrals, because the servers may serve a child zone, too. If a limit is reached, the error is a
// *validate.Reason. This does not hold for Limits.ServerNamesPerZone if avoid has servers: their data decides, because
// that limit is the same for each question.
func (b validationBudget) Query(ctx context.Context, z *chain.Zone, name string, qtype uint16, avoid []netip.AddrPort) (*chain.Response, error) {
	stack.GrowTo16KiB()
	l := &lookup{core: b.core, budget: b.questionBudget, awaitUntil: time.Now().Add(keyQueryTimeout), avoidServers: avoid}
	at, q := z.Servers.(*delegation), question{name: name, qtype: qtype, do: true}
	r, err := l.queryZone(ctx, at, q, true)
	for ; err == nil && r.kind == kindReferral && l.referrals < b.limits.Referrals; l.referrals++ { // the servers may serve a child zone too
		at = b.core.cache.addDelegation(r.referral, time.Now())
		r, err = l.queryZone(ctx, at, q, true)
	}
	limit := (*limitError)(nil)
	switch {
	case errors.As(err, &limit) && !(limit.field == "ServerNamesPerZone" && len(avoid) > 0):
		return nil, &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: strings.TrimPrefix(err.Error(), "recursor: "), Zone: z.Name, Name: name, Type: qtype, Limit: limit.field}
	case isQuestionSpecific(err):
		return nil, &validate.Reason{EDE: dns.ExtendedErrorCodeNoReachableAuthority, Text: strings.TrimPrefix(err.Error(), "recursor: "), Zone: z.Name, Name: name, Type: qtype, Limit: "ServerNames"}
	case err != nil:
		return nil, err
	case r.kind != kindAnswer:
		return nil, fmt.Errorf("recursor: no answer to %s %s at the servers of %s", name, dns.Type(qtype), z.Name)
	}
	r.Zone = z
	if r.invalidSignatures {
		r.Status = validate.Bogus
	}
	return &r.Response, nil
}

// keyQueryTimeout is the time for which a query of the validator waits for slow servers.
const keyQueryTimeout = 4500 * time.Millisecond

// A synthesizer answers one question without a query, from NSEC, NSEC3 and wildcard records that were cached with the
// answers to other questions. This is the aggressive use of a DNSSEC-validated cache (RFC 8198).
type synthesizer struct {
	validator        *chain.Validator
	validationBudget chain.ValidationBudget
	questionBudget   *questionBudget
	q                question
	badSignatures    bool // the answer to a minimised question had invalid signatures
}

// newSynthesizer returns a synthesizer that may answer q from cached DNSSEC proofs. It returns nil if the answer to q
// must not be validated, or if the question is not a client's.
func (l *lookup) newSynthesizer(q question) *synthesizer {
	c := l.core
	if c.validator == nil || l.nameLookup != nil || q.cd {
		return nil
	}
	return &synthesizer{validator: c.validator, validationBudget: validationBudget{l.budget, c}, questionBudget: l.budget, q: q}
}

// synthesizeOrPrefetchKeys returns an answer from cached DNSSEC proofs, like synthesizeAnswer, if the proofs determine
// it. Otherwise it returns nil, and starts to look up the keys of the zone z. They are then known when the answer must
// be validated.
func (s *synthesizer) synthesizeOrPrefetchKeys(z *delegation) *parsedResponse {
	if r := s.synthesizeAnswer(z); r != nil {
		return r
	}
	if s.validator.ShouldValidate(s.q.name, s.q.qtype) {
		s.validator.PrefetchKeys(s.validationBudget, z.chain)
	}
	return nil
}

// synthesizeAnswer returns an answer to the question from the cached DNSSEC proofs of the zone z and of zones below it
// (RFC 8198). It returns nil if the proofs do not determine the answer.
func (s *synthesizer) synthesizeAnswer(z *delegation) *parsedResponse {
	q := s.q
	found, ok := s.validator.Synthesize(s.validationBudget.Validation(), z.zone, q.name, q.qtype)
	if !ok {
		return nil
	}
	r := &parsedResponse{kind: kindAnswer, ttl: time.Duration(found.TTL) * time.Second}
	r.Status, r.Answer, r.Authority = validate.Secure, found.Answer, found.Authority
	if found.Kind == validate.NameError {
		r.Rcode = dns.RcodeNameError
	}
	if len(r.Answer) > 0 && q.qtype != dns.TypeCNAME {
		if alias, ok := r.Answer[0].(*dns.CNAME); ok {
			r.aliasTarget = dnsname.ToLower(alias.Target)
		}
	}
	s.questionBudget.synthesized.Add(1)
	return r
}

// canSkipLabel reports whether a query with a minimised name (RFC 9156) is unnecessary, because a cached proof answers
// it with NODATA. The name then exists and is no zone cut, so the next query can have one more label. z is the zone to
// which the query would be sent.
func (s *synthesizer) canSkipLabel(minimised question, z *delegation) bool {
	found, ok := s.validator.Synthesize(s.validationBudget.Validation(), z.zone, minimised.name, minimised.qtype)
	return ok && found.Kind == validate.NoData
}

// cacheMinimisedDenial caches the DNSSEC proofs in r, the answer of a server of z to a question whose name is minimised
// (RFC 9156).
//
// If they prove that the minimised name does not exist, no name below it exists either (RFC 8020). It then returns the answer to
// the full question. Otherwise it returns nil, also if s is nil.
//
// If the full name has a trust anchor below z, it does nothing: the proofs do not concern the name, and the keys of z
// may be unavailable.
func (s *synthesizer) cacheMinimisedDenial(ctx context.Context, z *delegation, r *parsedResponse) *parsedResponse {
	if s == nil || s.badSignatures || r.kind != kindAnswer || s.validator.HasAnchorBelow(z.zone, s.q.name) {
		return nil
	}
	if s.badSignatures = !s.validator.CacheMinimisedDenial(ctx, s.validationBudget, &r.Response); s.badSignatures || r.Rcode != dns.RcodeNameError {
		return nil
	}
	return s.synthesizeAnswer(z)
}
