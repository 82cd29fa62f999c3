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

// maxQueries is the maximum number of messages to the Exchanger for one question, see recursor.Limits.
const maxQueries = 64

// A questionBudget limits the cost of a client's question, and selects the upstreams for its key queries. It is safe
// for concurrent use.
type questionBudget struct {
	core       *core
	validation validate.Validation
	queries    atomic.Int32

	mu    sync.Mutex                   // guards tried
	tried map[question]*triedUpstreams // upstreams of each key query so far
}

// A triedUpstreams records the upstreams that a key query was sent to.
type triedUpstreams struct {
	turns    *upstreamTurns
	unsigned bool // the last response had no signatures
}

// newBudget returns the budget of a new question.
func (c *core) newBudget() *questionBudget {
	b := &questionBudget{core: c, tried: make(map[question]*triedUpstreams)}
	b.validation.Policy = c.validator.Policy()
	return b
}

// Validation implements chain.WorkBudget.
func (b *questionBudget) Validation() *validate.Validation { return &b.validation }

// spendQuery counts a message to the Exchanger. It returns a *validate.Reason if that exceeds maxQueries.
func (b *questionBudget) spendQuery(q question) error {
	if b.queries.Add(1) > maxQueries {
		return &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: fmt.Sprintf("limit Queries of %d reached", maxQueries), Name: q.name, Type: q.qtype, Limit: "Queries"}
	}
	return nil
}

// errNoOtherUpstream is the error of a key query after all upstreams were asked.
var errNoOtherUpstream = errors.New("dnssec: no other upstream to ask")

// Query implements chain.WorkBudget. A second call with the same question means that the last response was bogus: it
// goes to the next upstream.
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
		r, err = b.core.sendToUpstream(ctx, q.newMessage(at.cd), at)
		if err == nil && !isCompleteAnswer(r) {
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

// forgetLocalFailure resets the upstreams of a key query if err is a local error. No upstream has then answered, and
// all may be asked again.
func (b *questionBudget) forgetLocalFailure(q question, err error) {
	if !localerror.IsLocal(err) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.tried, q)
}

// nextUpstream returns the turn of the next upstream for a key query, and whether it is the first turn. ok is false if
// no upstream is left.
func (b *questionBudget) nextUpstream(q question) (at upstreamTurn, first, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tried[q]
	if t == nil {
		t, first = &triedUpstreams{turns: &upstreamTurns{core: b.core, name: q.name}}, true
		b.tried[q] = t
	}
	at, ok = t.turns.nextTurn(t.unsigned)
	return at, first, ok
}

// isCompleteAnswer reports whether a response is a complete answer or denial, and no failure.
func isCompleteAnswer(r *dns.Msg) bool {
	switch r.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain:
		return !r.Truncated
	}
	return false
}
