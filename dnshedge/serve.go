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

// ServeDNS answers r, so that a Client is a dns.Handler. A question without an
// answer gets SERVFAIL with an extended error (RFC 8914), a message that is no
// question, or one for a type that no data has (RFC 6895), or with records besides OPT, FORMERR or NOTIMP, and a
// zone transfer or a signed message (TSIG, SIG(0)) REFUSED. Over UDP, responses that are longer than the client takes, or longer than
// 1232 bytes (RFC 9715), are cut. If w is a dns.ConnectionStater and tells of TLS,
// responses to queries with EDNS are padded (RFC 8467).
//
// Twice as many questions as MaxInFlight wait at a time over UDP, and as many over other protocols, copies of one included. When
// one more comes, the one that has waited longest gets SERVFAIL: of those in the domain that most are in, or, where addresses
// cannot be forged, of the client that has most.
//
// A Client whose Validate returns an error answers SERVFAIL: call it before serving.
//
// The response is written by w.Write if w is a dns.Server's own, and otherwise by
// w.WriteMsg, where the wrappers of middleware look for it.
func (c *Client) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	p := responseBuffers.Get().(*responseBuffer)
	q, limit := (*wire.Query)(nil), 0
	if p.b, q, limit = c.appendResponse(p.b[:0], &p.q, w, r); q != nil {
		responseBuffers.Put(p) // while the servers think
		l, lane := c.core.clientQueues.queueFor(w.RemoteAddr(), q)
		waits := c.core.enterQueue(context.Background(), l, lane)
		out, _ := waits.answerInQueue(context.Background(), q)
		waits.End(nil)
		p = responseBuffers.Get().(*responseBuffer)
		p.b = appendResult(p.b[:0], q, out, limit)
	}
	defer responseBuffers.Put(p)
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

// responseBuffer is the memory that writing a response takes.
type responseBuffer struct {
	q wire.Query
	b []byte
}

var responseBuffers = sync.Pool{New: func() any { return &responseBuffer{b: make([]byte, 0, 2048)} }}

// appendResponse appends the response to r in wire format, if that takes no waiting.
// Otherwise it returns the question, and the limit of the response in bytes. It uses q.
func (c *Client) appendResponse(b []byte, q *wire.Query, w dns.ResponseWriter, r *dns.Msg) (out []byte, ask *wire.Query, limit int) {
	if code := rcodeForMessage(r); code != dns.RcodeSuccess {
		return appendRefusal(b, r, code), nil, 0
	}
	if err := q.Read(r); err != nil {
		return appendRefusal(b, r, rcodeForParseError(err)), nil, 0
	}
	limit = wire.MaxMsg
	if _, ok := w.RemoteAddr().(*net.UDPAddr); ok {
		limit = min(q.Size, wire.DefaultUDPSize)
	}
	forwarded, err := q.Forwarded()
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
	own := *q // which may be kept
	return b, &own, limit
}

// rcodeForMessage returns the response code for a message that is not to be forwarded;
// success for the others.
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

// rcodeForType returns the response code for a question with a type that no data has; success for the others.
func rcodeForType(t uint16) int {
	switch {
	case t == dns.TypeAXFR || t == dns.TypeIXFR:
		return dns.RcodeRefused
	case !wire.Askable(t):
		return dns.RcodeFormatError
	}
	return dns.RcodeSuccess
}

// rcodeForParseError returns the response code for a message that is not a query that can be read.
func rcodeForParseError(err error) int {
	switch {
	case errors.Is(err, wire.ErrVersion):
		return dns.RcodeBadVers
	case errors.Is(err, wire.ErrSigned):
		return dns.RcodeRefused
	}
	return dns.RcodeFormatError
}

// appendRefusal appends a response without records to a message that is not forwarded.
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
