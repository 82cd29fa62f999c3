package recursor

import (
	"context"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// known answers a question by the proofs of answers to others (RFC 8198).
type known struct {
	chains *chain.Chains // nil: nothing is known
	pay    chain.Bill
	bill   *bill
	q      question
	wrong  bool // the answer to a part of the name was signed wrongly
}

// answer answers the question from what is proven of the zone whose servers would be asked, and of those below it, or returns nil.
func (k *known) answer(z *delegation) *verdict {
	if k.chains == nil {
		return nil
	}
	q := k.q
	found, ok := k.chains.Known(k.pay.Work(), z.zone, q.name, q.qtype)
	if !ok {
		return nil
	}
	r := &verdict{kind: isAnswer, status: validate.Secure, answer: found.Answer, authority: found.Authority, ttl: time.Duration(found.TTL) * time.Second}
	if found.Kind == validate.NoName {
		r.rcode = dns.RcodeNameError
	}
	if len(r.answer) > 0 && q.qtype != dns.TypeCNAME {
		if alias, ok := r.answer[0].(*dns.CNAME); ok {
			r.next = dnsname.Lower(alias.Target)
		}
	}
	k.bill.known.Add(1)
	return r
}

// part reports whether it is proven that a part of the name has no address and is no zone, but may have names below it: then one label
// more is asked for.
func (k *known) part(part question, z *delegation) bool {
	if k.chains == nil {
		return false
	}
	found, ok := k.chains.Known(k.pay.Work(), z.zone, part.name, part.qtype)
	return ok && found.Kind == validate.NoData
}

// after keeps what a server of z has proven of a part of the name. It returns the answer to the question if that follows: below a name
// that does not exist there is none (RFC 8020).
func (k *known) after(ctx context.Context, part question, z *delegation, r *verdict) *verdict {
	if k.chains == nil || k.wrong || r.kind != isAnswer {
		return nil
	}
	if k.wrong = !k.chains.LearnPart(ctx, k.pay, r.said(part.name, part.qtype)); k.wrong || r.rcode != dns.RcodeNameError {
		return nil
	}
	return k.answer(z)
}
