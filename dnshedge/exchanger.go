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

// An Exchanger answers questions. *Client is one, so is *recursor.Resolver, which starts at the
// root, and so is *dns.Client of github.com/miekg/dns, which needs an address.
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
		key, err := domainKey(domain)
		if err != nil {
			return nil, fmt.Errorf("dnshedge: Client.Routes has domain %q; want a name such as corp.example", domain)
		}
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

// routed reports whether others than the servers for all names are asked q.
func (c *core) routed(q *wire.Query) bool { return c.route(q) != nil || c.systemRoute(q) != nil }

// systemRoute returns the servers that the system has for q's name only, which are asked
// unless Routes has others.
func (c *core) systemRoute(q *wire.Query) []Upstream {
	if c.system == nil {
		return nil
	}
	ups, _ := c.system.route(q, time.Now())
	return ups
}

// domain returns the route of q, and the length in wire format of the domain in Routes, or of
// the system's, that q's name is in; 0: there is none.
func (c *core) domain(q *wire.Query) (Exchanger, int) {
	e, n := longestDomain(c.routes, q)
	if e == nil && c.system != nil {
		_, own := c.system.route(q, time.Now())
		n = max(n, own)
	}
	return e, n
}

// domainKey returns a domain in wire format and lower case.
func domainKey(domain string) (string, error) {
	var buf [wire.MaxName]byte
	n, err := dns.PackDomainName(dns.CanonicalName(domain), buf[:], 0, nil, false)
	if err == nil && domain == "" {
		err = errors.New("dnshedge: the domain is empty")
	}
	return string(buf[:max(n, 0)]), err
}

// longestDomain returns the value of the longest domain that q's name is in, and the
// domain's length in wire format; 0: there is none.
func longestDomain[T any](domains map[string]T, q *wire.Query) (value T, n int) {
	if len(domains) == 0 {
		return value, 0
	}
	var buf [wire.MaxKey]byte
	name := q.AppendKey(buf[:0])[:len(q.Name)] // in lower case
	for {
		if v, ok := domains[string(name)]; ok {
			return v, len(name)
		}
		if len(name) <= 1 {
			return value, 0
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
