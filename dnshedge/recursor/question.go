package recursor

import (
	"fmt"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A question is a name and type of class IN, with the flags of the query that change its answer.
type question struct {
	name  string // absolute and in lower case, as returned by dns.CanonicalName
	qtype uint16
	do    bool // DO bit, which requests signatures
	cd    bool // CD bit, which disables validation
}

// newInternalQuestion returns a question that the Resolver asks for itself, for example for the address of a server.
// Unlike a client's question, it has the DO bit if validation is on, and never CD.
func (c *core) newInternalQuestion(name string, qtype uint16) question {
	return question{name: name, qtype: qtype, do: c.wantsSignatures()}
}

// parseQuestion returns the question of m. The error is not nil if m is a response, or has another opcode than QUERY.
// It is also not nil if m has not exactly one question, or asks for an invalid name or type.
func parseQuestion(m *dns.Msg) (question, error) {
	if m.Response || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return question{}, fmt.Errorf("recursor: message has opcode %s, response %t and %d questions; want a QUERY with 1", dns.OpcodeToString[m.Opcode], m.Response, len(m.Question))
	}
	ask := m.Question[0]
	name, ok := dnsname.ParseCanonical(ask.Name)
	switch {
	case !ok:
		return question{}, fmt.Errorf("recursor: name %q is not a domain name", ask.Name)
	case !wire.IsQuestionType(ask.Qtype):
		return question{}, fmt.Errorf("recursor: question %s has type %s, which is no type of data", ask.Name, dns.Type(ask.Qtype))
	}
	q := question{name: name, qtype: ask.Qtype, cd: m.CheckingDisabled}
	if opt := m.IsEdns0(); opt != nil {
		q.do = opt.Do()
	}
	return q, nil
}
