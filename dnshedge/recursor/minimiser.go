package recursor

import (
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

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

// nextQuestion returns the next question to send to the servers of a zone. The boolean is true if it is the full
// question, and false if its name is shortened.
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
