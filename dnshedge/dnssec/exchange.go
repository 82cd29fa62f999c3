package dnssec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

const (
	maxAliases = 11   // that an answer may have
	udpSize    = 1232 // bytes of a datagram that responses are said to fit
)

// errTimeout is why a question ends that takes too long.
var errTimeout = errors.New("no answer in time")

// question is what is asked.
type question struct {
	name  string // absolute, in lower case
	qtype uint16
}

// newMessage returns a message that asks for it, with signatures. With cd, the upstream need not validate.
func (q question) newMessage(cd bool) *dns.Msg {
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Id: dns.Id(), RecursionDesired: true, CheckingDisabled: cd}}
	m.Question = []dns.Question{{Name: q.name, Qtype: q.qtype, Qclass: dns.ClassINET}}
	m.SetEdns0(udpSize, true)
	return m
}

// newMessageLike returns a message that asks for it as a caller's does, whose EDNS options go with it.
func (q question) newMessageLike(m *dns.Msg, cd bool) *dns.Msg {
	ask := q.newMessage(cd)
	ask.RecursionDesired = m.RecursionDesired
	if opt := m.IsEdns0(); opt != nil {
		ask.IsEdns0().Option = slices.Clone(opt.Option)
	}
	return ask
}

// answer is what there is to tell a caller.
type answer struct {
	rcode             int
	answer, authority []dns.RR
	options           []dns.EDNS0
	status            validate.Status  // of that which is worst
	reason            *validate.Reason // it is insecure; may be nil
	signed            bool             // there were signatures in it when it came
	isUpstreamFailure bool             // it is a failure that an upstream reports
}

// ExchangeContext answers the question of m, which it does not change. The address must be empty. The response has m's ID and RA, never AA,
// and an OPT record if m has one; AD if all of it was validated, m has DO or AD, and not CD (RFC 6840 §5.8); RRSIG, NSEC and NSEC3 records only if m has
// DO, or asks for them (RFC 4035 §3.2.1).
//
// An answer that is bogus, or whose keys do not come within 4.5 s or nine tenths of the time that ctx leaves, is SERVFAIL, with an extended error that says
// why, and no error. If keys cannot be asked for because of this machine, as without a network or descriptors, the error is the Exchanger's. What
// the Exchanger says of a message with CD, of another class than IN or another opcode than QUERY is passed on as it is, without AD.
func (v *Validator) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	c, err := v.setUpOnce()
	if err != nil {
		return nil, 0, err
	}
	if address != "" {
		return nil, 0, fmt.Errorf("dnssec: address is %q; want none", address)
	}
	if !c.beginQuestion() {
		return nil, 0, net.ErrClosed
	}
	defer c.running.Done()
	c.counters.questions.Add(1)
	start := time.Now()
	r, err := c.answerMessage(ctx, m)
	if err != nil || r.Rcode == dns.RcodeServerFailure {
		c.counters.failures.Add(1)
	}
	return r, time.Since(start), err
}

// answerMessage answers m.
func (c *core) answerMessage(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	if c.validator == nil || m.CheckingDisabled || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 || m.Question[0].Qclass != dns.ClassINET {
		return c.forwardUnvalidated(ctx, m)
	}
	name, ok := dnsname.ParseCanonical(m.Question[0].Name)
	if !ok {
		return nil, fmt.Errorf("dnssec: name %q is not a domain name", m.Question[0].Name)
	}
	q := question{name, m.Question[0].Qtype}
	within, _, stop := chain.WithQuestionDeadline(ctx, c.ctx, errTimeout)
	defer stop()
	b := c.newBudget()
	a, err := c.resolveQuestion(within, b, m, q)
	spent, _, _ := b.validation.Spent()
	c.validator.Counts.Verifications.Add(int64(spent))
	defer c.events.CheckRoot(c.conf.Logger, "dnssec", time.Now(), c.validator.Fill)
	switch why := (*validate.Reason)(nil); {
	case err == nil:
		c.countSecurity(a)
		return buildResponse(m, q, a), nil
	case c.ctx.Err() != nil: // whatever that has ended first
		return nil, net.ErrClosed
	case errors.As(err, &why):
		c.recordBogus(q, why)
		return buildResponse(m, q, &answer{rcode: dns.RcodeServerFailure, options: []dns.EDNS0{extendedError(why)}}), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case within.Err() != nil:
		option := &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeNoReachableAuthority, ExtraText: errTimeout.Error()}
		return buildResponse(m, q, &answer{rcode: dns.RcodeServerFailure, options: []dns.EDNS0{option}}), nil
	}
	return nil, err
}

// sendToExchanger puts a question to the Exchanger, and returns a copy of its response, which may be changed. A panic of the Exchanger, or of a record in the response
// while it is copied, is an error, and so is a nil record.
func (c *core) sendToExchanger(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, err error) {
	defer usercode.Recover("Exchanger", &err)
	c.counters.asked.Add(1)
	r, _, err = c.conf.Exchanger.ExchangeContext(ctx, m, address)
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return nil, errors.New("dnssec: the Exchanger returned neither a response nor an error")
	}
	if r, err = usercode.CopyMessage(r); err != nil {
		return nil, fmt.Errorf("dnssec: response of the Exchanger: %w", err)
	}
	return r, nil
}

// forwardUnvalidated passes on what is not validated.
func (c *core) forwardUnvalidated(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	r, err := c.sendToExchanger(ctx, m, "")
	if err != nil {
		return nil, err
	}
	r.AuthenticatedData = false
	return r, nil
}

