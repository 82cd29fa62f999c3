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

// SortByRTT returns the servers of g by smoothed round trip time: shortest first, then unknown times, then servers that
// fail or do not respond. If explore is true, the first server changes places with a random one, so no client may wait
// for q.
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

// preferenceRank returns the rank of the server for q; lower ranks are preferred. It is the logarithm to the base 1.3
// of the smoothed round trip time, or worstRank-1 if that is unknown. Servers that fail or do not respond have
// worstRank.
func (s *Server) preferenceRank(q *wire.Query) int {
	if s.isUnhealthy() || s.silentZones.isSilent(q) {
		return worstRank
	}
	srtt := s.smoothedRTT()
	if srtt == 0 {
		return worstRank - 1
	}
	return int(math.Log(max(srtt, 1e5)) / math.Log(1.3)) // servers with similar times have the same rank
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

// RefusingSince returns the latest time at which a server of the group began to refuse or close connections, or to send
// HTTP status 429 or 503. Servers that have responded since then do not count. The result is zero if no server counts.
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

// ProbeUnhealthy starts a background probe of each server that leaves queries unanswered or responds with failures. A
// probe may send the client's question q, except to the server queried by the caller. q and queried may be nil. now is
// the present time.
func (g Servers) ProbeUnhealthy(now time.Time, q *wire.Query, queried *Server) {
	for _, s := range g {
		if s.isUnhealthy() {
			s.startProbe(now, q, queried)
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

// startProbe sends questions in the background that show whether the server works. It does nothing if a probe is
// running or the last is too recent. The probe may send the client's question q, except to the server queried by the
// caller.
func (s *Server) startProbe(now time.Time, q *wire.Query, queried *Server) {
	if s == queried {
		q = nil
	}
	s.Probe(now, q)
}

// ProbeUnmeasured starts a background probe of each server without a response in the last five minutes, to measure its
// latency. It does nothing for one server, or below eight queries in all. A probe may send q, except to the server
// queried by the caller.
func (g Servers) ProbeUnmeasured(now time.Time, q *wire.Query, queried *Server) {
	if len(g) < 2 {
		return
	}
	var queries int64
	for _, s := range g {
		queries += s.queryCount.Load()
	}
	for _, s := range g {
		if queries >= minQueriesToMeasure && !s.HasAnsweredSince(now.Add(-measurementLifetime)) {
			s.startProbe(now, q, queried)
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

// selectServer returns the index of the server for the next query: the server with the fewest queries in this exchange.
// Failure responses and missing responses count as additional queries. Among equal servers, the first one is selected.
func (s *serverSelection) selectServer() int { return s.selectServerExcept(0) }

// selectServerExcept selects a server as selectServer does, but without the servers in the bit set excluded: bit i
// stands for index i. If it is not empty, indexes of 64 or more are excluded too. The result is -1 if no server is
// left.
func (s *serverSelection) selectServerExcept(excluded uint64) int {
	best, bestRank := -1, -1
	for i, server := range s.servers {
		if excluded>>i&1 != 0 || excluded != 0 && i >= 64 {
			continue
		}
		use := &s.histories[i]
		rank := 2 * (use.queries + failurePenalty*use.failures) // in halves of a query
		if server.isUnhealthy() || server.silentZones.isSilent(s.query) || use.queries > 0 && !server.HasAnswered() {
			rank += 2*silentPenalty + 1
		}
		if use.hasBeenUnable && use.failures == 0 {
			rank-- // the server has refused a connection, and a repeated refusal takes no time
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

// serverSet returns the bit set of the servers for which contains returns true; bit i stands for index i. The argument
// of contains is the record of the exchange's queries to the server. Indexes of 64 or more are never in the set.
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

// recordUnansweredQueries records an unanswered question for each server whose last query in this exchange was sent at
// least unansweredDelay before now. It skips servers that have responded to all their queries with failures.
func (s *serverSelection) recordUnansweredQueries(now time.Time) {
	for i, server := range s.servers {
		if use := &s.histories[i]; use.queries > use.failures && now.Sub(use.lastSent) >= server.unansweredDelay() {
			server.recordUnanswered(s.query, use.lastSent)
		}
	}
}

// selectAffordableServer selects a server whose budget permits a retransmission, in order of preference, and spends a
// token of that budget. isPaid is false if there is none. isFirst must be true for the first retransmission of a
// question.
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
		excluded |= s.failedServers() | 1<<i // a server that failed is only tried if it is the most preferred
	}
	return 0, false
}

// isZoneSilent reports whether every server of the group is silent about a domain that contains the name of this
// question: it leaves questions about that domain unanswered (see silentZones).
func (s *serverSelection) isZoneSilent() bool {
	return !slices.ContainsFunc(s.servers, func(server *Server) bool { return !server.silentZones.isSilent(s.query) })
}
