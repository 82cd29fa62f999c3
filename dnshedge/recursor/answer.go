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

// resolveQuestion resolves a client's question with the budget b. It ends a little before the deadline of ctx, so that
// the response can be sent in time.
func (c *core) resolveQuestion(ctx context.Context, q question, b *questionBudget) (*result, error) {
	stack.GrowTo16KiB()
	ctx, limit, stop := chain.WithQuestionDeadline(ctx, c.ctx, errTimeout)
	defer stop()
	return (&lookup{core: c, budget: b, awaitUntil: time.Now().Add(limit - limit/20)}).followAliases(ctx, q)
}

// A result is the complete answer to a client's question, including the targets of aliases.
type result struct {
	rcode             int
	answer, authority []dns.RR
	status            validate.Status  // Secure only if all parts of the answer are
	reason            *validate.Reason // why the answer is insecure; nil for an ordinary unsigned zone
}

// mergeStatus lowers the security status of r to that of v, which is one part of the answer.
func (r *result) mergeStatus(v *parsedResponse) {
	if v.status != validate.Secure && r.status != validate.Insecure || r.status == validate.Unchecked {
		r.status, r.reason = v.status, v.reason
	}
}

// followAliases resolves q. While the answer is an alias, it resolves the target of the alias, too. It returns the
// merged answer.
func (l *lookup) followAliases(ctx context.Context, q question) (*result, error) {
	res := new(result)
	names := []string{q.name}
	var heldBytes int64
	defer func() { l.core.releaseMemory(heldBytes) }()
	for {
		hint := l.cnameHint
		if l.cnameHint = nil; hint != nil {
			l.awaitUntil = time.Time{}
		}
		r, err := l.resolveAndValidate(ctx, q, l.nameLookup != nil || len(names) > 1)
		if hint != nil && errors.Is(err, nameservers.ErrNoServers) {
			r, err = hint, l.validateHint(ctx, q, hint) // no server answers for the target
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
		l.core.releaseMemory(heldBytes)
		if heldBytes = estimateRecordMemory(res.answer, res.authority); !l.core.reserveMemory(heldBytes) {
			heldBytes = 0
			return nil, errTooLarge
		}
		names = append(names, r.aliasTarget)
		q.name = r.aliasTarget
		l.queries.Store(0)
	}
}

// errTooLarge is the error of a question whose answer does not fit a DNS message, or whose aliases exceed the memory
// for waiting questions.
//
// The answer for each alias may fill a message. Even a single received message may grow when it is packed again,
// because not all names that its sender compressed may be compressed (RFC 3597 §4).
var errTooLarge = errors.New("recursor: the answer does not fit a message")

// fitsMessage reports whether the result fits a DNS message, together with a question and an OPT record.
func (r *result) fitsMessage() bool {
	const maxSize = dns.MaxMsgSize - 512
	n := 0
	for _, rrs := range [...][]dns.RR{r.answer, r.authority} {
		for _, rr := range rrs {
			n += dns.Len(rr)
		}
	}
	return n <= maxSize || (&dns.Msg{Compress: true, Answer: r.answer, Ns: r.authority}).Len() <= maxSize
}

// An aliasLoopError is the error of a question whose aliases form a loop.
type aliasLoopError struct{ name string }

func (e *aliasLoopError) Error() string {
	return fmt.Sprintf("recursor: aliases of %s form a loop", e.name)
}
