package recursor

import (
	"context"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A synthesizer answers a question from the proofs of other answers (RFC 8198).
type synthesizer struct {
	validator        *chain.Validator // nil: nothing is synthesized
	validationBudget chain.WorkBudget
	questionBudget   *questionBudget
	q                question
	badSignatures    bool // the answer to a minimised question had invalid signatures
}

// synthesizeAnswer answers the question from proofs of z and the zones below it, or returns nil.
func (k *synthesizer) synthesizeAnswer(z *delegation) *parsedResponse {
	if k.validator == nil {
		return nil
	}
	q := k.q
	found, ok := k.validator.Synthesize(k.validationBudget.Validation(), z.zone, q.name, q.qtype)
	if !ok {
		return nil
	}
	r := &parsedResponse{kind: kindAnswer, status: validate.Secure, answer: found.Answer, authority: found.Authority, ttl: time.Duration(found.TTL) * time.Second}
	if found.Kind == validate.NameError {
		r.rcode = dns.RcodeNameError
	}
	if len(r.answer) > 0 && q.qtype != dns.TypeCNAME {
		if alias, ok := r.answer[0].(*dns.CNAME); ok {
			r.aliasTarget = dnsname.ToLower(alias.Target)
		}
	}
	k.questionBudget.synthesized.Add(1)
	return r
}

// canSkipLabel reports whether a minimised question needs no query: its name is proven to have no address and no
// delegation, but may have names below.
func (k *synthesizer) canSkipLabel(part question, z *delegation) bool {
	if k.validator == nil {
		return false
	}
	found, ok := k.validator.Synthesize(k.validationBudget.Validation(), z.zone, part.name, part.qtype)
	return ok && found.Kind == validate.NoData
}

// learnFromMinimised caches the proofs in the answer to a minimised question. It returns the answer to the whole question
// if it follows: below a name that does not exist there is none (RFC 8020).
func (k *synthesizer) learnFromMinimised(ctx context.Context, part question, z *delegation, r *parsedResponse) *parsedResponse {
	if k.validator == nil || k.badSignatures || r.kind != kindAnswer {
		return nil
	}
	if k.badSignatures = !k.validator.LearnFromMinimised(ctx, k.validationBudget, r.chainResponse(part.name, part.qtype)); k.badSignatures || r.rcode != dns.RcodeNameError {
		return nil
	}
	return k.synthesizeAnswer(z)
}
