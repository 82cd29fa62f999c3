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
	measurementLifetime = 5 * time.Minute // time without a response after which the round trip time of a server is measured again
	minQueriesToMeasure = 8               // number of queries to a group before its unused servers are probed for their latency
)

// Servers is a group of servers that can answer the same questions, in order of preference.
type Servers []*Server

// SortByRTT returns the servers in order of preference for q: the server with the shortest smoothed round trip time
// first. Servers with similar times keep their order. Servers without a known time follow. g is not changed.
//
// Silent and failing servers come last, and so do servers that are silent about the domain of q. Among these servers,
// the least recently used one comes first, so that each gets a query in turn.
//
// If explore is true, the first server is a random one, so that unused servers are measured. Callers may set it only
// for queries that no client waits for.
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

// worstRank is the preferenceRank of doubtful servers. No other server has a higher rank.
const worstRank = math.MaxInt32

// preferenceRank returns the rank of the server for q; lower ranks are preferred. The rank is the logarithm of the
// smoothed round trip time to the base 1.3, so that small differences between servers do not matter.
//
// The rank is worstRank if the server is silent or failing, or silent about the domain of q. It is worstRank-1 if no
// round trip time is known.
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

// SortDownLast returns the servers in the same order, except that servers that are down follow all others. g is not
// changed.
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

// AreSilent reports whether every server of the group is silent (see Server.IsSilent).
func (g Servers) AreSilent() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.IsSilent() })
}

// AreDown reports whether every server of the group is down (see Server.IsDown).
func (g Servers) AreDown() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.IsDown() })
}

// AnsweredSince reports whether at least one server of the group has sent a response since t.
func (g Servers) AnsweredSince(t time.Time) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.AnsweredSince(t) })
}

// RefusingSince returns the time at which the group began to refuse connections. If several servers refuse connections,
// it is the latest of the times at which they began. It is zero if none does.
func (g Servers) RefusingSince() (last time.Time) {
	for _, s := range g {
		if at := s.refusingSince(); at.After(last) {
			last = at
		}
	}
	return last
}

// HaveAnsweredMost reports whether at least one server of the group usually answers questions of the type of q. Such a
// server has answered more than half of its recent questions of that type.
func (g Servers) HaveAnsweredMost(q *wire.Query) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.answerRate.hasAnsweredMost(q) })
}

// RecordUnanswered records that the servers of the group have left q unanswered. It must only be called if a server of
// another group answered q, because otherwise q itself may be unanswerable.
func (g Servers) RecordUnanswered(q *wire.Query) {
	for _, s := range g {
		s.answerRate.recordQuestion(q, false)
	}
}

// ProbeDoubtful starts a probe, in the background, of each server that is silent or failing. now is the present time. A
// probe may send the client's question q, except to the server first: the caller itself sends q to that server. first
// may be nil.
func (g Servers) ProbeDoubtful(now time.Time, q *wire.Query, first *Server) {
	for _, s := range g {
		if s.isDoubtful() {
			s.startProbe(now, q, first)
		}
	}
}

// SendTrials sends the client's question q in the background to each server that is down, to find out whether the
// server works again. Each server gets such a trial at most once per probe interval. now is the present time.
func (g Servers) SendTrials(now time.Time, q *wire.Query) {
	for _, s := range g {
		if s.IsDown() {
			s.sendTrial(now, q)
		}
	}
}

// startProbe calls Probe with the client's question q. If s is the server first, it calls Probe without a question,
// because the caller itself sends q to that server. now is the present time.
func (s *Server) startProbe(now time.Time, q *wire.Query, first *Server) {
	if s == first {
		q = nil
	}
	s.Probe(now, q)
}

// ProbeUnmeasured starts a probe, in the background, of each server that has not responded within measurementLifetime.
// So a server that gets no queries is used again once it is faster than the others. now is the present time.
//
// A probe may send the client's question q, except to the server first: the caller itself sends q to that server. first
// may be nil.
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
