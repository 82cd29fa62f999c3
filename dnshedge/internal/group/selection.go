package group

import (
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	// silentPenalty is the number of queries that selectServer adds for a silent server.
	silentPenalty = transport.MaxDatagrams

	// failurePenalty is the number of queries that selectServer adds for each failure response. With it, a server that
	// failed is asked again after silent servers have had two queries.
	failurePenalty = silentPenalty + 1

	usualServers = 2 // group size without an allocation
)

// A serverSelection selects the server for each query of an exchange, and counts the queries to each server. The lock
// of the exchange guards uses; the other fields do not change.
type serverSelection struct {
	query      *wire.Query
	servers    Servers                 // in the order of preference
	uses       []serverUse             // by index in servers
	usesBuffer [usualServers]serverUse // memory for uses
}

// A serverUse is the history of one server in an exchange.
type serverUse struct {
	queries  int       // number of queries sent to the server
	failures int       // number of failure responses
	isUnable bool      // the server responded with a failure or refused a connection
	lastSent time.Time // time of the last query
}

// init prepares s for the question q and a group of servers.
func (s *serverSelection) init(q *wire.Query, servers Servers) {
	s.query, s.servers = q, servers
	if n := len(servers); n <= usualServers {
		s.uses = s.usesBuffer[:n]
	} else {
		s.uses = make([]serverUse, n)
	}
}

// selectServer returns the index of the server for the next query: the first of the servers with the fewest queries.
//
// Penalties count as queries. Each failure response counts as failurePenalty queries. A doubtful server counts as
// silentPenalty more queries, and comes last among equals. So does a server that was asked and has never answered any
// query.
//
// A server that refused a connection comes first among equals: no process has received its query. If it refuses again,
// the attempt continues with the next server at once.
func (s *serverSelection) selectServer() int { return s.selectServerExcept(0) }

// selectServerExcept is selectServer without the servers in the bit set excluded. A non-empty set also excludes all
// servers from index 64 on. It returns -1 if no server is left.
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

// askedServers returns the bit set of the servers that a query was sent to, among the first 64.
func (s *serverSelection) askedServers() uint64 {
	return s.serverSet(func(u *serverUse) bool { return u.queries > 0 })
}

// failedServers returns the bit set of the servers that responded with a failure, among the first 64.
func (s *serverSelection) failedServers() uint64 {
	return s.serverSet(func(u *serverUse) bool { return u.failures > 0 })
}

// serverSet returns the bit set of the servers for which contains returns true, among the first 64.
func (s *serverSelection) serverSet(contains func(*serverUse) bool) (set uint64) {
	for i := range s.uses {
		if contains(&s.uses[i]) {
			set |= 1 << i
		}
	}
	return set
}

// serverBit returns the bit set with one server. It is empty for servers from index 64 on.
func (s *serverSelection) serverBit(server *Server) uint64 {
	return 1 << slices.Index(s.servers, server)
}

// findUse returns the serverUse of a server, which must be in the group.
func (s *serverSelection) findUse(server *Server) *serverUse {
	return &s.uses[slices.Index(s.servers, server)]
}

// recordQuery counts a query to the server with index i. It returns the number of earlier queries to it.
func (s *serverSelection) recordQuery(i int, now time.Time) (earlier int) {
	use := &s.uses[i]
	use.queries++
	use.lastSent = now
	return use.queries - 1
}

// recordMisses records a miss for each server that has left the last query unanswered for its loss delay.
func (s *serverSelection) recordMisses(now time.Time) {
	for i, server := range s.servers {
		if use := &s.uses[i]; use.queries > 0 && now.Sub(use.lastSent) >= server.lossDelay() {
			server.recordMiss(s.query, use.lastSent)
		}
	}
}

// selectPaidServer returns the best server for a retransmission whose account pays for it. isFirst is for the first
// retransmission of a question. A server that responded with a failure is returned only if it is the best of all.
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

// isZoneSilent reports whether every server of the group is silent about a domain of the question.
func (s *serverSelection) isZoneSilent() bool {
	return !slices.ContainsFunc(s.servers, func(server *Server) bool { return !server.silentZones.isSilent(s.query) })
}
