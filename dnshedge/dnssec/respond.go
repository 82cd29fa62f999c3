package dnssec

import (
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/observe"
)

// restoreCase sets the owner name of the records for name to spelled, so that it has the letter case of the client's
// question. name is in lower case. It does nothing if spelled lacks the final dot.
func restoreCase(name, spelled string, sections ...[]dns.RR) {
	if !dns.IsFqdn(spelled) {
		return
	}
	for _, rrs := range sections {
		for _, rr := range rrs {
			if h := rr.Header(); dnsname.ToLower(h.Name) == name {
				h.Name = spelled
			}
		}
	}
}

// recordBogus counts a bogus answer to q in the statistics, and logs its reason.
func (c *core) recordBogus(q question, why *validate.Reason) {
	if why.Limit != "" {
		c.countLimitReached(statsLimitName(why.Limit))
	}
	c.validator.RecordBogus(why.EDE, observe.RecursorBogus{Name: q.name, Type: dns.Type(q.qtype).String(), Text: chain.ReasonText(why), Zone: why.Zone, Server: why.Server})
}

// statsLimitName converts the name of a limit of cryptographic work, as in validate.Reason.Limit, to its name in the
// statistics. The latter is that of a field of recursor.Limits.
func statsLimitName(name string) string {
	if name == "verifications" {
		return "Verifications"
	}
	return name
}

// countSecurity counts an answer as secure or insecure in the statistics.
func (c *core) countSecurity(a *answer) {
	switch a.Status {
	case validate.Secure:
		c.validator.Counts.Secure.Add(1)
	case validate.Insecure:
		c.validator.Counts.Insecure.Add(1)
	}
}
