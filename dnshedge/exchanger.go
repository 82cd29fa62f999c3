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

// An Exchanger answers DNS questions. It must be safe for concurrent use. It is implemented by *Client, by
// *recursor.Resolver, which resolves from the root, and by *dns.Client of github.com/miekg/dns. A Client passes an
// empty address to its Exchangers, so a *dns.Client, which needs an address, must be wrapped.
//
// An Exchanger may have these optional methods:
//
//   - IgnoresOptions(): it is never called. If it exists, the Client sends questions to the Exchanger without the EDNS
//     options of the Client's callers.
//   - NothingBelow(name string) bool: if it returns true, an NXDOMAIN response with the AD bit for name also holds for
//     all names below name (RFC 8020), and the Client does not query these names.
//   - Identity() string: it identifies the source of the answers. Client.Import accepts answers from an Exchanger with
//     the same type and the same Identity. It accepts none if the Identity is empty.
//   - Unwrap() any: it returns the Exchanger to which this Exchanger sends its questions. A Client calls it to find out
//     whether answers come from the operating system's servers. Cached answers of these servers become invalid when
//     the servers change.
type Exchanger interface {
	// ExchangeContext answers the question of m, which it must not change. It returns the response r and the duration
	// rtt of the exchange, or an error. address is the server to ask, or empty for the Exchanger's own choice.
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

var _ Exchanger = (*dns.Client)(nil)

// callExchanger sends q to the Exchanger e, and checks that the response belongs to q. It returns an error if e fails,
// panics, returns no response, or returns a response that cannot be packed or does not belong to q.
//
// If ctx contains settings of package hedge for a single call, such as a hedge delay, e gets a context without them.
// Otherwise they would also apply to the requests that e sends, such as a POST.
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
