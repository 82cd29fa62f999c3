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

// ednsFallback asks over another transport, and again without EDNS if the server seems not to
// understand that (RFC 6891 §7): if it answers FORMERR, or NOTIMP without an OPT
// record. If it then answers otherwise, it is asked without EDNS for a while.
//
// DO and options of a caller are wishes (RFC 3225 §3): a question with them is asked with EDNS first each time, and without if
// the server has not shown lately that it understands EDNS. A forged FORMERR thus takes no signatures out of answers.
type ednsFallback struct {
	Transport
	until atomic.Int64 // when the server is asked with EDNS again, Unix ns
	shown atomic.Int64 // when a response last had an OPT record, Unix ns; 0: none has
}

func (e *ednsFallback) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if !q.Standard() {
		return e.Transport.Exchange(ctx, q, n, w)
	}
	wishes := q.WantsDNSSEC() || q.HasOptions()
	now := time.Now().UnixNano()
	if !wishes && now < e.until.Load() {
		return e.Transport.Exchange(ctx, q.Plain(), n, w)
	}
	a, setup, err := e.Transport.Exchange(ctx, q, n, w)
	if err != nil {
		return a, setup, err
	}
	if !isRejected(a) {
		if a.EDNS {
			e.shown.Store(now)
		}
		return a, setup, nil
	}
	// An OPT record in the response may be the query's own. But an option may be what the server rejects.
	if wishes && (now < e.shown.Load()+int64(ednsOff) && e.shown.Load() > 0 || a.EDNS && q.HasOptions()) {
		return a, setup, nil
	}
	again, more, err := e.Transport.Exchange(ctx, q.Plain(), n, w)
	if err != nil || isRejected(again) {
		return a, setup, nil
	}
	if !wishes {
		e.until.Store(time.Now().Add(ednsOff).UnixNano())
		e.shown.Store(0)
	}
	return again, setup + more, nil
}

// isRejected reports whether the server did not understand the query.
func isRejected(a *wire.Answer) bool {
	return a.Rcode() == dns.RcodeFormatError || a.Rcode() == dns.RcodeNotImplemented && !a.EDNS
}
