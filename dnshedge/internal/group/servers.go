package group

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	measurementLifetime = 5 * time.Minute // after this time without an answer, a server's round trip time is measured again
	minQueriesToMeasure = 8               // queries to a group before its unused servers are measured
)

// Servers is an ordered group of servers that can answer the same questions.
type Servers []*Server

// SortByRTT returns the servers in the order of preference for q: by smoothed round trip time, and in configured order
// if the times are similar. Doubtful servers, and servers that are silent about q's domain, come last. The least
// recently asked of these comes first, so that each is tried in turn.
//
// explore puts a random server first. It is for queries that no caller waits for.
func (g Servers) SortByRTT(q *wire.Query, explore bool) Servers {
	if len(g) < 2 {
		return g
	}
	type ranked struct {
		s    *Server
		rank int
		used int64
	}
	all := make([]ranked, len(g))
	for i, s := range g {
		all[i] = ranked{s: s, rank: s.preferenceRank(q)}
		if all[i].rank == worstRank {
			all[i].used = s.lastAsked.Load()
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Or(a.rank-b.rank, cmp.Compare(a.used, b.used)) })
	out := make(Servers, len(g))
	for i, r := range all {
		out[i] = r.s
	}
	if explore {
		n := rand.IntN(len(out))
		out[0], out[n] = out[n], out[0]
	}
	return out
}

// worstRank is the preferenceRank of servers that come last.
const worstRank = math.MaxInt32

// preferenceRank returns the rank of the server for q; lower is better. It is the logarithm of the smoothed round trip
// time, so that small differences do not matter. Servers without a known time, and then doubtful servers, come last.
func (s *Server) preferenceRank(q *wire.Query) int {
	if s.isDoubtful() || s.silentZones.isSilent(q) {
		return worstRank
	}
	srtt := s.smoothedRTT()
	if srtt == 0 {
		return worstRank - 1
	}
	return int(math.Log(max(srtt, 1e5)) / math.Log(1.3))
}

// SortDownLast returns the servers in their present order, except that servers that are down come last.
func (g Servers) SortDownLast() Servers {
	up := make(Servers, 0, len(g))
	var down Servers
	for _, s := range g {
		if s.IsDown() {
			down = append(down, s)
		} else {
			up = append(up, s)
		}
	}
	return append(up, down...)
}

// AreSilent reports whether all servers of the group are silent.
func (g Servers) AreSilent() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.IsSilent() })
}

// AreDown reports whether all servers of the group are down.
func (g Servers) AreDown() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.IsDown() })
}

// AnsweredSince reports whether a response of any server of the group arrived after t.
func (g Servers) AnsweredSince(t time.Time) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.AnsweredSince(t) })
}

// RefusingSince returns the time at which the most recent of the refusing servers began to refuse connections. It is
// zero if no server refuses them.
func (g Servers) RefusingSince() (last time.Time) {
	for _, s := range g {
		if at := s.refusingSince(); at.After(last) {
			last = at
		}
	}
	return last
}

// AnswerMost reports whether any server of the group answered more than half of its recent questions with q's type.
func (g Servers) AnswerMost(q *wire.Query) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.answerRate.answersMost(q) })
}

// RecordUnanswered records for each server that it has left q unanswered, and that a server outside of the group
// has answered q.
func (g Servers) RecordUnanswered(q *wire.Query) {
	for _, s := range g {
		s.answerRate.recordQuestion(q, false)
	}
}

// ProbeDoubtful starts a probe of each server that is silent or failing. first is the server that is sent q anyway, or
// nil.
func (g Servers) ProbeDoubtful(now time.Time, q *wire.Query, first *Server) {
	for _, s := range g {
		if s.isDoubtful() {
			s.startProbe(now, q, first)
		}
	}
}

// SendTrials sends q in the background to each server that is down, to find out which of them work again.
func (g Servers) SendTrials(now time.Time, q *wire.Query) {
	for _, s := range g {
		if s.IsDown() {
			s.sendTrial(now, q)
		}
	}
}

// startProbe starts a probe with the question q, or without it if s is first, the server that is sent q anyway.
func (s *Server) startProbe(now time.Time, q *wire.Query, first *Server) {
	if s == first {
		q = nil
	}
	s.Probe(now, q)
}

// ProbeUnmeasured starts a probe of each server without a response within measurementLifetime, because it may be faster
// than the servers in use. first is the server that is sent q anyway, or nil.
func (g Servers) ProbeUnmeasured(now time.Time, q *wire.Query, first *Server) {
	if len(g) < 2 {
		return
	}
	var queries int64
	for _, s := range g {
		queries += s.queryCount.Load()
	}
	for _, s := range g {
		if queries >= minQueriesToMeasure && !s.AnsweredSince(now.Add(-measurementLifetime)) {
			s.startProbe(now, q, first)
		}
	}
}
