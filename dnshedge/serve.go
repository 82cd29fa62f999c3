package dnshedge

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

var _ dns.Handler = (*Client)(nil)

// ServeDNS answers the message r of a DNS client and writes the response to w, so that a Client is a dns.Handler. Call
// Validate first, to find an invalid field. If there is no answer, the response code is:
//
//   - SERVFAIL, with an extended error (RFC 8914), if no server responds, too many questions wait, or the Client is
//     invalid;
//   - NOTIMP if the opcode is not QUERY;
//   - FORMERR if r is malformed, does not have exactly one question, or asks for a type that no data can have (RFC
//     6895);
//   - BADVERS for another EDNS version than 0 (RFC 6891);
//   - REFUSED for zone transfers and signed messages (TSIG, SIG(0)).
//
// Over UDP, a response is truncated if it is longer than the client accepts, or longer than 1232 bytes (RFC 9715). Over
// TLS, responses to queries with EDNS are padded (RFC 8467).
//
// At most twice MaxInFlight questions wait over UDP, and as many over other protocols. When one more arrives, a waiting
// question gets SERVFAIL:
//
//   - over UDP, the oldest question of the domain (the last two labels) with the most waiting questions;
//   - over other protocols, the oldest question of the client (an IPv4 address or an IPv6 /64 network) with the most
//     waiting questions.
func (c *Client) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	p := messageBuffers.Get().(*messageBuffer)
	q, limit := (*wire.Query)(nil), 0
	if p.b, q, limit = c.appendResponse(p.b[:0], &p.q, w, r); q != nil {
		messageBuffers.Put(p) // not needed while the servers are asked
		l, subqueueKey := c.core.clientQueues.selectQueue(w.RemoteAddr(), q)
		out, _ := c.core.enqueueQuery(context.Background(), l, subqueueKey).answerQueuedQuery(context.Background(), q)
		p = messageBuffers.Get().(*messageBuffer)
		p.b = appendResult(p.b[:0], q, out, limit)
	}
	defer messageBuffers.Put(p)
	if tls, ok := w.(dns.ConnectionStater); ok && tls.ConnectionState() != nil {
		p.b = wire.PadResponse(p.b, 0)
	}
	// Middleware overrides WriteMsg. If writing fails, the client is gone and needs no answer.
	if _, own := w.(dns.ConnectionStater); own {
		_, _ = w.Write(p.b)
		return
	}
	m := new(dns.Msg)
	if err := m.Unpack(p.b); err != nil {
		_, _ = w.Write(p.b) // a record that package dns cannot read
		return
	}
	m.Compress = true
	_ = w.WriteMsg(m)
}

// A messageBuffer is reusable memory for a parsed query (q) and for a response in wire format (b).
type messageBuffer struct {
	q wire.Query
	b []byte
}

var messageBuffers = sync.Pool{New: func() any { return &messageBuffer{b: make([]byte, 0, 2048)} }}

// appendResponse appends to b, in wire format, the response to a client's message r, if it is an error or a cached
// answer. Otherwise it returns b and the question ask, to answer with at most limit bytes. q is memory for the parsed
// query.
func (c *Client) appendResponse(b []byte, q *wire.Query, w dns.ResponseWriter, r *dns.Msg) (out []byte, ask *wire.Query, limit int) {
	if code := rcodeForMessage(r); code != dns.RcodeSuccess {
		return appendRefusal(b, r, code), nil, 0
	}
	if err := q.SetMessage(r); err != nil {
		return appendRefusal(b, r, rcodeForParseError(err)), nil, 0
	}
	limit = wire.MaxMsg
	if _, ok := w.RemoteAddr().(*net.UDPAddr); ok {
		limit = min(q.Size, wire.DefaultUDPSize)
	}
	forwarded, err := q.WithForwardedOptions()
	if err != nil {
		return appendRefusal(b, r, rcodeForParseError(err)), nil, 0
	}
	q = forwarded
	core, err := c.init()
	if err != nil {
		return q.AppendFailure(b, dns.RcodeServerFailure, limit, wire.EDE{Code: edeOther}), nil, 0
	}
	if f, ok := core.answerFromFreshCache(context.Background(), q); ok {
		return f.appendResponse(b, q, limit), nil, 0
	}
	own := *q // a copy, because a flight may keep it
	return b, &own, limit
}

