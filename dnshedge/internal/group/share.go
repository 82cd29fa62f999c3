package group

import (
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// share is which part of the questions of late a server has answered, among those that it or another server answered, by
// kind of question. It is safe for concurrent use.
type share struct {
	mu    sync.Mutex // guards kinds
	kinds [4]ring
}

// ring is the latest pieces of evidence, in turn. What came of one name is one piece, however often it came.
type ring struct {
	pieces [8]piece
	next   int
}

type piece struct {
	name     string // in wire format; empty: there was none yet
	answered bool
}

// kindOf returns the index of the kind of a question: servers and what is before them drop types that they do not know.
func kindOf(q *wire.Query) int {
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

// add adds what came of a question.
func (s *share) add(q *wire.Query, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.kinds[kindOf(q)]
	if slices.ContainsFunc(r.pieces[:], func(p piece) bool { return p.answered == answered && strings.EqualFold(p.name, q.Name) }) {
		return
	}
	r.pieces[r.next] = piece{q.Name, answered}
	r.next = (r.next + 1) % len(r.pieces)
}

// most reports whether most questions of q's kind were answered. One of which nothing is known has answered none.
func (s *share) most(q *wire.Query) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all, answered int
	for _, p := range s.kinds[kindOf(q)].pieces {
		if p.name != "" {
			all++
		}
		if p.answered {
			answered++
		}
	}
	return 2*answered > all
}
