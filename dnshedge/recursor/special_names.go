package recursor

import (
	"strings"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/special"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// findSpecialUseZone is special.FindZone. Tests replace it.
var findSpecialUseZone = special.FindZone

// answerSpecialUseName returns the local answer to a question with a special-use name, or nil if q must be resolved.
// A special-use name in one of Resolver.Zones is resolved.
func (c *core) answerSpecialUseName(q question) *parsedResponse {
	top := q.name[strings.LastIndexByte(q.name[:len(q.name)-1], '.')+1:]
	switch top {
	case "arpa.", "localhost.", "invalid.", "onion.", "alt.", "test.", "local.":
	default:
		return nil
	}
	var b [256]byte
	n, err := dns.PackDomainName(q.name, b[:], 0, nil, false)
	if err != nil {
		return nil
	}
	z := findSpecialUseZone(b[:n], true)
	if z == nil {
		return nil
	}
	if z := c.stubZone(q.name); z != nil && z.zone != "." {
		return nil
	}
	m := z.Answer(q.name, q.qtype)
	if m == nil {
		return nil
	}
	return &parsedResponse{kind: kindAnswer, status: validate.Insecure, rcode: m.Rcode, answer: m.Answer, authority: m.Ns}
}
