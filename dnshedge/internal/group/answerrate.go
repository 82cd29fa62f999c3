package group

import (
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// An answerRate holds the outcomes of recent questions to a server, by question type. It counts questions that the
// server answered, and questions that it left unanswered and another server answered. It is safe for concurrent use.
type answerRate struct {
	mu     sync.Mutex // guards byType
	byType [4]recentQuestions
}

// recentQuestions is a ring buffer of the outcomes of recent questions. Equal outcomes of one name are stored once.
type recentQuestions struct {
	outcomes [8]questionOutcome
	next     int
}

type questionOutcome struct {
	name       string // in wire format; empty: unused element
	isAnswered bool
}

// typeIndex returns the index in answerRate.byType of the question's type. Types are kept apart because servers and
// middleboxes may drop queries of types that they do not know.
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

// recordQuestion stores whether the server answered q.
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

// answersMost reports whether the server answered more than half of the recent questions with q's type. It is false if
// there were none.
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
