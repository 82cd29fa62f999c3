package dnshedge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/race"
)

// An Exchanger answers questions. *Client is one, so is *recursor.Resolver, which starts at the
// root, and so is *dns.Client of github.com/miekg/dns, which needs an address.
type Exchanger interface {
	// ExchangeContext answers the question of m, which it does not change. The duration is
	// how long that took. A Client that asks an Exchanger passes no address, and no EDNS options of
	// its callers if the Exchanger has a method IgnoresOptions(). If it has NothingBelow(name string) bool, which returns true, then
	// the Client asks for no names below one that does not exist, if the response that says so has AD (RFC 8020). If it has
	// Identity() string, Client.Import takes answers of an Exchanger of the same type whose string is the same and not empty. If it has
	// Unwrap() any, and that returns a Client of the system's servers, a Cache forgets the answers when the system has other servers.
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

var _ Exchanger = (*dns.Client)(nil)

// callExchanger asks e. It returns an error if e panics, or if reading the response of e panics.
func callExchanger(ctx context.Context, q *wire.Query, e Exchanger) (_ *wire.Answer, err error) {
	defer usercode.RecoverPanic("Exchanger", &err)
	id := wire.RandomID()
	m := new(dns.Msg)
	if err := m.Unpack(q.Append(nil, id, wire.Shape{Size: wire.DefaultUDPSize})); err != nil {
		return nil, fmt.Errorf("dnshedge: query for an Exchanger: %w", err)
	}
	once, _ := race.SingleAttemptContext(ctx)
	r, _, err := e.ExchangeContext(once, m, "")
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return nil, errors.New("dnshedge: an Exchanger returned neither a response nor an error")
	}
	mine := *r // package dns writes into what it packs
	mine.Extra = slices.Clone(mine.Extra)
	for i, rr := range mine.Extra {
		if rr, ok := rr.(*dns.OPT); ok {
			mine.Extra[i] = dns.Copy(rr)
		}
	}
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
