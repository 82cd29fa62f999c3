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
	maxAliases = 11   // maximum length of a chain of aliases
	udpSize    = 1232 // UDP payload size in the OPT records of queries, in bytes
)

// errTimeout is the context cause of a question whose time limit (see chain.WithQuestionDeadline) has passed.
var errTimeout = errors.New("no answer in time")

// A question is the name and the type of a DNS question. Its class is IN.
type question struct {
	name  string // absolute, in lower case
	qtype uint16
}

// newMessage returns a query for the question, with the RD and DO flags. cd is the CD flag, which disables validation
// by the upstream.
func (q question) newMessage(cd bool) *dns.Msg {
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Id: dns.Id(), RecursionDesired: true, CheckingDisabled: cd}}
	m.Question = []dns.Question{{Name: q.name, Qtype: q.qtype, Qclass: dns.ClassINET}}
	m.SetEdns0(udpSize, true)
	return m
}

// newMessageFor returns a query for the question, with the RD flag and the EDNS options of the client's message m, and
// with the DO flag. cd is the CD flag, which disables validation by the upstream.
func (q question) newMessageFor(m *dns.Msg, cd bool) *dns.Msg {
	ask := q.newMessage(cd)
	ask.RecursionDesired = m.RecursionDesired
	if opt := m.IsEdns0(); opt != nil {
		ask.IsEdns0().Option = slices.Clone(opt.Option)
	}
	return ask
}

// An answer is the content of the response to a client's question: a validated or unvalidated answer, or the failure
// response of an upstream. Its Options are the EDNS options of the upstream's response.
type answer struct {
	chain.Answer
	signed            bool // the upstream's response had signatures
	isUpstreamFailure bool // the upstream responded with a failure such as SERVFAIL, or with a truncated response
}

// ExchangeContext answers the question of m, which it does not modify. The address must be empty. The duration is the
// time that the answer took.
//
// The response has the ID of m and RA, never AA, and an OPT record if m has an OPT record. RRSIG, NSEC and NSEC3
// records are included only if m has DO or asks for their type (RFC 4035 §3.2.1).
//
// AD is set if the whole answer is secure, m has DO or AD, and m lacks CD (RFC 6840 §5.8).
//
// If the answer is bogus, the response is SERVFAIL with an extended error, and the error is nil. The same holds if the
// keys do not arrive within 4.5 s, or within nine tenths of the time until the deadline of ctx.
//
// If this machine cannot send queries, for example without a network or file descriptors, ExchangeContext returns the
// error of the Exchanger.
//
// A message is not validated if it has CD, a class other than IN, or an opcode other than QUERY. ExchangeContext then
// returns the Exchanger's response without AD.
func (v *Validator) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	c, err := v.initOnce()
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

// answerMessage implements ExchangeContext for the client's message m. If the answer is bogus or does not arrive in
// time, the response is SERVFAIL with an extended error, and the error is nil.
func (c *core) answerMessage(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	if c.validator == nil || m.CheckingDisabled || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 || m.Question[0].Qclass != dns.ClassINET {
		return c.forwardUnvalidated(ctx, m)
	}
	name, ok := dnsname.CanonicalName(m.Question[0].Name)
	if !ok {
		return nil, fmt.Errorf("dnssec: name %q is not a domain name", m.Question[0].Name)
	}
	q := question{name, m.Question[0].Qtype}
	within, _, stop := chain.WithQuestionDeadline(ctx, c.ctx, errTimeout)
	defer stop()
	b := c.newBudget()
	a, err := c.resolveQuestion(within, b, m, q)
	spent, _, _ := b.validation.SpentWork()
	c.validator.Counts.Verifications.Add(int64(spent))
	defer c.validator.LogRootWarnings(time.Now())
	switch why := (*validate.Reason)(nil); {
	case err == nil:
		c.countSecurity(a)
		return a.NewResponse(m), nil
	case c.ctx.Err() != nil: // also if it has ended ctx
		return nil, net.ErrClosed
	case errors.As(err, &why):
		c.recordBogus(q, why)
		return (&chain.Answer{Rcode: dns.RcodeServerFailure, Options: []dns.EDNS0{chain.ExtendedError(why)}}).NewResponse(m), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case within.Err() != nil:
		option := &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeNoReachableAuthority, ExtraText: errTimeout.Error()}
		return (&chain.Answer{Rcode: dns.RcodeServerFailure, Options: []dns.EDNS0{option}}).NewResponse(m), nil
	}
	return nil, err
}

