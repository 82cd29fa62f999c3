package group

import (
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	// silentPenalty is the number of queries that selectServer adds to the count of a silent server.
	silentPenalty = transport.MaxDatagrams

	// failurePenalty is the number of queries that selectServer adds to the count of a server for each failure response.
	// It lets silent servers have two queries before a server that failed is asked again.
	failurePenalty = silentPenalty + 1

	usualServers = 2 // largest group for which a serverSelection needs no allocation
)

// A serverSelection selects the server for each query of one exchange, and counts the queries to each server.
// Exchange.mu guards histories. The other fields never change after init.
type serverSelection struct {
	query         *wire.Query
	servers       Servers                     // the group, in order of preference
	histories     []serverHistory             // history of each server, with the same index as in servers
	historyBuffer [usualServers]serverHistory // memory for histories if the group is small
}

// A serverHistory is the history of one server in one exchange: its queries and failures.
type serverHistory struct {
	queries       int       // number of queries of the exchange to the server
	failures      int       // number of failure responses of the server
	hasBeenUnable bool      // the server has responded with a failure or refused a connection
	lastSent      time.Time // time of the last query; zero: none
}

// init sets the question q and the servers of the exchange, in order of preference. It must be called before any other
// method.
func (s *serverSelection) init(q *wire.Query, servers Servers) {
	s.query, s.servers = q, servers
	if n := len(servers); n <= usualServers {
		s.histories = s.historyBuffer[:n]
	} else {
		s.histories = make([]serverHistory, n)
	}
}

// selectServer returns the index of the server for the next query: the server with the fewest queries in this exchange
// so far.
//
// Failures count as additional queries: failurePenalty for each failure response, and silentPenalty for a server that
// is silent or failing, or that was asked and has never answered any query.
//
// Among equals, a server that refused a connection comes first, because no process has received its query. If it
// refuses again, the attempt continues with the next server at once. Servers with a silentPenalty come last. Otherwise
// the order of the servers decides.
func (s *serverSelection) selectServer() int { return s.selectServerExcept(0) }

// selectServerExcept is like selectServer, but never selects a server whose index is in the bit set excluded. If the
// set is not empty, it excludes all servers with an index of 64 or more as well. It returns -1 if no server is left.
func (s *serverSelection) selectServerExcept(excluded uint64) int {
	best, bestRank := -1, -1
	for i, server := range s.servers {
		if excluded>>i&1 != 0 || excluded != 0 && i >= 64 {
			continue
		}
		use := &s.histories[i]
		rank := 2 * (use.queries + failurePenalty*use.failures)
		if server.isDoubtful() || server.silentZones.isSilent(s.query) || use.queries > 0 && !server.HasAnswered() {
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

// askedServers returns the servers that were sent a query, as a bit set of indexes. Servers with an index of 64 or more
// are never in the set.
func (s *serverSelection) askedServers() uint64 {
	return s.serverSet(func(u *serverHistory) bool { return u.queries > 0 })
}

// failedServers returns the servers that responded with a failure, as a bit set of indexes. Servers with an index of 64
// or more are never in the set.
func (s *serverSelection) failedServers() uint64 {
	return s.serverSet(func(u *serverHistory) bool { return u.failures > 0 })
}

// serverSet returns a bit set of server indexes. It has the index of each server for whose history the function
// contains returns true. Servers with an index of 64 or more are never in the set.
func (s *serverSelection) serverSet(contains func(*serverHistory) bool) (set uint64) {
	for i := range s.histories {
		if contains(&s.histories[i]) {
			set |= 1 << i
		}
	}
	return set
}

// serverBit returns a bit set with only the index of the given server, which must be in the group. The set is empty if
// the index is 64 or more.
func (s *serverSelection) serverBit(server *Server) uint64 {
	return 1 << slices.Index(s.servers, server)
}

// findHistory returns the history of a server in the exchange. The server must be in the group. The caller must hold
// Exchange.mu.
func (s *serverSelection) findHistory(server *Server) *serverHistory {
	return &s.histories[slices.Index(s.servers, server)]
}

// recordQuery counts a query that is sent at the time now to the server with index i. It returns the number of earlier
// queries of the exchange to that server.
func (s *serverSelection) recordQuery(i int, now time.Time) (earlier int) {
	use := &s.histories[i]
	use.queries++
	use.lastSent = now
	return use.queries - 1
}

// recordMisses records a miss for each server whose last query has been unanswered for at least the server's loss
// delay. now is the present time.
func (s *serverSelection) recordMisses(now time.Time) {
	for i, server := range s.servers {
		if use := &s.histories[i]; use.queries > 0 && now.Sub(use.lastSent) >= server.lossDelay() {
			server.recordMiss(s.query, use.lastSent)
		}
	}
}

// selectPaidServer selects the server for a retransmission and spends tokens of its budget. It returns the index of the
// best server whose budget permits the retransmission. isPaid is false if no budget permits it. isFirst must be true
// for the first retransmission of a question.
//
// A server that responded with a failure is selected only if it is the best of all.
func (s *serverSelection) selectPaidServer(isFirst bool) (server int, isPaid bool) {
	excluded := uint64(0)
	for range s.servers {
		i := s.selectServerExcept(excluded)
		if i < 0 {
			break
		}
		if s.servers[i].payForRetransmission(s.query, isFirst) {
			return i, true
		}
		excluded |= s.failedServers() | 1<<i
	}
	return 0, false
}

// isZoneSilent reports whether every server of the group leaves questions about the domain of this question unanswered
// (see silentZones).
func (s *serverSelection) isZoneSilent() bool {
	return !slices.ContainsFunc(s.servers, func(server *Server) bool { return !server.silentZones.isSilent(s.query) })
}
