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
	measurementLifetime = 5 * time.Minute // after which a server's round trip time is measured anew
	minQueriesToMeasure = 8               // queries to a group, after which it is worth while to know all its servers
)

// Servers is a group of servers, in an order.
type Servers []*Server

// SortByRTT returns the servers in the order of preference: by smoothed round trip time, roughly, and for similar times
// in their configured order. Doubtful servers, and servers that are silent about q's zone, come last. Of these the
// least recently asked one is first, so that callers' queries find a server that is back. With explore no caller waits,
// and any server may come first.
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

const worstRank = math.MaxInt32

// preferenceRank orders servers by the logarithm of the smoothed round trip time, so that
// small differences do not matter. Servers without one come after them, and doubtful
// servers last.
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

// SortDownLast returns the servers in their configured order, with servers that are down last.
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

// AreSilent reports whether all are silent.
func (g Servers) AreSilent() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.IsSilent() })
}

// AreDown reports whether all are down.
func (g Servers) AreDown() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.IsDown() })
}

// AnsweredSince reports whether a server has answered any query after t.
func (g Servers) AnsweredSince(t time.Time) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.AnsweredSince(t) })
}

// RefusingSince returns the latest time at which a server began to refuse connections, of the servers that still refuse
// them. It is zero if no server refuses.
func (g Servers) RefusingSince() (last time.Time) {
	for _, s := range g {
		if at := s.refusingSince(); at.After(last) {
			last = at
		}
	}
	return last
}

// AnswerMost reports whether one of the servers answers most questions of q's kind.
func (g Servers) AnswerMost(q *wire.Query) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.answerRate.answersMost(q) })
}

// RecordAnsweredElsewhere is called when the servers have not answered q, and others have.
func (g Servers) RecordAnsweredElsewhere(q *wire.Query) {
	for _, s := range g {
		s.answerRate.recordQuestion(q, false)
	}
}

// ProbeDoubtful probes the servers that are silent or fail. First is the one that is asked q anyway; nil: none is.
func (g Servers) ProbeDoubtful(now time.Time, q *wire.Query, first *Server) {
	for _, s := range g {
		if s.isDoubtful() {
			s.startProbe(now, q, first)
		}
	}
}

// SendTrials asks the servers that are down q in the background, to find out which of them is back.
func (g Servers) SendTrials(now time.Time, q *wire.Query) {
	for _, s := range g {
		if s.IsDown() {
			s.sendTrial(now, q)
		}
	}
}

// startProbe is Probe, and if the server is asked q anyway, because it is the first, with other questions: the same question is asked once
// at a time.
func (s *Server) startProbe(now time.Time, q *wire.Query, first *Server) {
	if s == first {
		q = nil
	}
	s.Probe(now, q)
}

// ProbeUnmeasured probes the servers without a recent measurement, because one of them may be faster than the servers
// in use. Callers do not wait for that. first is the server that gets q.
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