// sendToExchanger sends the query m to the Exchanger and returns a copy of the response, which the caller may change.
// address selects the upstream. If it is "", the Exchanger selects the upstream.
//
// The error is not nil if the response or one of its records is nil, or if the Exchanger or a method of a record
// panics.
func (c *core) sendToExchanger(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, err error) {
	defer usercode.RecoverPanic("Exchanger", &err)
	c.counters.sentQueries.Add(1)
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

// forwardUnvalidated returns the Exchanger's response to m without validation, and with AD cleared.
func (c *core) forwardUnvalidated(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	r, err := c.sendToExchanger(ctx, m, "")
	if err != nil {
		return nil, err
	}
	r.AuthenticatedData = false
	return r, nil
}

// resolveQuestion sends q, the question of m, to one upstream after the other until an answer is valid, and returns
// that answer. If all answers are bogus, the error is a *validate.Reason. With Trust.Report, it returns the first bogus
// answer instead.
//
// If no answer is bogus, it may return the failure response of an upstream.
func (c *core) resolveQuestion(ctx context.Context, b *questionBudget, m *dns.Msg, q question) (*answer, error) {
	p := &upstreamPlan{core: c, question: q}
	var bogus *validate.Reason // the first
	var shown, failure *answer // the first bogus answer as received; the failure of an upstream
	var err error
	for unsigned := false; bogus == nil || bogus.Limit == "" && ctx.Err() == nil; {
		at, ok := p.nextAttempt(unsigned)
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
		case bogus == nil && (ctx.Err() != nil || at.address == ""): // the Exchanger has tried its other upstreams
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

// tryUpstream makes the attempt at: it sends q to the upstream, and returns the validated answer. m is the client's
// message. If the answer is bogus, the error is a *validate.Reason, and the answer holds the unvalidated records for
// Trust.Report. For a failure response, the answer has isUpstreamFailure set, and the error is nil.
func (c *core) tryUpstream(ctx context.Context, b *questionBudget, m *dns.Msg, q question, at upstreamAttempt) (*answer, error) {
	if err := b.spendQuery(q); err != nil {
		return nil, err
	}
	r, err := c.sendToUpstream(ctx, q.newMessageFor(m, at.cd), at)
	if err != nil {
		return nil, err
	}
	came := &answer{Answer: chain.Answer{Rcode: r.Rcode, Answer: r.Answer, Authority: r.Ns}, signed: hasSignatures(r)}
	if opt := r.IsEdns0(); opt != nil {
		came.Options = opt.Option
	}
	if !isCompleteAnswer(r) {
		came.Answer.Answer, came.Authority, came.isUpstreamFailure = nil, nil, true
		if r.Truncated { // a truncated answer is incomplete, whatever its rcode
			came.Rcode = dns.RcodeServerFailure
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
			c.testAfterUnsignedAnswer(q)
		}
		return came, why
	}
	if err != nil {
		return nil, err
	}
	a := &answer{Answer: chain.Answer{Options: came.Options}}
	for _, l := range links {
		a.AddResponse(&l.Response)
	}
	restoreCase(q.name, m.Question[0].Name, a.Answer.Answer, a.Authority)
	if len(links) > 1 { // links may share a DNAME record or a proof
		a.Answer.Answer, a.Authority = dns.Dedup(a.Answer.Answer, nil), dns.Dedup(a.Authority, nil)
	}
	return a, nil
}

// followAliases splits the response r to q into the parts that are validated separately: one link for the name of the
// question, and one for the target of each alias.
//
// If r lacks the records of a target, it sends a query for them to the upstream of the attempt at. It also starts the
// key lookups that the validation of each link needs.
//
// The error is a *validate.Reason if the aliases form a loop or exceed maxAliases.
func (c *core) followAliases(ctx context.Context, b *questionBudget, q question, r *dns.Msg, at upstreamAttempt) (links []*aliasLink, err error) {
	names := []string{q.name}
	for name := q.name; ; {
		l := newAliasLink(r, name, q.qtype)
		if l.isEmpty && len(links) > 0 {
			next := question{name, q.qtype}
			if err := b.spendQuery(next); err != nil {
				return nil, err
			}
			if r, err = c.sendToUpstream(ctx, next.newMessage(at.cd), at); err != nil {
				return nil, err
			}
			if l = newAliasLink(r, name, q.qtype); !isCompleteAnswer(r) {
				return nil, fmt.Errorf("dnssec: the upstream answers %s for %s, an alias of %s", dns.RcodeToString[r.Rcode], q.name, name)
			}
		}
		links = append(links, l)
		if l.Zone = c.validator.AnchorZone(name, q.qtype); l.Zone != nil {
			c.validator.PrefetchChain(b, &l.Response)
		}
		switch {
		case l.aliasTarget == "":
			return links, nil
		case len(names) > maxAliases, slices.Contains(names, l.aliasTarget):
			return nil, &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: "aliases do not end", Name: q.name, Type: q.qtype, Limit: "Aliases"}
		}
		name = l.aliasTarget
		names = append(names, name)
	}
}

// validateLinks validates each link of an alias chain and sets its status. From secure links, it removes the records
// without valid signatures. If a link is bogus, the error is a *validate.Reason.
//
// If Trust.Report is set, the caller returns the answer in spite of this error. validateLinks then uses only a quarter
// of the time until the deadline of ctx, and leaves the rest for returning the answer. If keys do not arrive in this
// time, or cannot be queried because of a local error, the error is a *validate.Reason, too.
func (c *core) validateLinks(ctx context.Context, b *questionBudget, links []*aliasLink) error {
	if end, ok := ctx.Deadline(); ok && c.conf.Trust.Report { // leave time to answer without validation
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
		case c.conf.Trust.Report && localerror.IsLocal(err):
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
