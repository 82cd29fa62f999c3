package group

import (
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// answerRate is the share of the recent questions that a server has answered, of the questions that this server or
// another one answered. It is counted by type of question. It is safe for concurrent use.
type answerRate struct {
	mu     sync.Mutex // guards kinds
	byType [4]recentQuestions
}

// recentQuestions is a ring of the outcomes of recent questions. Several outcomes of one name count once.
type recentQuestions struct {
	outcomes [8]questionOutcome
	next     int
}

type questionOutcome struct {
	name       string // in wire format; empty: there was none yet
	isAnswered bool
}

// typeIndex returns the index of a question's type. Servers and middleboxes may drop queries of types that they do not
// know.
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

// recordQuestion adds the outcome of a question.
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
