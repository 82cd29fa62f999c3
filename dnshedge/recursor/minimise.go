package recursor

import (
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

const (
	maxSteps    = 10 // questions for parts of a name (RFC 9156 §2.3)
	singly      = 4  // of them, those that are one label longer than the one before
	maxPatience = 3  // queries for a part of a name, after which the whole one is asked
)

// minimiser tells servers no more of a name than they need (RFC 9156).
type minimiser struct {
	q     question
	do    bool // signatures are asked for with parts of the name too
	off   bool // the whole name is asked
	steps int
	known int // labels of the longest part that was asked for, or is a zone
}

// next returns what the servers of a zone are asked, and whether that is the whole question.
func (m *minimiser) next(zone string) (question, bool) {
	m.known = max(m.known, dnsname.Labels(zone))
	left := dnsname.Labels(m.q.name) - m.known
	if m.off || left <= 1 || m.steps >= maxSteps {
		return m.q, true
	}
	add := 1
	if m.steps >= singly {
		rest := maxSteps - m.steps
		add = (left + rest - 1) / rest
	}
	if add >= left {
		return m.q, true
	}
	m.steps++
	m.known += add
	return question{name: dnsname.Ancestor(m.q.name, m.known), qtype: dns.TypeA, do: m.do}, false
}
