package group

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	measurementLifetime = 5 * time.Minute // time without a response after which the round trip time of a server is measured again
	minQueriesToMeasure = 8               // number of queries to a group before its unused servers are probed for their latency
)

// Servers is a group of equivalent servers, in order of preference.
type Servers []*Server

// SortByRTT returns the servers in order of preference for q: the server with the shortest smoothed round trip time
// first. Servers with similar times keep their order. Servers without a known time follow. g is not changed.
//
// Servers that are silent, failing, or silent about the domain of q come last. The least recently used of them comes
// first, so that each gets a query in turn.
//
// If explore is true, a random server changes places with the first one, so that unused servers are measured. Callers
// may set explore only for queries that no client waits for.
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

// worstRank is the preferenceRank of servers that are silent or failing, or silent about the domain of the question. No
// other server has a higher rank.
const worstRank = math.MaxInt32

// preferenceRank returns the rank of the server for q; lower ranks are preferred. The rank is the logarithm of the
// smoothed round trip time to the base 1.3, so that small differences between servers do not matter. A server without a
// known round trip time has a higher rank than any server with one.
//
// The highest rank, worstRank, is for servers that are silent or failing, or silent about the domain of q.
func (s *Server) preferenceRank(q *wire.Query) int {
	if s.isUnhealthy() || s.silentZones.isSilent(q) {
		return worstRank
	}
	srtt := s.smoothedRTT()
	if srtt == 0 {
		return worstRank - 1
	}
	return int(math.Log(max(srtt, 1e5)) / math.Log(1.3))
}

// SortDownLast returns the servers in the same order, except that servers that are down follow all others. A server is
// down if it leaves queries unanswered, or responds with failures, and has failed a probe as well. g is not changed.
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

// AreAllSilent reports whether every server of the group is silent: it has left its last three queries unanswered.
func (g Servers) AreAllSilent() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.IsSilent() })
}

// AreAllDown reports whether every server of the group is down. A server is down if it leaves queries unanswered, or
// responds with failures, and has failed a probe as well.
func (g Servers) AreAllDown() bool {
	return !slices.ContainsFunc(g, func(s *Server) bool { return !s.IsDown() })
}

// HasAnsweredSince reports whether at least one server of the group has sent a response since t.
func (g Servers) HasAnsweredSince(t time.Time) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.HasAnsweredSince(t) })
}

// RefusingSince returns the latest time at which a server of the group began to refuse connections or ask for less load
// (HTTP status 429 or 503). Closed connections count as refused. Servers that have responded since then do not count.
// The result is zero if no server counts.
func (g Servers) RefusingSince() (last time.Time) {
	for _, s := range g {
		if at := s.refusingSince(); at.After(last) {
			last = at
		}
	}
	return last
}

// HasAnsweredMost reports whether at least one server of the group has answered more than half of its recent questions
// of the type of q.
func (g Servers) HasAnsweredMost(q *wire.Query) bool {
	return slices.ContainsFunc(g, func(s *Server) bool { return s.answerRate.hasAnsweredMost(q) })
}

// RecordUnanswered records that no server of the group has answered q. It must only be called if a server of another
// group has answered q, because otherwise q itself may be unanswerable.
func (g Servers) RecordUnanswered(q *wire.Query) {
	for _, s := range g {
		s.answerRate.recordQuestion(q, false)
	}
}

// ProbeUnhealthy starts a probe, in the background, of each server that is silent or failing. A probe sends questions
// that show whether the server works. now is the present time.
//
// A probe may send the client's question q, except to the server first, to which the caller itself sends q. first may
// be nil.
func (g Servers) ProbeUnhealthy(now time.Time, q *wire.Query, first *Server) {
	for _, s := range g {
		if s.isUnhealthy() {
			s.startProbe(now, q, first)
		}
	}
}

// RetryDownServers sends the client's question q in the background to each server that is down, at most once per probe
// interval, to find out whether the server works again. now is the present time.
func (g Servers) RetryDownServers(now time.Time, q *wire.Query) {
	for _, s := range g {
		if s.IsDown() {
			s.retryDownServer(now, q)
		}
	}
}

// startProbe starts a probe of the server in the background: questions that show whether the server works. It does
// nothing if a probe is running, or the last one is too recent. now is the present time.
//
// The probe may send the client's question q. If s is the server first, it does not, because the caller itself sends q
// to that server.
func (s *Server) startProbe(now time.Time, q *wire.Query, first *Server) {
	if s == first {
		q = nil
	}
	s.Probe(now, q)
}

// ProbeUnmeasured starts a probe, in the background, of each server that has not responded within the last five minutes
// (measurementLifetime). A probe sends questions whose responses show the server's latency. now is the present time.
//
// It does nothing if the group has only one server, or if its servers have received fewer than eight queries in all
// (minQueriesToMeasure).
//
// A probe may send the client's question q, except to the server first, to which the caller itself sends q. first may
// be nil.
func (g Servers) ProbeUnmeasured(now time.Time, q *wire.Query, first *Server) {
	if len(g) < 2 {
		return
	}
	var queries int64
	for _, s := range g {
		queries += s.queryCount.Load()
	}
	for _, s := range g {
		if queries >= minQueriesToMeasure && !s.HasAnsweredSince(now.Add(-measurementLifetime)) {
			s.startProbe(now, q, first)
		}
	}
}

