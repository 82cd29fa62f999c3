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
	return question{name: name, qtype: qtype, do: c.validator != nil}
}

// parseQuestion returns the question of m. The error is not nil if m is a response, or has another opcode than QUERY.
// It is also not nil if m has not exactly one question, or asks for an invalid name or type.
func parseQuestion(m *dns.Msg) (question, error) {
	if m.Response || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return question{}, fmt.Errorf("recursor: message has opcode %s, response %t and %d questions; want a QUERY with 1", dns.OpcodeToString[m.Opcode], m.Response, len(m.Question))
	}
	ask := m.Question[0]
	name, ok := dnsname.CanonicalName(ask.Name)
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

const (
	maxMinimisedQueries  = 10 // maximum number of minimised questions for a name: MAX_MINIMISE_COUNT of RFC 9156 §2.3
	singleLabelQueries   = 4  // number of minimised questions that add only one label: MINIMISE_ONE_LAB of RFC 9156 §2.3
	maxMinimisedAttempts = 3  // maximum number of queries for a minimised question before the full question is sent
)

// A minimiser shortens the name of a question, so that the servers of each zone see no more labels than necessary. This
// is query name minimisation (RFC 9156).
type minimiser struct {
	q             question
	do            bool // minimised questions have the DO bit
	disabled      bool // the full question is sent
	queries       int  // number of minimised questions so far
	exposedLabels int  // number of labels of the longest minimised name or zone so far
}

// nextQuestion returns the next question to send to the servers of a zone. The boolean is true if the question has the
// full name, and false if its name is shortened (RFC 9156).
func (m *minimiser) nextQuestion(zone string) (question, bool) {
	m.exposedLabels = max(m.exposedLabels, dnsname.CountLabels(zone))
	left := dnsname.CountLabels(m.q.name) - m.exposedLabels
	if m.disabled || left <= 1 || m.queries >= maxMinimisedQueries {
		return m.q, true
	}
	add := 1
	if m.queries >= singleLabelQueries {
		rest := maxMinimisedQueries - m.queries
		add = (left + rest - 1) / rest
	}
	if add >= left {
		return m.q, true
	}
	m.queries++
	m.exposedLabels += add
	return question{name: dnsname.TrimToLabels(m.q.name, m.exposedLabels), qtype: dns.TypeA, do: m.do}, false
}
