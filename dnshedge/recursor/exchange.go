package recursor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

// ExchangeContext resolves the question of m, which it does not modify. It returns the response, and the time that it
// took. The address must be empty.
//
// The response has the ID of m and RA, never AA, and an OPT record if m has an OPT record. AD is set if the whole
// answer was validated, m has DO or AD, and m lacks CD (RFC 6840 §5.8). EDNS options do not change the answer.
//
// If the question cannot be resolved in time, or if the answer does not fit a DNS message, the response is SERVFAIL
// with an extended error (RFC 8914). The error is then nil. The time limit is 4.5 s, or nine tenths of the time until
// the deadline of ctx if that is less.
//
// The error is not nil if ctx ends, or if the Resolver is closed or has an invalid field. It is also not nil if no
// query can be sent, for example without a network, or if m is not a valid question.
//
// A valid question has opcode QUERY and one entry, whose type is ANY or a type of data. If its class is not IN, the
// response is REFUSED.
func (r *Resolver) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	c, err := r.initOnce()
	if err != nil {
		return nil, 0, err
	}
	if address != "" {
		return nil, 0, fmt.Errorf("recursor: address is %q; want none", address)
	}
	q, err := parseQuestion(m)
	if err != nil {
		return nil, 0, err
	}
	start := time.Now()
	if m.Question[0].Qclass != dns.ClassINET {
		return buildResponse(m, q, &chain.Answer{Rcode: dns.RcodeRefused}, nil), 0, nil
	}
	c.closeMu.RLock()
	closed := c.closed
	if !closed {
		c.running.Add(1) // Close waits for the question
	}
	c.closeMu.RUnlock()
	if closed {
		return nil, 0, net.ErrClosed
	}
	defer c.running.Done()
	resp, err := c.answerQuestion(ctx, m, q)
	return resp, time.Since(start), err
}

// answerQuestion resolves the question q, and returns the response to the client's message m. It implements
// ExchangeContext for a valid question. It also updates the statistics, and calls Trace.Answer.
func (c *core) answerQuestion(ctx context.Context, m *dns.Msg, q question) (*dns.Msg, error) {
	c.counters.questions.Add(1)
	b := &questionBudget{limits: c.limits}
	if c.validator != nil {
		b.validation.Policy = c.validator.Policy()
	}
	var a *chain.Answer
	var err error
	if r := c.answerSpecialUseName(q); r != nil {
		c.counters.localAnswers.Add(1)
		a = new(chain.Answer)
		a.AddResponse(&r.Response)
	} else {
		stack.GrowTo16KiB()
		limited, limit, stop := chain.WithQuestionDeadline(ctx, c.ctx, errTimeout) // leaves time to send the response
		defer stop()
		l := &lookup{core: c, budget: b, awaitUntil: time.Now().Add(limit - limit/20)}
		a, err = l.followAliases(limited, question{q.name, q.qtype, q.do || c.validator != nil, q.cd})
	}
	security := dnssec.Unchecked
	if c.validator != nil {
		security, err = c.countSecurity(q, b, a, err)
	}
	if err != nil {
		c.counters.failures.Add(1)
		if limit := (*limitError)(nil); errors.As(err, &limit) {
			c.countLimitReached(limit.field)
		}
	}
	resp := buildResponse(m, q, a, err)
	if err != nil {
		switch {
		case c.ctx.Err() != nil:
			resp, err = nil, net.ErrClosed
		case ctx.Err() != nil:
			resp, err = nil, context.Cause(ctx)
		case isLocalFailure(err):
			resp = nil
		}
	}
	if c.trace.Answer != nil {
		info := AnswerInfo{Name: q.name, Type: q.qtype, Queries: int(b.queries.Load() + b.hedges.Load()), Proofs: int(b.synthesized.Load()), Security: security, Err: err}
		if resp != nil {
			info.Rcode = resp.Rcode
		}
		func() {
			defer c.recoverTracePanic()
			c.trace.Answer(ctx, info)
		}()
	}
	if resp != nil {
		err = nil
	}
	return resp, err
}

// followAliases resolves q. While the answer is an alias (CNAME or DNAME), it resolves the target of the alias, too. It
// returns one answer with the records of all steps.
func (l *lookup) followAliases(ctx context.Context, q question) (*chain.Answer, error) {
	all := new(chain.Answer)
	names := []string{q.name}
	var heldBytes int64
	defer func() { l.core.releaseMemory(heldBytes) }()
	for {
		hint := l.cnameHint
		if l.cnameHint = nil; hint != nil {
			l.awaitUntil = time.Time{}
		}
		r, err := l.resolveAndValidate(ctx, q, l.nameLookup != nil || len(names) > 1)
		if hint != nil && errors.Is(err, nameservers.ErrNoServers) {
			r, err = hint, l.validateHint(ctx, q, hint) // no server answers for the target
		}
		if err != nil {
			return nil, err
		}
		all.AddResponse(&r.Response)
		if len(names) > 1 {
			all.Answer = removeDuplicates(all.Answer) // aliases may share a DNAME record
		}
		if !fitsMessage(all) {
			return nil, errTooLarge
		}
		if r.aliasTarget == "" {
			return all, nil
		}
		if len(names) > l.budget.limits.Aliases {
			return nil, &limitError{"Aliases", l.budget.limits.Aliases}
		}
		if slices.Contains(names, r.aliasTarget) {
			return nil, &aliasLoopError{r.aliasTarget}
		}
		l.core.releaseMemory(heldBytes)
		if heldBytes = estimateRecordMemory(all.Answer, all.Authority); !l.core.reserveMemory(heldBytes) {
			heldBytes = 0
			return nil, errTooLarge
		}
		names = append(names, r.aliasTarget)
		q.name = r.aliasTarget
		l.queries.Store(0)
	}
}

