package recursor

import (
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

const (
	maxMinimisedQueries  = 10 // minimised questions for a name (RFC 9156 §2.3)
	singleLabelQueries   = 4  // of these, questions with one label more
	maxMinimisedAttempts = 3  // queries for a minimised question before the whole name is asked
)

// A minimiser sends servers no more of a name than they need (RFC 9156).
type minimiser struct {
	q             question
	do            bool // set DO for minimised questions too
	off           bool // ask the whole name
	queries       int
	exposedLabels int // labels of the longest minimised name or zone
}

// nextQuestion returns the question for the servers of a zone, and whether it is the whole question.
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
