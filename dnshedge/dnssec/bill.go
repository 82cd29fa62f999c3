package dnssec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// maxQueries is how many questions the Exchanger is asked for one of a caller, as with recursor.Limits.
const maxQueries = 64

// bill is what the question of a caller has cost so far. It is safe for concurrent use.
type bill struct {
	core    *core
	work    validate.Work
	queries atomic.Int32

	mu    sync.Mutex // guards tried
	tried map[question]*tried
}

// tried is whom a question for keys has been put to.
type tried struct {
	turns    *turns
	unsigned bool // what came last had no signatures
}

func (c *core) bill() *bill {
	b := &bill{core: c, tried: make(map[question]*tried)}
	b.work.Policy = c.chains.Policy()
	return b
}

// Work is chain.Bill's.
func (b *bill) Work() *validate.Work { return &b.work }

// pay pays for a question to the Exchanger.
func (b *bill) pay(q question) error {
	if b.queries.Add(1) > maxQueries {
		return &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: fmt.Sprintf("limit Queries of %d reached", maxQueries), Name: q.name, Type: q.qtype, Limit: "Queries"}
	}
	return nil
}

var errNobody = errors.New("dnssec: no other upstream to ask")

// Ask is chain.Bill's. Who asks the same again has found that what came was bogus: then another upstream is asked.
func (b *bill) Ask(ctx context.Context, z *chain.Zone, name string, qtype uint16, _ []netip.AddrPort) (*chain.Said, error) {
	q := question{name: name, qtype: qtype}
	err := errNobody
	for {
		at, first, ok := b.turn(q)
		if !ok {
			b.forgetLocal(q, err)
			return nil, err
		}
		if err := b.pay(q); err != nil {
			return nil, err
		}
		var r *dns.Msg
		r, err = b.core.give(ctx, q.message(at.cd), at)
		if err == nil && !answers(r) {
			err = fmt.Errorf("dnssec: the upstream answers %s", dns.RcodeToString[r.Rcode])
		}
		switch {
		case err == nil:
			b.mu.Lock()
			if t := b.tried[q]; t != nil {
				t.unsigned = !hasSignatures(r)
			}
			b.mu.Unlock()
			return &chain.Said{Zone: z, Name: name, Type: qtype, Rcode: r.Rcode, Answer: setOf(r.Answer, name, qtype), Authority: r.Ns}, nil
		case ctx.Err() != nil || first && at.address == "": // the Exchanger has asked others
			b.forgetLocal(q, err)
			return nil, err
		}
	}
}

// forgetLocal forgets whom a question for keys was put to if that has ended with a local error: nobody has answered, and all may be asked again.
func (b *bill) forgetLocal(q question, err error) {
	if !localerror.Is(err) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.tried, q)
}

// turn returns whom a question for keys is put to, and whether he is the first.
func (b *bill) turn(q question) (at turn, first, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tried[q]
	if t == nil {
		t, first = &tried{turns: &turns{core: b.core, name: q.name}}, true
		b.tried[q] = t
	}
	at, ok = t.turns.take(t.unsigned)
	return at, first, ok
}

// answers reports whether a response is an answer, and no failure.
func answers(r *dns.Msg) bool {
	switch r.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain:
		return !r.Truncated
	}
	return false
}