const (
	// silentPenalty is the number of queries that selectServer adds to the count of a silent server.
	silentPenalty = transport.MaxDatagrams

	// failurePenalty is the number of queries that selectServer adds to the count of a server for each failure response.
	// It lets silent servers have two queries before a server that failed is asked again.
	failurePenalty = silentPenalty + 1

	usualServers = 2 // largest group for which a serverSelection needs no allocation
)

// A serverSelection selects the server for each query of one exchange, and counts the queries to each server.
// Exchange.mu guards the field histories. The other fields never change.
type serverSelection struct {
	query         *wire.Query
	servers       Servers                     // the group, in order of preference
	histories     []serverHistory             // history of each server, with the same index as in servers
	historyBuffer [usualServers]serverHistory // memory for histories if the group is small
}

// A serverHistory counts the queries of one exchange to one server, and the failures of that server.
type serverHistory struct {
	queries       int       // number of queries of the exchange to the server
	failures      int       // number of failure responses of the server
	hasBeenUnable bool      // the server has responded with a failure or refused a connection
	lastSent      time.Time // time of the last query; zero: none
}

// selectServer returns the index of the server for the next query: the server with the fewest queries in this exchange,
// including penalties. Among equal servers, the first one is selected.
//
// Each failure response adds four queries (failurePenalty). A server that is silent, failing, or silent about the
// domain of the question has 3.5 additional queries (silentPenalty and a half). So has a server that was queried in
// this exchange and has never answered any question without a failure.
//
// A server that refused a connection, and sent no failure response, has half a query less, because a repeated refusal
// takes no time.
func (s *serverSelection) selectServer() int { return s.selectServerExcept(0) }

// selectServerExcept returns the index of the server for the next query, among the servers that are not in the bit set
// excluded. It is the server with the fewest queries in this exchange, including the penalties of selectServer. The
// result is -1 if no server is left.
//
// Bit i of excluded stands for the server with index i. If excluded is not empty, servers with an index of 64 or more
// are excluded as well.
func (s *serverSelection) selectServerExcept(excluded uint64) int {
	best, bestRank := -1, -1
	for i, server := range s.servers {
		if excluded>>i&1 != 0 || excluded != 0 && i >= 64 {
			continue
		}
		use := &s.histories[i]
		rank := 2 * (use.queries + failurePenalty*use.failures)
		if server.isUnhealthy() || server.silentZones.isSilent(s.query) || use.queries > 0 && !server.HasAnswered() {
			rank += 2*silentPenalty + 1
		}
		if use.hasBeenUnable && use.failures == 0 {
			rank-- // the server has refused a connection
		}
		if bestRank < 0 || rank < bestRank {
			best, bestRank = i, rank
		}
	}
	return best
}

// failedServers returns the set of servers that responded to this exchange with a failure. Bit i of the result
// stands for the server with index i. Servers with an index of 64 or more are never in the set.
func (s *serverSelection) failedServers() uint64 {
	return s.serverSet(func(u *serverHistory) bool { return u.failures > 0 })
}

// serverSet returns the bit set of the servers for which the function contains returns true. Bit i stands for the
// server with the index i. The function gets the record of the exchange's queries to the server. Servers with an index
// of 64 or more are never in the set.
func (s *serverSelection) serverSet(contains func(*serverHistory) bool) (set uint64) {
	for i := range s.histories {
		if contains(&s.histories[i]) {
			set |= 1 << i
		}
	}
	return set
}

// serverBit returns the bit set that contains only the given server. Bit i of a set stands for the server with the
// index i in the group. The server must be in the group. The set is empty if the index is 64 or more.
func (s *serverSelection) serverBit(server *Server) uint64 {
	return 1 << slices.Index(s.servers, server)
}

// recordQuery counts a query that is sent at the time now to the server with the index i. It returns the number of
// earlier queries of the exchange to that server.
func (s *serverSelection) recordQuery(i int, now time.Time) (earlier int) {
	use := &s.histories[i]
	use.queries++
	use.lastSent = now
	return use.queries - 1
}

// recordUnansweredQueries records an unanswered question for each server whose last query in this exchange is older
// than its unansweredDelay, the time after which a query counts as unanswered. It skips servers that have responded to
// all their queries, with failures. A query does not count against the health of a server that has sent any response
// since then. now is the present time.
func (s *serverSelection) recordUnansweredQueries(now time.Time) {
	for i, server := range s.servers {
		if use := &s.histories[i]; use.queries > use.failures && now.Sub(use.lastSent) >= server.unansweredDelay() {
			server.recordUnanswered(s.query, use.lastSent)
		}
	}
}

// selectAffordableServer selects the server for a retransmission, and spends a token of that server's budget. It tries
// the servers in order of preference (see selectServer), and returns the index of the first server whose budget permits
// the retransmission. isPaid is false if no budget permits it. isFirst must be true for the first retransmission of a
// question.
//
// A server that responded with a failure is tried only if it is the most preferred server.
func (s *serverSelection) selectAffordableServer(isFirst bool) (server int, isPaid bool) {
	excluded := uint64(0)
	for range s.servers {
		i := s.selectServerExcept(excluded)
		if i < 0 {
			break
		}
		if s.servers[i].spendForRetransmission(s.query, isFirst) {
			return i, true
		}
		excluded |= s.failedServers() | 1<<i
	}
	return 0, false
}

// isZoneSilent reports whether every server of the group is silent about a domain that contains the name of this
// question: it leaves questions about that domain unanswered (see silentZones).
func (s *serverSelection) isZoneSilent() bool {
	return !slices.ContainsFunc(s.servers, func(server *Server) bool { return !server.silentZones.isSilent(s.query) })
}
