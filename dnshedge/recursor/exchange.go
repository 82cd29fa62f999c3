package recursor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
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
	c, err := r.setUpOnce()
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
		return buildResponse(m, q, &result{rcode: dns.RcodeRefused}, nil), 0, nil
	}
	resp, err := c.answerQuestion(ctx, m, q)
	return resp, time.Since(start), err
}

// answerQuestion implements ExchangeContext for a valid question q of the message m. It also updates the statistics,
// and calls Trace.Answer.
func (c *core) answerQuestion(ctx context.Context, m *dns.Msg, q question) (*dns.Msg, error) {
	if !c.beginQuestion() {
		return nil, net.ErrClosed
	}
	defer c.running.Done()
	c.counters.questions.Add(1)
	b := &questionBudget{limits: c.limits}
	if c.validator != nil {
		b.validation.Policy = c.validator.Policy()
	}
	asked := q
	asked.do = q.do || c.wantsSignatures()
	var res *result
	var err error
	if r := c.answerSpecialUseName(q); r != nil {
		c.counters.localAnswers.Add(1)
		res = &result{rcode: r.rcode, answer: r.answer, authority: r.authority}
		res.mergeStatus(r)
	} else {
		res, err = c.resolveQuestion(ctx, asked, b)
	}
	security, err := c.countSecurity(q, b, res, err)
	if err != nil {
		c.counters.failures.Add(1)
		if limit := (*limitError)(nil); errors.As(err, &limit) {
			c.countLimit(limit.field)
		}
	}
	resp := buildResponse(m, q, res, err)
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
	if t := c.conf.Trace; t != nil && t.Answer != nil {
		info := AnswerInfo{Name: q.name, Type: q.qtype, Queries: int(b.queries.Load() + b.hedges.Load()), Proofs: int(b.synthesized.Load()), Security: security, Err: err}
		if resp != nil {
			info.Rcode = resp.Rcode
		}
		func() {
			defer c.recoverTracePanic()
			t.Answer(ctx, info)
		}()
	}
	if resp != nil {
		err = nil
	}
	return resp, err
}

// countSecurity counts the security status of an answer in the statistics, and returns the status. res is the answer to
// q, or err is the error of resolving q.
//
// The returned error is err. It is errRootKeySentinel if the client must get SERVFAIL instead of the answer (see
// checkRootKeySentinel).
func (c *core) countSecurity(q question, b *questionBudget, res *result, err error) (dnssec.Security, error) {
	if c.validator == nil {
		return dnssec.Unchecked, err
	}
	defer c.logRootKeyEvents()
	spent, _, _ := b.validation.Spent()
	c.validator.Counts.Verifications.Add(int64(spent))
	c.validator.Counts.Synthesized.Add(int64(b.synthesized.Load()))
	bogus := (*dnssec.Error)(nil)
	switch {
	case errors.As(err, &bogus):
		c.validator.Counts.AddBogus(bogus.EDE)
		c.recordBogus(q.name, q.qtype, bogus)
		if bogus.Limit != "" {
			c.countLimit(bogus.Limit)
		}
		return dnssec.Bogus, err
	case err != nil || q.cd:
		return dnssec.Unchecked, err
	case res.status == validate.Secure:
		if err := checkRootKeySentinel(q, c.validator.RootAnchors()); err != nil {
			return dnssec.Secure, err
		}
		c.validator.Counts.Secure.Add(1)
		return dnssec.Secure, nil
	}
	c.validator.Counts.Insecure.Add(1)
	return dnssec.Insecure, nil
}

// beginQuestion registers a running question, so that Close waits for it. If it returns true, the caller must call
// c.running.Done when the question ends. It returns false if the Resolver is closed.
func (c *core) beginQuestion() bool {
	c.closeMu.RLock()
	defer c.closeMu.RUnlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// countLimit counts, for Stats, a question that reached a limit. field is the name of the limit's field in Limits.
func (c *core) countLimit(field string) {
	n, ok := c.counters.limited.Load(field)
	if !ok {
		n, _ = c.counters.limited.LoadOrStore(field, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}

// udpSize is the UDP payload size in the OPT records of responses, in bytes. A server that sends a response to its
// client must obey the payload size in the client's query instead.
const udpSize = 1232

// buildResponse returns the response to the client's message m, with the answer res to its question q. If err is not
// nil, the response is SERVFAIL with an extended error that describes err.
func buildResponse(m *dns.Msg, q question, res *result, err error) *dns.Msg {
	resp := &dns.Msg{MsgHdr: dns.MsgHdr{
		Id: m.Id, Response: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true, CheckingDisabled: m.CheckingDisabled,
	}, Compress: true, Question: []dns.Question{m.Question[0]}}
	if err == nil {
		resp.Rcode, resp.Answer, resp.Ns = res.rcode, res.answer, res.authority
		resp.AuthenticatedData = res.status == validate.Secure && !q.cd && (q.do || m.AuthenticatedData) // RFC 6840 §5.8
		if !q.do {
			resp.Answer, resp.Ns = chain.WithoutDNSSECRecords(resp.Answer, q.qtype), chain.WithoutDNSSECRecords(resp.Ns, dns.TypeNone)
		}
		if spelled := m.Question[0].Name; spelled != q.name && dns.IsFqdn(spelled) {
			for _, rr := range resp.Answer {
				if h := rr.Header(); strings.EqualFold(h.Name, q.name) {
					h.Name = spelled
				}
			}
		}
	} else {
		resp.Rcode = dns.RcodeServerFailure
	}
	if m.IsEdns0() == nil {
		return resp
	}
	resp.SetEdns0(udpSize, q.do)
	opt := resp.Extra[0].(*dns.OPT)
	switch {
	case err != nil:
		opt.Option = append(opt.Option, extendedError(err))
	case res.reason != nil && res.status == validate.Insecure:
		opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: res.reason.EDE, ExtraText: reasonText(res.reason)})
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
	c, err := r.setUpOnce()
	name, ok := dnsname.ParseCanonical(name)
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
