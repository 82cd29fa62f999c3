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

// maxQueries is the maximum number of messages that a Validator sends to its Exchanger for one question of a client. It
// is equal to the default of recursor.Limits.Queries.
const maxQueries = 64

// A questionBudget limits the number of queries and the cryptographic work for one question of a client. As a
// chain.ValidationBudget, it also sends the key queries (for DS or DNSKEY records), and selects the upstream for each of
// them.
//
// It is safe for concurrent use, because key queries run in parallel.
type questionBudget struct {
	core       *core
	validation validate.Validation // limit of the cryptographic work, and the work so far
	queries    atomic.Int32        // number of messages to the Exchanger so far

	mu    sync.Mutex                   // guards tried
	tried map[question]*triedUpstreams // by key query: the upstreams that it was sent to so far
}

// A triedUpstreams records, for one DS or DNSKEY query, the upstreams to which it was sent. If the response is bogus,
// the query is repeated to another upstream.
type triedUpstreams struct {
	plan     *upstreamPlan // selects the upstream of each attempt
	unsigned bool          // the last response had no signatures
}

// newBudget returns an unused budget for a new question of a client.
func (c *core) newBudget() *questionBudget {
	b := &questionBudget{core: c, tried: make(map[question]*triedUpstreams)}
	b.validation.Policy = c.validator.Policy()
	return b
}

// Validation returns the Validation that limits the cryptographic work for this question. It implements
// chain.ValidationBudget.
func (b *questionBudget) Validation() *validate.Validation { return &b.validation }

// spendQuery counts one query about q before it is sent to the Exchanger. If that exceeds maxQueries, it returns a
// *validate.Reason, and the query must not be sent.
func (b *questionBudget) spendQuery(q question) error {
	if b.queries.Add(1) > maxQueries {
		return &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: fmt.Sprintf("limit Queries of %d reached", maxQueries), Name: q.name, Type: q.qtype, Limit: "Queries"}
	}
	return nil
}

// errNoOtherUpstream is the error of a key query that was already sent to all upstreams.
var errNoOtherUpstream = errors.New("dnssec: no other upstream to ask")

// Query implements chain.ValidationBudget: it sends a DS or DNSKEY question for name to an upstream, and returns the
// response. While responses are bogus, package chain calls it again with the same question, which then goes to the next
// upstream.
//
// Such a repetition does not end with the first failure or timeout of an upstream, but tries the next one. The last
// parameter, the servers that have sent bogus data, is unused: the budget records itself to which upstreams it has sent
// the question.
//
// The error is errNoOtherUpstream if the question was sent to all upstreams before this call. It is a *validate.Reason
// if maxQueries is reached, and otherwise the failure of the last upstream.
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

// forgetLocalFailure makes all upstreams available again for the DS or DNSKEY query q, if err shows that this machine
// could not send it. In this case no upstream has received the query.
func (b *questionBudget) forgetLocalFailure(q question, err error) {
	if !localerror.IsLocal(err) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.tried, q)
}

// nextUpstream returns the next upstream for q, a DS or DNSKEY query, so that a repetition goes to another upstream.
// first is true if q was not sent before. ok is false if q was already sent to all upstreams.
func (b *questionBudget) nextUpstream(q question) (at upstreamAttempt, first, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tried[q]
	if t == nil {
		t, first = &triedUpstreams{plan: &upstreamPlan{core: b.core, question: q}}, true
		b.tried[q] = t
	}
	at, ok = t.plan.nextAttempt(t.unsigned)
	return at, first, ok
}

// isCompleteAnswer reports whether a response is not truncated and has the response code of an answer: NOERROR, NXDOMAIN,
// or YXDOMAIN (a DNAME record leads to a name that is too long). It is false for failures such as SERVFAIL and REFUSED.
//
// It does not consider the records. An empty response and a referral count, too.
func isCompleteAnswer(r *dns.Msg) bool {
	switch r.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain:
		return !r.Truncated
	}
	return false
}
