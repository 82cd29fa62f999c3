package dnshedge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// An Exchanger answers questions. *Client is one, and so is *dns.Client of
// github.com/miekg/dns, which needs an address.
type Exchanger interface {
	// ExchangeContext answers the question of m, which it does not change. The duration is
	// how long that took. A Client that asks an Exchanger passes no address.
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

var (
	_ Exchanger = (*Client)(nil)
	_ Exchanger = (*dns.Client)(nil)
)

// newRoutes returns Routes by domain, in wire format and lower case.
func newRoutes(routes map[string]Exchanger) (map[string]Exchanger, error) {
	out := make(map[string]Exchanger, len(routes))
	for domain, e := range routes {
		var buf [wire.MaxName]byte
		n, err := dns.PackDomainName(dns.CanonicalName(domain), buf[:], 0, nil, false)
		if err != nil || domain == "" {
			return nil, fmt.Errorf("dnshedge: Client.Routes has domain %q; want a name such as corp.example", domain)
		}
		key := string(buf[:n])
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("dnshedge: Client.Routes has domain %q twice", dns.CanonicalName(domain))
		}
		out[key] = e
	}
	return out, nil
}

// route returns who is asked q instead of the Client's own servers, by the longest
// domain in Routes that q's name is in; nil: nobody.
func (c *core) route(q *wire.Query) Exchanger {
	e, _ := c.domain(q)
	return e
}

// domain returns the route of q, and the length of its domain in wire format; 0: there
// is none.
func (c *core) domain(q *wire.Query) (Exchanger, int) {
	if len(c.routes) == 0 {
		return nil, 0
	}
	var buf [wire.MaxKey]byte
	name := q.AppendKey(buf[:0])[:len(q.Name)] // in lower case
	for {
		if e, ok := c.routes[string(name)]; ok {
			return e, len(name)
		}
		if len(name) <= 1 {
			return nil, 0
		}
		name = name[1+int(name[0]):]
	}
}

// delegate has e answer q.
func (c *core) delegate(ctx context.Context, q *wire.Query, e Exchanger) *result {
	answer, err := exchangeBy(ctx, q, e)
	r := &result{answer: answer, tries: 1}
	if err == nil {
		err = c.seal(q, r)
	}
	if err != nil {
		c.count.failures.Add(1)
		return &result{tries: 1, err: &Error{Name: q.Text(), Type: q.Type, Err: err}}
	}
	return r
}

func exchangeBy(ctx context.Context, q *wire.Query, e Exchanger) (*wire.Answer, error) {
	id := wire.RandomID()
	m := new(dns.Msg)
	if err := m.Unpack(q.Append(nil, id, wire.Shape{Size: wire.DefaultUDPSize})); err != nil {
		return nil, fmt.Errorf("dnshedge: query for an Exchanger: %w", err)
	}
	r, _, err := e.ExchangeContext(ctx, m, "")
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return nil, errors.New("dnshedge: an Exchanger returned neither a response nor an error")
	}
	mine := *r // package dns writes into what it packs
	mine.Extra = slices.Clone(mine.Extra)
	mine.Compress = true
	b, err := mine.Pack()
	if err != nil {
		return nil, fmt.Errorf("dnshedge: response of an Exchanger: %w", err)
	}
	if err := q.Check(b, id); err != nil {
		return nil, fmt.Errorf("dnshedge: response of an Exchanger: %w", err)
	}
	return wire.ParseAnswer(b, q)
}
