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
	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
)

// ExchangeContext answers the question of m, which it does not change. The address must be
// empty. The response has m's ID and RA, never AA, and an OPT record if m has one; AD if all of it was validated, m has DO
// or AD, and not CD (RFC 6840 §5.8). The duration is how long that took.
//
// A question that cannot be answered, or not within 4.5 s or nine tenths of the time that ctx
// leaves, has the response SERVFAIL, with an extended error that says why, and no error. So
// has one whose answer does not fit a message. An error is returned if ctx ends, if nothing can be
// sent to a zone's servers, as without a network, if the Resolver is closed or has a field that is
// invalid, or if m is not a question: it must have opcode QUERY and one question, for a type that data
// has, or ANY. A question of another class than IN has the response REFUSED.
//
// No EDNS option changes an answer.
func (r *Resolver) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	c, err := r.setup()
	if err != nil {
		return nil, 0, err
	}
	if address != "" {
		return nil, 0, fmt.Errorf("recursor: address is %q; want none", address)
	}
	q, err := newQuestion(m)
	if err != nil {
		return nil, 0, err
	}
	start := time.Now()
	if m.Question[0].Qclass != dns.ClassINET {
		return respond(m, q, &result{rcode: dns.RcodeRefused}, nil), 0, nil
	}
	resp, err := c.exchange(ctx, m, q)
	return resp, time.Since(start), err
}

// exchange answers q, which m asks.
func (c *core) exchange(ctx context.Context, m *dns.Msg, q question) (*dns.Msg, error) {
	if !c.begin() {
		return nil, net.ErrClosed
	}
	defer c.running.Done()
	c.count.questions.Add(1)
	b := &bill{limits: c.limits}
	if c.chains != nil {
		b.work.Policy = c.chains.Policy()
	}
	asked := q
	asked.do = q.do || c.signed()
	var res *result
	var err error
	if r := c.special(q); r != nil {
		c.count.local.Add(1)
		res = &result{rcode: r.rcode, answer: r.answer, authority: r.authority}
		res.add(r)
	} else {
		res, err = c.resolve(ctx, asked, b)
	}
	security, err := c.secured(q, b, res, err)
	if err != nil {
		c.count.failures.Add(1)
		if limit := (*limitError)(nil); errors.As(err, &limit) {
			c.limited(limit.field)
		}
	}
	resp := respond(m, q, res, err)
	if err != nil {
		switch {
		case c.ctx.Err() != nil:
			resp, err = nil, net.ErrClosed
		case ctx.Err() != nil:
			resp, err = nil, context.Cause(ctx)
		case isStuck(err):
			resp = nil
		}
	}
	if t := c.conf.Trace; t != nil && t.Answer != nil {
		info := AnswerInfo{Name: q.name, Type: q.qtype, Queries: int(b.queries.Load() + b.hedges.Load()), Proofs: int(b.known.Load()), Security: security, Err: err}
		if resp != nil {
			info.Rcode = resp.Rcode
		}
		func() {
			defer c.recoverTrace()
			t.Answer(ctx, info)
		}()
	}
	if resp != nil {
		err = nil
	}
	return resp, err
}

// secured returns what the answer to a caller's question is worth, and counts it.
func (c *core) secured(q question, b *bill, res *result, err error) (dnssec.Security, error) {
	if c.chains == nil {
		return dnssec.Unchecked, err
	}
	defer c.watch()
	spent, _, _ := b.work.Spent()
	c.chains.Counts.Verifications.Add(int64(spent))
	c.chains.Counts.Synthesized.Add(int64(b.known.Load()))
	bogus := (*dnssec.Error)(nil)
	switch {
	case errors.As(err, &bogus):
		c.chains.Counts.Bogus(bogus.EDE)
		c.note(q.name, q.qtype, bogus)
		if bogus.Limit != "" {
			c.limited(bogus.Limit)
		}
		return dnssec.Bogus, err
	case err != nil || q.cd:
		return dnssec.Unchecked, err
	case res.status == validate.Secure:
		if err := sentinel(q, c.chains.RootAnchors()); err != nil {
			return dnssec.Secure, err
		}
		c.chains.Counts.Secure.Add(1)
		return dnssec.Secure, nil
	}
	c.chains.Counts.Insecure.Add(1)
	return dnssec.Insecure, nil
}

// begin reports whether a question may begin. If so, it must end with running.Done.
func (c *core) begin() bool {
	c.closeMu.RLock()
	defer c.closeMu.RUnlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// limited counts a question that ended at a limit.
func (c *core) limited(field string) {
	n, ok := c.count.limited.Load(field)
	if !ok {
		n, _ = c.count.limited.LoadOrStore(field, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}

// udpSize is the longest datagram that responses are said to fit, in bytes. Whoever sends one
// goes by what the caller said.
const udpSize = 1232

// respond makes the response to m, which asks q.
func respond(m *dns.Msg, q question, res *result, err error) *dns.Msg {
	resp := &dns.Msg{MsgHdr: dns.MsgHdr{
		Id: m.Id, Response: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true, CheckingDisabled: m.CheckingDisabled,
	}, Compress: true, Question: []dns.Question{m.Question[0]}}
	if err == nil {
		resp.Rcode, resp.Answer, resp.Ns = res.rcode, res.answer, res.authority
		resp.AuthenticatedData = res.status == validate.Secure && !q.cd && (q.do || m.AuthenticatedData) // RFC 6840 §5.8
		if !q.do {
			resp.Answer, resp.Ns = chain.WithoutProofs(resp.Answer, q.qtype), chain.WithoutProofs(resp.Ns, dns.TypeNone)
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
		opt.Option = append(opt.Option, extended(err))
	case res.why != nil && res.status == validate.Insecure:
		opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: res.why.EDE, ExtraText: textOf(res.why)})
	}
	return resp
}

// extended returns the extended error (RFC 8914) that says why a question failed.
func extended(err error) *dns.EDNS0_EDE {
	code := dns.ExtendedErrorCodeOther
	if bogus := (*dnssec.Error)(nil); errors.As(err, &bogus) {
		return &dns.EDNS0_EDE{InfoCode: bogus.EDE, ExtraText: bogus.Text}
	}
	if errors.Is(err, errSentinel) {
		code = dns.ExtendedErrorCodeDNSBogus // as of a validator for which the key is not, or is, an anchor
	}
	if errors.Is(err, fleet.ErrNoServers) || errors.Is(err, errLong) {
		code = dns.ExtendedErrorCodeNoReachableAuthority
	}
	return &dns.EDNS0_EDE{InfoCode: code, ExtraText: strings.TrimPrefix(err.Error(), "recursor: ")}
}

// IgnoresOptions says that EDNS options do not change answers. So a Client asks once for callers who differ in nothing else,
// and keeps the answer.
func (r *Resolver) IgnoresOptions() {}

// NothingBelow reports whether a name of which a response with AD says that it does not exist has no names below it (RFC 8020): the
// Resolver validates, and of no name below does it know otherwise, by Zones or Trust. A Client above it asks for none then.
func (r *Resolver) NothingBelow(name string) bool {
	c, err := r.setup()
	name, ok := dnsname.Canonical(name)
	if err != nil || !ok || c.chains == nil {
		return false
	}
	for zone := range c.stubs {
		if dnsname.Within(zone, name) {
			return false
		}
	}
	return !c.chains.BeginBelow(name)
}
