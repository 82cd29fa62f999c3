package group

import (
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// answerRate is which part of the questions of late a server has answered, among those that it or another server answered, by
// kind of question. It is safe for concurrent use.
type answerRate struct {
	mu     sync.Mutex // guards kinds
	byType [4]recentQuestions
}

// recentQuestions is the latest pieces of evidence, in turn. What came of one name is one piece, however often it came.
type recentQuestions struct {
	outcomes [8]questionOutcome
	next     int
}

type questionOutcome struct {
	name       string // in wire format; empty: there was none yet
	isAnswered bool
}

// typeIndex returns the index of the kind of a question: servers and what is before them drop types that they do not know.
func typeIndex(q *wire.Query) int {
	switch q.Type {
	case dns.TypeA:
		return 0
	case dns.TypeAAAA:
		return 1
	case dns.TypeHTTPS, dns.TypeSVCB:
		return 2
	}
	return 3
}

// recordQuestion adds what came of a question.
func (s *answerRate) recordQuestion(q *wire.Query, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.byType[typeIndex(q)]
	if slices.ContainsFunc(r.outcomes[:], func(p questionOutcome) bool { return p.isAnswered == answered && strings.EqualFold(p.name, q.Name) }) {
		return
	}
	r.outcomes[r.next] = questionOutcome{q.Name, answered}
	r.next = (r.next + 1) % len(r.outcomes)
}

// answersMost reports whether most questions of q's kind were answered. One of which nothing is known has answered none.
func (s *answerRate) answersMost(q *wire.Query) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all, answered int
	for _, p := range s.byType[typeIndex(q)].outcomes {
		if p.name != "" {
			all++
		}
		if p.isAnswered {
			answered++
		}
	}
	return 2*answered > all
}