// resolveQuestion answers q, which m asks, and asks others if what comes is bogus. The error is then a *validate.Reason.
func (c *core) resolveQuestion(ctx context.Context, b *questionBudget, m *dns.Msg, q question) (*answer, error) {
	t := &upstreamTurns{core: c, name: q.name}
	var bogus *validate.Reason // the first
	var shown, failure *answer // what was bogus, as it came; what an upstream reports
	var err error
	for unsigned := false; bogus == nil || bogus.Limit == "" && ctx.Err() == nil; {
		at, ok := t.nextTurn(unsigned)
		if !ok {
			break
		}
		var a *answer
		if a, err = c.tryUpstream(ctx, b, m, q, at); err == nil && !a.isUpstreamFailure {
			return a, nil
		}
		if err == nil {
			failure = a
		}
		why, is := err.(*validate.Reason)
		switch {
		case is && bogus == nil:
			bogus, shown, unsigned = why, a, a != nil && !a.signed
		case is:
			unsigned = a != nil && !a.signed
		case bogus == nil && (ctx.Err() != nil || at.address == ""): // the Exchanger has asked others
			return failure, err
		}
	}
	if bogus == nil {
		if failure != nil {
			return failure, nil
		}
		return nil, err
	}
	if c.conf.Trust.Report && shown != nil {
		c.recordBogus(q, bogus)
		return shown, nil
	}
	return nil, c.explainBogus(ctx, q, bogus)
}

// tryUpstream puts q to one and validates what comes. If that is bogus, the error is a *validate.Reason, and the answer is what came.
func (c *core) tryUpstream(ctx context.Context, b *questionBudget, m *dns.Msg, q question, at upstreamTurn) (*answer, error) {
	if err := b.spendQuery(q); err != nil {
		return nil, err
	}
	r, err := c.sendInTurn(ctx, q.newMessageLike(m, at.cd), at)
	if err != nil {
		return nil, err
	}
	came := &answer{rcode: r.Rcode, answer: r.Answer, authority: r.Ns, options: ednsOptions(r), status: validate.Unchecked, signed: hasSignatures(r)}
	if !isUsable(r) {
		came.answer, came.authority, came.isUpstreamFailure = nil, nil, true
		if r.Truncated { // whatever its rcode: there was more than what came
			came.rcode = dns.RcodeServerFailure
		}
		return came, nil
	}
	links, err := c.followAliases(ctx, b, q, r, at)
	if err == nil {
		err = c.validateLinks(ctx, b, links)
	}
	if why, is := err.(*validate.Reason); is {
		c.validator.Counts.Rejected.Add(1)
		if !came.signed {
			c.noteUnsigned(q)
		}
		return came, why
	}
	if err != nil {
		return nil, err
	}
	a := &answer{options: came.options}
	for _, l := range links {
		a.mergeLink(l, q, m.Question[0].Name)
	}
	if len(links) > 1 { // a DNAME record may make several of them, and one proof serve two; Dedup changes TTLs
		a.answer, a.authority = dns.Dedup(a.answer, nil), dns.Dedup(a.authority, nil)
	}
	return a, nil
}

// followAliases returns what a response says of the name of a question and those that it is an alias of. Of an alias to whose end the
// response does not lead, the same is asked.
func (c *core) followAliases(ctx context.Context, b *questionBudget, q question, r *dns.Msg, at upstreamTurn) (followAliases []*aliasLink, err error) {
	names := []string{q.name}
	for name := q.name; ; {
		l := newAliasLink(r, name, q.qtype)
		if l.isEmpty && len(followAliases) > 0 {
			next := question{name, q.qtype}
			if err := b.spendQuery(next); err != nil {
				return nil, err
			}
			if r, err = c.sendInTurn(ctx, next.newMessage(at.cd), at); err != nil {
				return nil, err
			}
			if l = newAliasLink(r, name, q.qtype); !isUsable(r) {
				return nil, fmt.Errorf("dnssec: the upstream answers %s for %s, an alias of %s", dns.RcodeToString[r.Rcode], q.name, name)
			}
		}
		followAliases = append(followAliases, l)
		if l.Zone = c.validator.AnchorZone(name, q.qtype); l.Zone != nil {
			c.validator.PrefetchChain(b, &l.Response)
		}
		switch {
		case l.aliasTarget == "":
			return followAliases, nil
		case len(names) > maxAliases, slices.Contains(names, l.aliasTarget):
			return nil, &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: "aliases do not end", Name: q.name, Type: q.qtype, Limit: "Aliases"}
		}
		name = l.aliasTarget
		names = append(names, name)
	}
}

// validateLinks finds out what links are worth, and leaves of them what is proven. The error is a *validate.Reason if one is bogus.
func (c *core) validateLinks(ctx context.Context, b *questionBudget, links []*aliasLink) error {
	if end, ok := ctx.Deadline(); ok && c.conf.Trust.Report { // who has failures reported only does not wait for keys until it is too late
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, time.Until(end)/4, errTimeout)
		defer stop()
	}
	for _, l := range links {
		if l.Zone == nil {
			l.Status = validate.Insecure
			continue
		}
		err := c.validator.ValidateResponse(ctx, b, &l.Response)
		switch {
		case c.conf.Trust.Report && localerror.Is(err):
			return &validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "no keys: " + err.Error(), Zone: l.Zone.Name, Name: l.Name, Type: l.Type}
		case errors.Is(err, errTimeout) && c.conf.Trust.Report:
			return &validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "no keys in time", Zone: l.Zone.Name, Name: l.Name, Type: l.Type}
		case err != nil:
			return err
		case l.Status == validate.Bogus:
			return l.Reason
		}
	}
	return nil
}
