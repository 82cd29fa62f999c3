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

	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
)

// ExchangeContext answers the question of m, which it does not change. The address must be
// empty. The response has m's ID and RA, never AA or AD, and an OPT record if m has one. The
// duration is how long that took.
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
	b := &bill{limits: &c.limits}
	var res *result
	var err error
	if r := c.special(q); r != nil {
		c.count.local.Add(1)
		res = &result{rcode: r.rcode, answer: r.answer, authority: r.authority}
	} else {
		res, err = c.resolve(ctx, q, b)
	}
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
		case errors.As(err, new(*fleet.StuckError)):
			resp = nil
		}
	}
	if t := c.conf.Trace; t != nil && t.Answer != nil {
		info := AnswerInfo{Name: q.name, Type: q.qtype, Queries: int(b.queries.Load() + b.hedges.Load()), Err: err}
		if resp != nil {
			info.Rcode = resp.Rcode
		}
		t.Answer(ctx, info)
	}
	if resp != nil {
		err = nil
	}
	return resp, err
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
	if err != nil {
		opt := resp.Extra[0].(*dns.OPT)
		opt.Option = append(opt.Option, extended(err))
	}
	return resp
}

// extended returns the extended error (RFC 8914) that says why a question failed.
func extended(err error) *dns.EDNS0_EDE {
	code := dns.ExtendedErrorCodeOther
	if errors.Is(err, fleet.ErrNoServers) || errors.Is(err, errLong) {
		code = dns.ExtendedErrorCodeNoReachableAuthority
	}
	return &dns.EDNS0_EDE{InfoCode: code, ExtraText: strings.TrimPrefix(err.Error(), "recursor: ")}
}

// IgnoresOptions says that EDNS options do not change answers. So a Client asks once for callers who differ in nothing else,
// and keeps the answer.
func (r *Resolver) IgnoresOptions() {}
