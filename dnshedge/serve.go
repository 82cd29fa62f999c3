package dnshedge

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

var _ dns.Handler = (*Client)(nil)

// ServeDNS answers r, so that a Client is a dns.Handler. A question without an
// answer gets SERVFAIL with an extended error (RFC 8914); a message that is no
// question gets FORMERR or NOTIMP. Over UDP, responses that are longer than the
// client takes are cut.
func (c *Client) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	b := responses.Get().(*[]byte)
	defer responses.Put(b)
	*b = c.appendResponse((*b)[:0], w, r)
	_, _ = w.Write(*b) // if it fails, the client is gone and needs no answer
}

var responses = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

// appendResponse appends the response to r in wire format.
func (c *Client) appendResponse(b []byte, w dns.ResponseWriter, r *dns.Msg) []byte {
	reject := func(code int) []byte {
		m := new(dns.Msg)
		m.SetRcode(r, code)
		b, err := m.Pack()
		if err != nil {
			b, _ = (&dns.Msg{MsgHdr: m.MsgHdr}).Pack() // a header always packs
		}
		return b
	}
	if r.Opcode != dns.OpcodeQuery {
		return reject(dns.RcodeNotImplemented)
	}
	q, err := wire.NewQuery(r)
	if err != nil {
		return reject(dns.RcodeFormatError)
	}
	core, err := c.init()
	if err != nil {
		return q.AppendFailure(b, dns.RcodeServerFailure, wire.EDE{Code: edeNoReachable, Text: err.Error()})
	}
	limit := 0
	if _, ok := w.RemoteAddr().(*net.UDPAddr); ok {
		limit = min(q.Size, transport.MaxDatagram)
	}
	out, err := core.appendAnswer(context.Background(), b, q, limit)
	if err != nil {
		code := uint16(edeNetwork)
		if t := (*Error)(nil); errors.As(err, &t) && t.Timeout() {
			code = edeNoReachable
		}
		return q.AppendFailure(b, dns.RcodeServerFailure, wire.EDE{Code: code})
	}
	return out
}

// appendAnswer appends the response to q, in wire format and as a forwarder's. It
// has at most limit bytes; 0 means no limit.
func (c *core) appendAnswer(ctx context.Context, b []byte, q *wire.Query, limit int) ([]byte, error) {
	r := c.answer(ctx, q, "")
	if r.err != nil {
		return b, r.err
	}
	start := len(b)
	b = r.answer.Append(b, q, r.view, limit)
	wire.Forwarded(b[start:])
	return b, nil
}
