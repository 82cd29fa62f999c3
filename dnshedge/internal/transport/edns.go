package transport

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// ednsOff is how long a server that does not understand EDNS is asked without.
const ednsOff = 15 * time.Minute

// edns asks over another transport, and again without EDNS if the server seems not to
// understand that (RFC 6891 §7): if it answers FORMERR, or NOTIMP without an OPT
// record. If it then answers otherwise, it is asked without EDNS for a while.
//
// Questions that ask for something that needs EDNS, DNSSEC or an option, are never
// asked without.
type edns struct {
	Transport
	until atomic.Int64 // when the server is asked with EDNS again, Unix ns
}

func (e *edns) Exchange(ctx context.Context, q *wire.Query, n int, w *Way) (*wire.Answer, time.Duration, error) {
	if q.NeedsEDNS() {
		return e.Transport.Exchange(ctx, q, n, w)
	}
	if time.Now().UnixNano() < e.until.Load() {
		return e.Transport.Exchange(ctx, q.Plain(), n, w)
	}
	a, setup, err := e.Transport.Exchange(ctx, q, n, w)
	if err != nil || !rejected(a) {
		return a, setup, err
	}
	again, more, err := e.Transport.Exchange(ctx, q.Plain(), n, w)
	if err != nil || rejected(again) {
		return a, setup, nil
	}
	e.until.Store(time.Now().Add(ednsOff).UnixNano())
	return again, setup + more, nil
}

// rejected reports whether the server did not understand the query.
func rejected(a *wire.Answer) bool {
	return a.Rcode() == dns.RcodeFormatError || a.Rcode() == dns.RcodeNotImplemented && !a.EDNS
}
