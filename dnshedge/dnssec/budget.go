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

// maxQueries is the number of messages to the Exchanger for one question, as with recursor.Limits.
const maxQueries = 64

// A questionBudget counts the cost of a client's question. It is safe for concurrent use.
type questionBudget struct {
	core       *core
	validation validate.Validation
	queries    atomic.Int32

	mu    sync.Mutex // guards tried
	tried map[question]*triedUpstreams
}

// triedUpstreams are the upstreams that a question for keys was sent to.
type triedUpstreams struct {
	upstreams *upstreamTurns
	unsigned  bool // the last response had no signatures
}

func (c *core) newBudget() *questionBudget {
	b := &questionBudget{core: c, tried: make(map[question]*triedUpstreams)}
	b.validation.Policy = c.validator.Policy()
	return b
}

// Validation implements chain.WorkBudget.
func (b *questionBudget) Validation() *validate.Validation { return &b.validation }

// spendQuery counts a message to the Exchanger.
func (b *questionBudget) spendQuery(q question) error {
	if b.queries.Add(1) > maxQueries {
		return &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: fmt.Sprintf("limit Queries of %d reached", maxQueries), Name: q.name, Type: q.qtype, Limit: "Queries"}
	}
	return nil
}

var errNoOtherUpstream = errors.New("dnssec: no other upstream to ask")

// Query implements chain.WorkBudget. A repeated question means that the last response was bogus: it goes to the next
// upstream.
func (b *questionBudget) Query(ctx context.Context, z *chain.Zone, name string, qtype uint16, _ []netip.AddrPort) (*chain.Response, error) {
	q := question{name: name, qtype: qtype}
	err := errNoOtherUpstream
	for {
		at, first, ok := b.nextUpstream(q)
		if !ok {
			b.forgetLocalFailure(q, err)
			return nil, err
		}
		if err := b.spendQuery(q); err != nil {
			return nil, err
		}
		var r *dns.Msg
		r, err = b.core.sendInTurn(ctx, q.newMessage(at.cd), at)
		if err == nil && !isUsable(r) {
			err = fmt.Errorf("dnssec: the upstream answers %s", dns.RcodeToString[r.Rcode])
		}
		switch {
		case err == nil:
			b.mu.Lock()
			if t := b.tried[q]; t != nil {
				t.unsigned = !hasSignatures(r)
			}
			b.mu.Unlock()
			return &chain.Response{Zone: z, Name: name, Type: qtype, Rcode: r.Rcode, Answer: selectRRset(r.Answer, name, qtype), Authority: r.Ns}, nil
		case ctx.Err() != nil || first && at.address == "": // the Exchanger has tried its other upstreams
			b.forgetLocalFailure(q, err)
			return nil, err
		}
	}
}

// forgetLocalFailure resets the upstreams of a question for keys after a local error: none has answered, and all may be
// asked again.
func (b *questionBudget) forgetLocalFailure(q question, err error) {
	if !localerror.IsLocal(err) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.tried, q)
}

// nextUpstream returns the next upstream for a question for keys, and whether it is the first.
func (b *questionBudget) nextUpstream(q question) (at upstreamTurn, first, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tried[q]
	if t == nil {
		t, first = &triedUpstreams{upstreams: &upstreamTurns{core: b.core, name: q.name}}, true
		b.tried[q] = t
	}
	at, ok = t.upstreams.nextTurn(t.unsigned)
	return at, first, ok
}

// isUsable reports whether a response is an answer, not a failure.
func isUsable(r *dns.Msg) bool {
	switch r.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain:
		return !r.Truncated
	}
	return false
}
