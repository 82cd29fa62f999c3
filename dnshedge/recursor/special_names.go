package recursor

import (
	"strings"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/special"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// findSpecial is special.Find, but for tests of names that have a meaning of their own.
var findSpecial = special.Find

// specialAnswer returns the answer to a question whose name means something on one machine or in
// one network only, or nil. Such names are not asked for, unless they are in one of Zones.
func (c *core) specialAnswer(q question) *parsedResponse {
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
	z := findSpecial(b[:n], true)
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
