package dnshedge

import (
	"context"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// local answers a question without cache and servers, or reports false if it has to be
// asked.
func (c *core) local(ctx context.Context, q *wire.Query) (*result, bool) {
	if !q.Standard() || q.Class != dns.ClassINET {
		return nil, false
	}
	var m *dns.Msg
	if c.hosts != nil {
		if h := c.hosts.find(q, time.Now()); h != nil {
			m = h.answer(q)
		}
	}
	if m == nil {
		if z := c.conf.SpecialUse.zone(q); z != nil {
			if _, n := c.domain(q); n > 1 { // a route for all names does not mean these
				return nil, false
			}
			m = z.Answer(q.Text(), q.Type)
		}
	}
	if m == nil {
		return nil, false
	}
	c.count.local.Add(1)
	r := new(result)
	r.answer, r.err = localAnswer(q, m)
	c.traceHit(ctx, q, FromLocal, r.err)
	return r, true
}

// localAnswer completes an answer to q that is made here.
func localAnswer(q *wire.Query, m *dns.Msg) (*wire.Answer, error) {
	m.Response, m.RecursionAvailable = true, true
	m.Question = []dns.Question{{Name: q.Text(), Qtype: q.Type, Qclass: q.Class}}
	b, err := m.Pack()
	if err != nil {
		return nil, err
	}
	return wire.ParseAnswer(b, q)
}