// errTooLarge is the error of a question whose answer does not fit a DNS message, or whose aliases exceed the memory
// for waiting questions.
//
// The answer for each alias may fill a message. Even a single received message may grow when it is packed again,
// because not all names that its sender compressed may be compressed (RFC 3597 §4).
var errTooLarge = errors.New("recursor: the answer does not fit a message")

// fitsMessage reports whether the answer a fits in a DNS message of 65,535 bytes, together with a question and an
// OPT record.
func fitsMessage(a *chain.Answer) bool {
	const maxSize = dns.MaxMsgSize - 512
	n := 0
	for _, rrs := range [...][]dns.RR{a.Answer, a.Authority} {
		for _, rr := range rrs {
			n += dns.Len(rr)
		}
	}
	return n <= maxSize || (&dns.Msg{Compress: true, Answer: a.Answer, Ns: a.Authority}).Len() <= maxSize
}

// An aliasLoopError is the error of a question whose aliases form a loop.
type aliasLoopError struct{ name string }

func (e *aliasLoopError) Error() string {
	return fmt.Sprintf("recursor: aliases of %s form a loop", e.name)
}

// countSecurity counts the security status of an answer in the statistics, and returns it. a is the answer to q, or err
// is the error of resolving q. b holds the cost of the question. Validation must be on.
//
// The returned error is err, with one exception: if the answer is secure, but q is a root key sentinel query that must
// be answered with SERVFAIL, it is errRootKeySentinel.
func (c *core) countSecurity(q question, b *questionBudget, a *chain.Answer, err error) (dnssec.Security, error) {
	defer c.validator.LogRootWarnings(time.Now())
	spent, _, _ := b.validation.SpentWork()
	c.validator.Counts.Verifications.Add(int64(spent))
	c.validator.Counts.Synthesized.Add(int64(b.synthesized.Load()))
	bogus := (*dnssec.Error)(nil)
	switch {
	case errors.As(err, &bogus):
		c.recordBogus(q, bogus)
		if bogus.Limit != "" {
			c.countLimitReached(bogus.Limit)
		}
		return dnssec.Bogus, err
	case err != nil || q.cd:
		return dnssec.Unchecked, err
	case a.Status == validate.Secure:
		if err := checkRootKeySentinel(q, c.validator.RootAnchors()); err != nil {
			return dnssec.Secure, err
		}
		c.validator.Counts.Secure.Add(1)
		return dnssec.Secure, nil
	}
	c.validator.Counts.Insecure.Add(1)
	return dnssec.Insecure, nil
}

// countLimitReached counts, for Stats, a question that reached a limit. field is the name of the limit's field in Limits.
func (c *core) countLimitReached(field string) {
	n, ok := c.counters.limited.Load(field)
	if !ok {
		n, _ = c.counters.limited.LoadOrStore(field, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}

// buildResponse returns the response to the client's message m, with the answer a to its question q. If err is not nil,
// the response is SERVFAIL with an extended error that describes err.
func buildResponse(m *dns.Msg, q question, a *chain.Answer, err error) *dns.Msg {
	if err != nil {
		a = &chain.Answer{Rcode: dns.RcodeServerFailure, Options: []dns.EDNS0{extendedError(err)}}
	}
	resp := a.NewResponse(m)
	if spelled := m.Question[0].Name; spelled != q.name && dns.IsFqdn(spelled) {
		for _, rr := range resp.Answer {
			if h := rr.Header(); strings.EqualFold(h.Name, q.name) {
				h.Name = spelled
			}
		}
	}
	return resp
}

// extendedError returns the extended DNS error (RFC 8914) that describes err, the reason for a SERVFAIL response.
func extendedError(err error) *dns.EDNS0_EDE {
	code := dns.ExtendedErrorCodeOther
	if bogus := (*dnssec.Error)(nil); errors.As(err, &bogus) {
		return &dns.EDNS0_EDE{InfoCode: bogus.EDE, ExtraText: bogus.Text}
	}
	if errors.Is(err, errRootKeySentinel) {
		code = dns.ExtendedErrorCodeDNSBogus // the EDE of a validator that does not trust the key
	}
	if errors.Is(err, nameservers.ErrNoServers) || errors.Is(err, errTimeout) {
		code = dns.ExtendedErrorCodeNoReachableAuthority
	}
	return &dns.EDNS0_EDE{InfoCode: code, ExtraText: strings.TrimPrefix(err.Error(), "recursor: ")}
}

// IgnoresOptions declares that EDNS options of a query do not change the answer. A dnshedge.Client that uses the
// Resolver checks for this method. It then shares one exchange between callers whose queries differ only in options,
// and caches the answers.
func (r *Resolver) IgnoresOptions() {}

// NothingBelow reports whether a validated NXDOMAIN response for a name means that no names exist below it (RFC 8020).
// A dnshedge.Client that uses the Resolver then sends no queries for these names.
//
// It is false if validation is off, if the name is invalid, or if Zones or Trust has a zone at or below the name.
func (r *Resolver) NothingBelow(name string) bool {
	c, err := r.initOnce()
	name, ok := dnsname.CanonicalName(name)
	if err != nil || !ok || c.validator == nil {
		return false
	}
	for zone := range c.stubs {
		if dnsname.IsWithin(zone, name) {
			return false
		}
	}
	return !c.validator.HasAnchorWithin(name)
}
