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

// An Exchanger answers DNS questions. It must be safe for concurrent use. *Client, *recursor.Resolver and *dns.Client
// of github.com/miekg/dns are Exchangers. A Client passes an empty address to its Exchangers, so a *dns.Client must be
// wrapped.
//
// An Exchanger may have these optional methods:
//
//   - IgnoresOptions(): if it exists, questions are sent to the Exchanger without EDNS options. It is never called.
//   - NothingBelow(name string) bool: whether an NXDOMAIN response with the AD bit for name holds for all names below
//     it, too (RFC 8020).
//   - Identity() string: identifies the source of the answers. Client.Import accepts only answers from an Exchanger
//     with the same type and Identity, and none if the Identity is empty.
//   - Unwrap() any: the Exchanger to which this Exchanger sends its questions. If that uses the operating system's
//     servers, cached answers become invalid when these servers change.
type Exchanger interface {
	// ExchangeContext answers the question of m, which it must not change. It returns the response r and the duration
	// rtt of the exchange, or an error. address is the server to ask, or empty for the Exchanger's own choice.
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

var _ Exchanger = (*dns.Client)(nil)

// callExchanger sends q to the Exchanger e, and returns its answer. It returns an error if e fails, panics or returns
// no response, or if the response cannot be packed or does not belong to q.
func callExchanger(ctx context.Context, q *wire.Query, e Exchanger) (_ *wire.Answer, err error) {
	defer usercode.RecoverPanic("Exchanger", &err)
	id := wire.RandomID()
	m := new(dns.Msg)
	if err := m.Unpack(q.Append(nil, id, wire.PackOptions{Size: wire.DefaultUDPSize})); err != nil {
		return nil, fmt.Errorf("dnshedge: query for an Exchanger: %w", err)
	}
	once, _ := race.SingleAttemptContext(ctx) // hedge settings of the call must not apply to requests that e sends
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
