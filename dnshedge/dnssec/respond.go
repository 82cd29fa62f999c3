package dnssec

import (
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/observe"
)

// mergeLink adds a validated link to the answer: it appends the records, and lowers the status of the answer to that of
// the link.
//
// spelled is the name of the question q as the client wrote it. Records of this name get the same spelling.
func (a *answer) mergeLink(l *aliasLink, q question, spelled string) {
	if l.Status != validate.Secure && a.status != validate.Insecure || a.status == validate.Unchecked {
		a.status, a.reason = l.Status, l.Reason
	}
	a.rcode = l.Rcode
	for _, rr := range slices.Concat(l.Answer, l.Authority) {
		if h := rr.Header(); dns.IsFqdn(spelled) && dnsname.ToLower(h.Name) == q.name {
			h.Name = spelled
		}
	}
	a.answer, a.authority = append(a.answer, l.Answer...), append(a.authority, l.Authority...)
}

// buildResponse returns the response to the client's message m, with the answer a to its question q. It sets AD if the
// answer is secure and the client wants AD.
//
// It removes DNSSEC records if m lacks DO. It adds an extended error to an insecure answer with a reason.
func buildResponse(m *dns.Msg, q question, a *answer) *dns.Msg {
	r := &dns.Msg{MsgHdr: dns.MsgHdr{
		Id: m.Id, Response: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true, CheckingDisabled: m.CheckingDisabled, Rcode: a.rcode,
	}, Compress: true, Question: []dns.Question{m.Question[0]}, Answer: a.answer, Ns: a.authority}
	opt := m.IsEdns0()
	do := opt != nil && opt.Do()
	r.AuthenticatedData = a.status == validate.Secure && (do || m.AuthenticatedData) // RFC 6840 §5.8
	if !do {
		r.Answer, r.Ns = chain.WithoutDNSSECRecords(r.Answer, q.qtype), chain.WithoutDNSSECRecords(r.Ns, dns.TypeNone)
	}
	if opt == nil {
		return r
	}
	r.SetEdns0(udpSize, do)
	options := a.options
	if a.reason != nil && a.status == validate.Insecure {
		options = append(slices.Clip(options), extendedError(a.reason))
	}
	r.IsEdns0().Option = options
	return r
}

// ednsOptions returns the EDNS options of a message, or nil if it has no OPT record.
func ednsOptions(r *dns.Msg) []dns.EDNS0 {
	if opt := r.IsEdns0(); opt != nil {
		return opt.Option
	}
	return nil
}

// extendedError returns the extended DNS error (RFC 8914) that describes the reason why an answer is bogus or insecure.
func extendedError(why *validate.Reason) *dns.EDNS0_EDE {
	return &dns.EDNS0_EDE{InfoCode: why.EDE, ExtraText: reasonText(why)}
}

// reasonText returns the reason as one line of text, without the prefix "dnssec: ".
func reasonText(why *validate.Reason) string { return strings.TrimPrefix(why.Error(), "dnssec: ") }

// recordBogus counts a bogus answer to q in the statistics, and logs its reason.
func (c *core) recordBogus(q question, why *validate.Reason) {
	if why.Limit != "" {
		c.countLimit(limitName(why.Limit))
	}
	c.validator.Counts.AddBogus(why.EDE)
	c.events.RecordBogus(c.conf.Logger, "dnssec", observe.RecursorBogus{
		Time: time.Now(), Name: q.name, Type: dns.Type(q.qtype).String(), Reason: observe.ExtendedError(why.EDE), Text: reasonText(why), Zone: why.Zone, Server: why.Server,
	})
}

// limitName converts the name of a limit in a validate.Reason to the name of the same limit in Stats, which is a field
// of recursor.Limits.
func limitName(name string) string {
	if name == "verifications" {
		return "Verifications"
	}
	return name
}

// countSecurity counts an answer as secure or insecure in the statistics.
func (c *core) countSecurity(a *answer) {
	switch a.status {
	case validate.Secure:
		c.validator.Counts.Secure.Add(1)
	case validate.Insecure:
		c.validator.Counts.Insecure.Add(1)
	}
}
