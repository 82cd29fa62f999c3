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

// ServeDNS answers r, so that a Client is a dns.Handler. The response code of a message that is not answered is:
//
//   - SERVFAIL, with an extended error (RFC 8914), if the question has no answer;
//   - FORMERR or NOTIMP if the message is not a question, has records other than OPT, or has a type that no data can
//     have (RFC 6895);
//   - REFUSED for zone transfers and signed messages (TSIG, SIG(0)).
//
// Over UDP, a response is truncated if it is longer than the client accepts, or longer than 1232 bytes (RFC 9715). If w
// is a dns.ConnectionStater with a TLS state, responses to queries with EDNS are padded (RFC 8467).
//
// At most twice MaxInFlight questions wait at a time over UDP, and as many over streams, including questions that are
// equal. When one more question comes, a waiting question gets SERVFAIL.
//
// Over UDP it is the oldest question of the domain with the most questions. Over other protocols, where addresses
// cannot be forged, it is the oldest question of the client with the most questions.
//
// A Client with an invalid field answers SERVFAIL: call Validate before serving.
//
// The response is written with w.Write if w is a dns.Server's own writer. Otherwise it is written with w.WriteMsg,
// which middleware overrides.
func (c *Client) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	p := messageBuffers.Get().(*messageBuffer)
	q, limit := (*wire.Query)(nil), 0
	if p.b, q, limit = c.appendResponse(p.b[:0], &p.q, w, r); q != nil {
		messageBuffers.Put(p) // not needed while the servers are asked
		l, subqueueKey := c.core.clientQueues.queueFor(w.RemoteAddr(), q)
		out, _ := c.core.enqueueQuery(context.Background(), l, subqueueKey).answerQueuedQuery(context.Background(), q)
		p = messageBuffers.Get().(*messageBuffer)
		p.b = appendResult(p.b[:0], q, out, limit)
	}
	defer messageBuffers.Put(p)
	if tls, ok := w.(dns.ConnectionStater); ok && tls.ConnectionState() != nil {
		p.b = wire.PadResponse(p.b, 0)
	}
	// If writing fails, the client is gone and needs no answer.
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

// A messageBuffer is memory for a query or its response in wire format, which a pool reuses.
type messageBuffer struct {
	q wire.Query
	b []byte
}

var messageBuffers = sync.Pool{New: func() any { return &messageBuffer{b: make([]byte, 0, 2048)} }}

// appendResponse answers the message r of a DNS client from the cache or with an error code, if no server must be
// queried. It appends the response in wire format to b, and returns the result as out, with a nil ask. Otherwise ask is
// the question for the servers, and limit the maximum length of the response in bytes.
//
// q is memory for the parsed query, which the caller may reuse after the call. w is only used for the client's address.
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

// rcodeForMessage checks whether a client's message may be forwarded. It returns success if so, and otherwise the
// response code with which to reject the message.
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

// rcodeForType checks whether a question of type t may be forwarded. It returns success if so, and otherwise the
// response code with which to reject the question.
func rcodeForType(t uint16) int {
	switch {
	case t == dns.TypeAXFR || t == dns.TypeIXFR:
		return dns.RcodeRefused
	case !wire.IsQuestionType(t):
		return dns.RcodeFormatError
	}
	return dns.RcodeSuccess
}

// rcodeForParseError returns the response code for a query whose parsing failed with err.
func rcodeForParseError(err error) int {
	switch {
	case errors.Is(err, wire.ErrVersion):
		return dns.RcodeBadVers
	case errors.Is(err, wire.ErrSigned):
		return dns.RcodeRefused
	}
	return dns.RcodeFormatError
}

// appendRefusal appends to b, in wire format, a response that rejects the message r. The response has the given
// response code and no records, except an OPT record if r has one.
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

// appendResult appends the response to q to b in wire format, with at most limit bytes. It is the answer in r, or
// SERVFAIL with an extended error (RFC 8914) if r has an error.
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

// appendResponse appends the cached answer to b in wire format, as the response to q, and returns the extended slice. The
// response has at most limit bytes. The cached entry must not be a failure without a response.
func (f *cachedAnswer) appendResponse(b []byte, q *wire.Query, limit int) []byte {
	a, view, _ := f.toAnswer(q)
	return appendForwarderResponse(b, q, a, view, limit)
}

// appendForwarderResponse appends a response to q with the answer a to b in wire format. view says how the answer is
// presented, for example with which TTLs. The flags are those of a forwarder (RA, not AA). The response has at most limit
// bytes.
func appendForwarderResponse(b []byte, q *wire.Query, a *wire.Answer, view wire.ResponseOptions, limit int) []byte {
	start := len(b)
	b = a.Append(b, q, view, limit)
	wire.SetForwarderFlags(b[start:])
	return b
}
