package group

import (
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// An answerRate records how many of its recent questions one server has answered, by question type. A question that the
// server left unanswered only counts if another server has answered it. It is safe for concurrent use.
type answerRate struct {
	mu     sync.Mutex         // guards byType
	byType [4]recentQuestions // indexed by typeIndex
}

// recentQuestions is a ring buffer with the outcomes of recent questions of one type. Equal outcomes for the same name
// are stored once.
type recentQuestions struct {
	outcomes [8]questionOutcome
	next     int // index of the element that is overwritten next
}

// A questionOutcome says whether a server has answered a question about a name.
type questionOutcome struct {
	name       string // in wire format; empty: unused element of the ring buffer
	isAnswered bool   // the server has answered the question
}

// typeIndex returns the index in answerRate.byType for the type of q. Types have separate outcomes because servers and
// middleboxes may drop queries of types that they do not support.
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

// recordQuestion records one outcome: that the server has answered q, or has left q unanswered if answered is false.
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

// hasAnsweredMost reports whether the server answered more than half of the recent questions that had the type of q. It
// returns false if no such question was recorded.
func (s *answerRate) hasAnsweredMost(q *wire.Query) bool {
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
