package recursor

import (
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

const (
	maxMinimisedQueries  = 10 // questions for parts of a name (RFC 9156 §2.3)
	singleLabelQueries   = 4  // of them, those that are one label longer than the one before
	maxMinimisedAttempts = 3  // queries for a part of a name, after which the whole one is asked
)

// minimiser tells servers no more of a name than they need (RFC 9156).
type minimiser struct {
	q             question
	do            bool // signatures are asked for with parts of the name too
	off           bool // the whole name is asked
	queries       int
	exposedLabels int // labels of the longest part that was asked for, or is a zone
}

// nextQuestion returns what the servers of a zone are asked, and whether that is the whole question.
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
