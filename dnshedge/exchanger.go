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

// An Exchanger answers DNS questions. Implementations are *Client, *recursor.Resolver, which resolves from the root,
// and *dns.Client of github.com/miekg/dns, which needs an address.
//
// A Client that asks an Exchanger passes no address. These optional methods of an Exchanger change how it is asked:
//
//   - IgnoresOptions(): the Client passes no EDNS options of its callers.
//   - NothingBelow(name string) bool: if it returns true, an NXDOMAIN response with AD also holds for all names below
//     its name (RFC 8020), and the Client does not ask for them.
//   - Identity() string: Client.Import accepts answers from an Exchanger with the same type and the same Identity,
//     unless the Identity is empty.
//   - Unwrap() any: it returns the Exchanger that this Exchanger asks. If that is a Client of the system's servers, a
//     Cache drops the answers when the system's servers change.
type Exchanger interface {
	// ExchangeContext answers the question of m, which it must not change. rtt is the duration of the exchange.
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

var _ Exchanger = (*dns.Client)(nil)

// callExchanger asks the Exchanger e, and checks that the response belongs to q. If e is or contains a Client, that
// Client sends no hedges for q. callExchanger returns an error if e fails or panics, returns no response, or returns a
// response that cannot be packed.
func callExchanger(ctx context.Context, q *wire.Query, e Exchanger) (_ *wire.Answer, err error) {
	defer usercode.RecoverPanic("Exchanger", &err)
	id := wire.RandomID()
	m := new(dns.Msg)
	if err := m.Unpack(q.Append(nil, id, wire.PackOptions{Size: wire.DefaultUDPSize})); err != nil {
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
	mine := *r // a copy, because Pack modifies the message
	mine.Extra = slices.Clone(mine.Extra)
	for i, rr := range mine.Extra {
		if rr, ok := rr.(*dns.OPT); ok {
			mine.Extra[i] = dns.Copy(rr)
		}
	}
	mine.Compress = true
	b, err := mine.Pack()
	if err == nil {
		err = q.CheckResponse(b, id)
	}
	if err != nil {
		return nil, fmt.Errorf("dnshedge: response of an Exchanger: %w", err)
	}
	return wire.ParseAnswer(b, q)
}
