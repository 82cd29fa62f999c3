package recursor

import (
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

const (
	maxMinimisedQueries  = 10 // MAX_MINIMISE_COUNT of RFC 9156 §2.3: minimised questions for a name
	singleLabelQueries   = 4  // MINIMISE_ONE_LAB of RFC 9156 §2.3: minimised questions with one more label each
	maxMinimisedAttempts = 3  // queries for a minimised question before the full question is sent
)

// A minimiser shortens the name of a question, so that each zone's servers learn no more labels than they need (RFC
// 9156).
type minimiser struct {
	q             question
	do            bool // DO bit of minimised questions
	off           bool // send the full question
	queries       int  // minimised questions so far
	exposedLabels int  // number of labels of the longest minimised name or zone so far
}

// nextQuestion returns the next question for the servers of a zone, and whether it is the full question.
func (m *minimiser) nextQuestion(zone string) (question, bool) {
	m.exposedLabels = max(m.exposedLabels, dnsname.CountLabels(zone))
	left := dnsname.CountLabels(m.q.name) - m.exposedLabels
	if m.off || left <= 1 || m.queries >= maxMinimisedQueries {
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
