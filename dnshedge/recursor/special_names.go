package recursor

import (
	"strings"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/special"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// findSpecialUseZone is special.FindZone, except in tests.
var findSpecialUseZone = special.FindZone

// answerSpecialUseName answers a question for a special-use name without a query. It returns nil if q must be resolved,
// because its name is not special or is in one of Resolver.Zones.
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
	if z := c.findStubZone(q.name); z != nil && z.zone != "." {
		return nil
	}
	m := z.Answer(q.name, q.qtype)
	if m == nil {
		return nil
	}
	return &parsedResponse{kind: kindAnswer, status: validate.Insecure, rcode: m.Rcode, answer: m.Answer, authority: m.Ns}
}
