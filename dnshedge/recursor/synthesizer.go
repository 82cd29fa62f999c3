package recursor

import (
	"context"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A synthesizer answers one question without a query, from NSEC, NSEC3 and wildcard records that were cached with the
// answers to other questions. This is the aggressive use of a DNSSEC-validated cache (RFC 8198).
type synthesizer struct {
	validator        *chain.Validator // nil if nothing is to be synthesized
	validationBudget chain.WorkBudget
	questionBudget   *questionBudget
	q                question
	badSignatures    bool // the answer to a minimised question had invalid signatures
}

// synthesizeAnswer returns an answer to the question, from the cached proofs of the zone z and of zones below it. It
// returns nil if the proofs do not determine the answer.
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

// canSkipLabel reports whether the minimised question part need not be sent to the servers of z. It is true if a cached
// proof answers it with NODATA: its name is then no zone cut, and names may exist below it.
func (k *synthesizer) canSkipLabel(part question, z *delegation) bool {
	if k.validator == nil {
		return false
	}
	found, ok := k.validator.Synthesize(k.validationBudget.Validation(), z.zone, part.name, part.qtype)
	return ok && found.Kind == validate.NoData
}

// learnFromMinimised caches the proofs in r, the answer of a server of z to the minimised question part.
//
// If they prove that the name of part does not exist, no name below it exists either (RFC 8020). It then returns the
// answer to the full question. Otherwise it returns nil.
func (k *synthesizer) learnFromMinimised(ctx context.Context, part question, z *delegation, r *parsedResponse) *parsedResponse {
	if k.validator == nil || k.badSignatures || r.kind != kindAnswer {
		return nil
	}
	if k.badSignatures = !k.validator.LearnFromMinimised(ctx, k.validationBudget, r.toChainResponse(part.name, part.qtype)); k.badSignatures || r.rcode != dns.RcodeNameError {
		return nil
	}
	return k.synthesizeAnswer(z)
}
