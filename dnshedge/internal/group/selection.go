package group

import (
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	// silentPenalty is the number of queries by which a silent server ranks behind the others.
	silentPenalty = transport.MaxDatagrams

	// failurePenalty is the number of queries by which a server ranks behind the others for each failure to answer the question. It is asked again
	// when silent servers have had two queries.
	failurePenalty = silentPenalty + 1

	usualServers = 2 // of a group
)

// A serverSelection chooses the server for each query of an exchange, and counts the queries to each server. The lock of the exchange guards
// uses; the other fields do not change.
type serverSelection struct {
	query   *wire.Query
	servers Servers     // in the order of preference
	uses    []serverUse // of each server
	room    [usualServers]serverUse
}

// A serverUse is the history of one server in an exchange.
type serverUse struct {
	queries  int       // sent to the server
	failures int       // responses by which the server could not answer
	isUnable bool      // the server could not answer, or refused a connection
	lastSent time.Time // when the last query was sent
}

func (s *serverSelection) init(q *wire.Query, servers Servers) {
	s.query, s.servers = q, servers
	if n := len(servers); n <= usualServers {
		s.uses = s.room[:n]
	} else {
		s.uses = make([]serverUse, n)
	}
}

// selectServer returns the index of the server for the next query: the first of the servers with the fewest queries.
//
// A doubtful server ranks as if it had had silentPenalty more queries, and last among equals. So does a server that was asked and has never answered
// any query. Each failure to answer this question counts as failurePenalty queries. A server that refused a connection precedes servers with as many
// queries: no process has received its query, and if it refuses again the attempt asks the next server at once.
func (s *serverSelection) selectServer() int { return s.selectServerExcept(0) }

// selectServerExcept is selectServer without the servers of a bit set. If the set is not empty, servers above the 64th are excluded as well. It
// returns -1 if no server is left.
func (s *serverSelection) selectServerExcept(excluded uint64) int {
	best, bestRank := -1, -1
	for i, server := range s.servers {
		if excluded>>i&1 != 0 || excluded != 0 && i >= 64 {
			continue
		}
		use := &s.uses[i]
		rank := 2 * (use.queries + failurePenalty*use.failures)
		if server.isDoubtful() || server.silentZones.isSilent(s.query) || use.queries > 0 && !server.HasAnswered() {
			rank += 2*silentPenalty + 1
		}
		if use.isUnable && use.failures == 0 {
			rank-- // it has refused a connection
		}
		if bestRank < 0 || rank < bestRank {
			best, bestRank = i, rank
		}
	}
	return best
}

// askedServers returns the servers that were asked, as a bit set of the first 64.
func (s *serverSelection) askedServers() uint64 {
	return s.serverSet(func(u *serverUse) bool { return u.queries > 0 })
}

// failedServers returns the servers that could not answer the question, as a bit set of the first 64.
func (s *serverSelection) failedServers() uint64 {
	return s.serverSet(func(u *serverUse) bool { return u.failures > 0 })
}

func (s *serverSelection) serverSet(contains func(*serverUse) bool) (set uint64) {
	for i := range s.uses {
		if contains(&s.uses[i]) {
			set |= 1 << i
		}
	}
	return set
}

// serverBit returns the bit set of one server; empty for servers above the 64th.
func (s *serverSelection) serverBit(server *Server) uint64 {
	return 1 << slices.Index(s.servers, server)
}

// useOf returns the history of a server of the group.
func (s *serverSelection) useOf(server *Server) *serverUse {
	return &s.uses[slices.Index(s.servers, server)]
}

// recordQuery counts a query to server i, and returns the number of earlier queries to it.
func (s *serverSelection) recordQuery(i int, now time.Time) (earlier int) {
	use := &s.uses[i]
	use.queries++
	use.lastSent = now
	return use.queries - 1
}

// recordMisses counts a miss of each server that has not answered within its loss delay.
func (s *serverSelection) recordMisses(now time.Time) {
	for i, server := range s.servers {
		if use := &s.uses[i]; use.queries > 0 && now.Sub(use.lastSent) >= server.lossDelay() {
			server.recordMiss(s.query, use.lastSent)
		}
	}
}

// selectPaidServer returns the best server for a retransmission whose budget pays for it. isFirst is for the first retransmission of a question. A
// server that could not answer the question is returned only if it is the best of all.
func (s *serverSelection) selectPaidServer(isFirst bool) (server int, isPaid bool) {
	excluded := uint64(0)
	for range s.servers {
		i := s.selectServerExcept(excluded)
		if i < 0 {
			break
		}
		if s.servers[i].payRetransmission(s.query, isFirst) {
			return i, true
		}
		excluded |= s.failedServers() | 1<<i
	}
	return 0, false
}

// isZoneSilent reports whether all servers of the group are silent about the question's zone.
func (s *serverSelection) isZoneSilent() bool {
	return !slices.ContainsFunc(s.servers, func(server *Server) bool { return !server.silentZones.isSilent(s.query) })
}
