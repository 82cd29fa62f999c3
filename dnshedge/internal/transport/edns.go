package transport

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// ednsOffTime is the time for which a server that seems not to support EDNS gets queries without EDNS.
const ednsOffTime = 15 * time.Minute

// An ednsFallback is a Transport that repeats a query without EDNS if the server seems not to support EDNS (RFC 6891
// §7). The server seems so if its response code is FORMERR, or NOTIMP without an OPT record. If the repetition
// succeeds, queries to the server have no EDNS for the time ednsOffTime.
//
// Queries with the DO bit (RFC 3225 §3) or EDNS options are always sent with EDNS first. They are repeated without EDNS
// only if no recent response of the server had an OPT record. So a forged FORMERR cannot remove signatures from
// answers.
type ednsFallback struct {
	Transport
	ednsOffUntil atomic.Int64 // queries have no EDNS before this time, in Unix nanoseconds
	lastEDNS     atomic.Int64 // time of the last response with an OPT record, in Unix nanoseconds; 0: none
}

// Exchange implements Transport. It sends q without EDNS if the server has recently seemed not to support EDNS. If the
// server rejects a query with EDNS, it repeats the query without EDNS. If the repetition fails, it returns the first
// response.
func (e *ednsFallback) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if !q.IsStandard() {
		return e.Transport.Exchange(ctx, q, n, w)
	}
	wishes := q.WantsDNSSEC() || q.HasOptions()
	now := time.Now().UnixNano()
	if !wishes && now < e.ednsOffUntil.Load() {
		return e.Transport.Exchange(ctx, q.WithoutEDNS(), n, w)
	}
	a, setup, err := e.Transport.Exchange(ctx, q, n, w)
	if err != nil {
		return a, setup, err
	}
	if !isRejected(a) {
		if a.EDNS {
			e.lastEDNS.Store(now)
		}
		return a, setup, nil
	}
	// The server may have copied the OPT record of the query. But it may also support EDNS and reject an option.
	if wishes && (now < e.lastEDNS.Load()+int64(ednsOffTime) && e.lastEDNS.Load() > 0 || a.EDNS && q.HasOptions()) {
		return a, setup, nil
	}
	again, more, err := e.Transport.Exchange(ctx, q.WithoutEDNS(), n, w)
	if err != nil || isRejected(again) {
		return a, setup, nil
	}
	if !wishes {
		e.ednsOffUntil.Store(time.Now().Add(ednsOffTime).UnixNano())
		e.lastEDNS.Store(0)
	}
	return again, setup + more, nil
}

// isRejected reports whether the server seems not to have understood the query, because the response code is FORMERR,
// or NOTIMP without an OPT record.
func isRejected(a *wire.Answer) bool {
	return a.Rcode() == dns.RcodeFormatError || a.Rcode() == dns.RcodeNotImplemented && !a.EDNS
}
