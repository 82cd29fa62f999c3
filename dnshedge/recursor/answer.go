package recursor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

// resolveQuestion resolves a client's question. It ends a little before ctx does.
func (c *core) resolveQuestion(ctx context.Context, q question, b *questionBudget) (*result, error) {
	stack.GrowTo16KiB()
	ctx, limit, stop := chain.WithQuestionDeadline(ctx, c.ctx, errTimeout)
	defer stop()
	return (&lookup{core: c, budget: b, awaitUntil: time.Now().Add(limit - limit/20)}).followAliases(ctx, q)
}

// A result is the answer to a client's question.
type result struct {
	rcode             int
	answer, authority []dns.RR
	status            validate.Status  // the lowest of all parts
	reason            *validate.Reason // why it is insecure; may be nil
}

// mergeStatus lowers the status to that of a part of the answer.
func (r *result) mergeStatus(v *parsedResponse) {
	if v.status != validate.Secure && r.status != validate.Insecure || r.status == validate.Unchecked {
		r.status, r.reason = v.status, v.reason
	}
}

// followAliases answers q and the targets of its aliases.
func (l *lookup) followAliases(ctx context.Context, q question) (*result, error) {
	res := new(result)
	names := []string{q.name}
	var held int64
	defer func() { l.core.releaseMemory(held) }()
	for {
		hearsay := l.cnameHint
		if l.cnameHint = nil; hearsay != nil {
			l.awaitUntil = time.Time{}
		}
		r, err := l.resolveAndValidate(ctx, q, l.nameLookup != nil || len(names) > 1)
		if hearsay != nil && errors.Is(err, nameservers.ErrNoServers) {
			r, err = hearsay, l.validateHint(ctx, q, hearsay) // no other server answers for the target
		}
		if err != nil {
			return nil, err
		}
		res.rcode = r.rcode
		res.mergeStatus(r)
		res.answer = append(res.answer, r.answer...)
		res.authority = append(res.authority, r.authority...)
		if len(names) > 1 {
			res.answer = removeDuplicates(res.answer) // aliases may share a DNAME record
		}
		if !res.fitsMessage() {
			return nil, errTooLarge
		}
		if r.aliasTarget == "" {
			return res, nil
		}
		if len(names) > l.budget.limits.Aliases {
			return nil, &limitError{"Aliases", l.budget.limits.Aliases}
		}
		if slices.Contains(names, r.aliasTarget) {
			return nil, &aliasLoopError{r.aliasTarget}
		}
		l.core.releaseMemory(held)
		if held = estimateRecordMemory(res.answer, res.authority); !l.core.reserveMemory(held) {
			held = 0
			return nil, errTooLarge
		}
		names = append(names, r.aliasTarget)
		q.name = r.aliasTarget
		l.queries.Store(0)
	}
}

// errTooLarge ends a question whose answer exceeds a message, or whose aliases exceed the memory of waiting questions.
// Each alias may fill a message. One message may also grow, because the names that its sender compressed must not all be
// compressed again (RFC 3597 §4).
var errTooLarge = errors.New("recursor: the answer does not fit a message")

// fitsMessage reports whether a message can hold the result, a question and an OPT record.
func (r *result) fitsMessage() bool {
	const most = dns.MaxMsgSize - 512
	n := 0
	for _, rrs := range [...][]dns.RR{r.answer, r.authority} {
		for _, rr := range rrs {
			n += dns.Len(rr)
		}
	}
	return n <= most || (&dns.Msg{Compress: true, Answer: r.answer, Ns: r.authority}).Len() <= most
}

// An aliasLoopError ends a question whose aliases form a loop.
type aliasLoopError struct{ name string }

func (e *aliasLoopError) Error() string {
	return fmt.Sprintf("recursor: aliases of %s lead back to it", e.name)
}
