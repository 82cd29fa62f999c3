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
	measuredFor = 5 * time.Minute // after which a server's round trip time is measured anew
	toMeasure   = 8               // queries to a group, after which it is worth while to know all its servers
)

// Servers is a group of servers, in an order.
type Servers []*Server

// ByTime returns the servers in the order of preference: by their smoothed round
// trip times, roughly, and if those are alike, as they were given. Doubtful servers, and those that are
// silent about q's zone, come last, and the one asked least recently is first among them: when all are
// doubtful they take turns, and callers' own queries find out which is back. If
// explore, no caller waits, and any server may come first.
func (g Servers) ByTime(q *wire.Query, explore bool) Servers {
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
		all[i] = ranked{s: s, rank: s.rank(q)}
		if all[i].rank == lastRank {
			all[i].used = s.used.Load()
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

const lastRank = math.MaxInt32

// rank orders servers by the logarithm of the smoothed round trip time, so that
// small differences do not matter. Servers without one come after them, and doubtful
// servers last.
func (s *Server) rank(q *wire.Query) int {
	if s.doubtful() || s.zones.silent(q) {
		return lastRank
	}
	srtt := s.roundTrip()
	if srtt == 0 {
		return lastRank - 1
	}
	return int(math.Log(max(srtt, 1e5)) / math.Log(1.3))
}

// AsGiven returns the servers as they were given, but those that are down last.
func (g Servers) AsGiven() Servers {
	up := make(Servers, 0, len(g))
	var down Servers
	for _, s := range g {
		if s.Down() {
			down = append(down, s)
		} else {
			up = append(up, s)
		}
	}
	return append(up, down...)
}

// Silent reports whether all are silent.
func (g Servers) Silent() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.Silent() })
}

// Down reports whether all are down.
func (g Servers) Down() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.Down() })
}

// AnsweredSince reports whether a server has answered any query after t.
func (g Servers) AnsweredSince(t time.Time) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.AnsweredSince(t) })
}

// RefuseSince returns when the last of those that refuse connections began to; zero: none does.
func (g Servers) RefuseSince() (last time.Time) {
	for _, s := range g {
		if at := s.refusesSince(); at.After(last) {
			last = at
		}
	}
	return last
}

// Alive reports whether one of the servers answers most questions of q's kind.
func (g Servers) Alive(q *wire.Query) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.share.most(q) })
}

// OthersAnswered is called when the servers have not answered q, and others have.
func (g Servers) OthersAnswered(q *wire.Query) {
	for _, s := range g {
		s.share.add(q, false)
	}
}

// ProbeDoubtful probes the servers that are silent or fail. First is the one that is asked q anyway; nil: none is.
func (g Servers) ProbeDoubtful(now time.Time, q *wire.Query, first *Server) {
	for _, s := range g {
		if s.doubtful() {
			s.probeFor(now, q, first)
		}
	}
}

// SendTrials asks the servers that are down q in the background, to find out which of them is back.
func (g Servers) SendTrials(now time.Time, q *wire.Query) {
	for _, s := range g {
		if s.Down() {
			s.sendTrial(now, q)
		}
	}
}

// probeFor is Probe, and if the server is asked q anyway, because it is the first, with other questions: the same question is asked once
// at a time.
func (s *Server) probeFor(now time.Time, q *wire.Query, first *Server) {
	if s == first {
		q = nil
	}
	s.Probe(now, q)
}

// Measure probes the servers that were not heard of for long, or never: one
// may be faster than those that are asked, and no caller shall wait to find that out. First is the one that is asked q anyway.
func (g Servers) Measure(now time.Time, q *wire.Query, first *Server) {
	if len(g) < 2 {
		return
	}
	var queries int64
	for _, s := range g {
		queries += s.queries.Load()
	}
	for _, s := range g {
		if queries >= toMeasure && !s.AnsweredSince(now.Add(-measuredFor)) {
			s.probeFor(now, q, first)
		}
	}
}