// rcodeForMessage returns NOERROR if a client's message may be forwarded. Otherwise it returns the response code with
// which to reject the message. It checks the opcode, the number of questions, the type of the question, and whether
// there is a TSIG signature.
func rcodeForMessage(r *dns.Msg) int {
	switch {
	case r.Opcode != dns.OpcodeQuery:
		return dns.RcodeNotImplemented
	case len(r.Question) != 1:
		return dns.RcodeFormatError
	case r.IsTsig() != nil:
		return dns.RcodeRefused
	}
	return rcodeForType(r.Question[0].Qtype)
}

// rcodeForType returns NOERROR if a question of type t may be forwarded. Otherwise it returns the response code with
// which to reject the question. It is REFUSED for zone transfers (AXFR, IXFR), and FORMERR for other types that no data
// can have (RFC 6895 §3.1).
func rcodeForType(t uint16) int {
	switch {
	case t == dns.TypeAXFR || t == dns.TypeIXFR:
		return dns.RcodeRefused
	case !wire.IsQuestionType(t):
		return dns.RcodeFormatError
	}
	return dns.RcodeSuccess
}

// rcodeForParseError returns the response code for a query whose parsing failed with err: BADVERS for an unknown EDNS
// version, REFUSED for a signed message, and FORMERR for any other error.
func rcodeForParseError(err error) int {
	switch {
	case errors.Is(err, wire.ErrVersion):
		return dns.RcodeBadVers
	case errors.Is(err, wire.ErrSigned):
		return dns.RcodeRefused
	}
	return dns.RcodeFormatError
}

// appendRefusal appends to b, in wire format, a response that rejects r with the given response code. The response has
// no records, except an OPT record if r has one. It is only a header with FORMERR if the question cannot be packed.
func appendRefusal(b []byte, r *dns.Msg, code int) []byte {
	m := new(dns.Msg)
	m.SetRcode(r, code)
	if r.IsEdns0() != nil {
		m.SetEdns0(wire.DefaultUDPSize, false) // RFC 6891 §7
	}
	out, err := m.Pack()
	if err != nil {
		m.Rcode = dns.RcodeFormatError
		out, _ = (&dns.Msg{MsgHdr: m.MsgHdr}).Pack() // a header always packs
	}
	return append(b, out...)
}

// appendResult appends to b, in wire format, the response to q: the answer in r, or SERVFAIL with an extended error
// (RFC 8914) if r has an error. An answer of more than limit bytes is truncated: it has the flag TC and no records.
func appendResult(b []byte, q *wire.Query, r *result, limit int) []byte {
	if r.err == nil {
		return appendForwarderResponse(b, q, r.answer, r.view, limit)
	}
	code := uint16(edeNetwork)
	switch t := (*Error)(nil); {
	case errors.Is(r.err, ErrTooManyQuestions):
		code = edeOther // no fault of the servers or the network
	case errors.As(r.err, &t) && t.Timeout():
		code = edeNoReachable
	}
	return q.AppendFailure(b, dns.RcodeServerFailure, limit, wire.EDE{Code: code})
}

// appendResponse appends to b, in wire format, the cached answer as the response to q, and returns the extended slice.
// A response of more than limit bytes is truncated. f must contain a response, and not a cached error.
func (f *cachedAnswer) appendResponse(b []byte, q *wire.Query, limit int) []byte {
	a, view, _ := f.toAnswer(q)
	return appendForwarderResponse(b, q, a, view, limit)
}

// appendForwarderResponse appends to b, in wire format, the response to q with the answer a and the flags of a
// forwarder (RA, not AA). view sets how a is presented, for example its TTLs. A response of more than limit bytes is
// truncated.
func appendForwarderResponse(b []byte, q *wire.Query, a *wire.Answer, view wire.ResponseOptions, limit int) []byte {
	start := len(b)
	b = a.Append(b, q, view, limit)
	wire.SetForwarderFlags(b[start:])
	return b
}
