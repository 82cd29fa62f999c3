package chain

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// An Answer is the answer to a client's question. If the question's name is an alias, it also holds the answers for the
// alias targets, in the order of the chain.
type Answer struct {
	Rcode             int
	Answer, Authority []dns.RR
	Options           []dns.EDNS0      // EDNS options of the response, without the extended error for Reason
	Status            validate.Status  // Secure only if all its parts are
	Reason            *validate.Reason // why the answer is insecure; nil for an ordinary unsigned zone
}

// AddResponse appends s, the response for the next name of the alias chain. The answer is Secure only if all responses
// are. s must have been validated, unless the answer is not validated at all.
func (a *Answer) AddResponse(s *Response) {
	if s.Status != validate.Secure && a.Status != validate.Insecure || a.Status == validate.Unchecked {
		a.Status, a.Reason = s.Status, s.Reason
	}
	a.Rcode = s.Rcode
	a.Answer, a.Authority = append(a.Answer, s.Answer...), append(a.Authority, s.Authority...)
}

// udpSize is the UDP payload size in the OPT records of responses, in bytes. A server that sends a response to its
// client must obey the payload size in the client's query instead.
const udpSize = 1232

// NewResponse returns the response to the client's message m. AD is set if the answer is secure and the client wants
// AD. DNSSEC records are left out if m lacks DO. The response has an OPT record if m has one. The extended error of
// an insecure answer is the field Reason.
func (a *Answer) NewResponse(m *dns.Msg) *dns.Msg {
	r := &dns.Msg{MsgHdr: dns.MsgHdr{
		Id: m.Id, Response: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true, CheckingDisabled: m.CheckingDisabled, Rcode: a.Rcode,
	}, Compress: true, Question: []dns.Question{m.Question[0]}, Answer: a.Answer, Ns: a.Authority}
	opt := m.IsEdns0()
	do := opt != nil && opt.Do()
	r.AuthenticatedData = a.Status == validate.Secure && !m.CheckingDisabled && (do || m.AuthenticatedData) // RFC 6840 §5.8
	if !do {
		r.Answer, r.Ns = withoutDNSSECRecords(a.Answer, m.Question[0].Qtype), withoutDNSSECRecords(a.Authority, dns.TypeNone)
	}
	if opt == nil {
		return r
	}
	r.SetEdns0(udpSize, do)
	options := a.Options
	if a.Reason != nil && a.Status == validate.Insecure {
		options = append(slices.Clip(options), ExtendedError(a.Reason))
	}
	r.IsEdns0().Option = options
	return r
}

// ExtendedError returns the extended DNS error (RFC 8914) that describes the reason why an answer is bogus or insecure.
func ExtendedError(why *validate.Reason) *dns.EDNS0_EDE {
	return &dns.EDNS0_EDE{InfoCode: why.EDE, ExtraText: ReasonText(why)}
}

// ReasonText returns the reason as one line of text, without the prefix "dnssec: ".
func ReasonText(why *validate.Reason) string { return strings.TrimPrefix(why.Error(), "dnssec: ") }

// QuestionTimeout is the maximum time for answering a client's question. It is shorter than the default timeout of a
// Client, so that the client receives the reason of a failure.
const QuestionTimeout = 4500 * time.Millisecond

// WithQuestionDeadline returns a context for answering a client's question. It ends after limit, with the cause
// timeoutErr. The limit is QuestionTimeout, or nine tenths of the time until the deadline of ctx if that is shorter.
//
// The context also ends when life ends, the context of the resolver, with the cause net.ErrClosed. The caller must call
// stop to release resources.
func WithQuestionDeadline(ctx, life context.Context, timeoutErr error) (_ context.Context, limit time.Duration, stop func()) {
	limit = QuestionTimeout
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		limit = min(limit, left-left/10)
	}
	ctx, end := context.WithTimeoutCause(ctx, limit, timeoutErr)
	ctx, cancel := context.WithCancelCause(ctx)
	leave := context.AfterFunc(life, func() { cancel(net.ErrClosed) })
	return ctx, limit, func() {
		leave()
		cancel(nil)
		end()
	}
}

// withoutDNSSECRecords returns the records without RRSIG, NSEC and NSEC3 records, for a client that did not set DO.
// Records of the type qtype remain. If qtype is ANY, all records remain. It does not modify rrs.
func withoutDNSSECRecords(rrs []dns.RR, qtype uint16) []dns.RR {
	proves := func(rr dns.RR) bool {
		switch t := rr.Header().Rrtype; t {
		case dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3:
			return t != qtype && qtype != dns.TypeANY
		}
		return false
	}
	if !slices.ContainsFunc(rrs, proves) {
		return rrs
	}
	return slices.DeleteFunc(slices.Clone(rrs), proves)
}
