package group

import (
	"errors"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

const (
	// lastAttemptTimeouts is the number of timeouts for which the last attempt waits at least. It is for short outages of the network, in which
	// hedges have used up the other attempts.
	lastAttemptTimeouts = 4

	// checkInterval is the grid of the times at which exchanges check their timers. Exchanges that wake up together cost less.
	checkInterval = 16 * time.Millisecond
)

// errLost is the cause by which a query is cancelled that counts as lost.
var errLost = errors.New("dnshedge: query is lost")

// A retransmissionTimer decides when the last query of an exchange counts as lost (RFC 6298). The last query is the primary or the last
// retransmission: hedges do not count. The lock of the exchange guards it.
type retransmissionTimer struct {
	selection  *serverSelection
	connection [1 + MaxHedges]transport.QueryPath // of each attempt; they have locks of their own
	deadline   time.Time                          // no query is sent after it; zero: the message is sent once

	setupTime     time.Duration // of the primary's connection
	timeout       time.Duration // of the primary's server
	count         int           // retransmissions so far
	lastServer    int           // of the last query
	lastAttempt   int           // that sent the last query
	lastSent      time.Time     // when the last query was sent
	unpaidUntil   time.Time     // there is no retransmission before this time, because no budget paid for it
	isLastAttempt bool          // the next attempt is the last one
}

// lostAt returns the time at which the last query counts as lost, by present knowledge. That is the retransmission timeout of its server, doubled for
// each retransmission, and not before the loss delay of a hedge that is under way. If another server is next, it gets half of the time
// that was left, unless its answers are known to take longer.
func (r *retransmissionTimer) lostAt() time.Time {
	servers := r.selection.servers
	server, next := servers[r.lastServer], servers[r.selection.selectServer()]
	wait := server.rto.currentTimeout(r.count, next == server || next.IsSilent())
	if r.count == 0 {
		wait += r.setupTime
	}
	if r.isLastAttempt {
		wait = max(wait, r.minLastPatience(server, r.lastSent))
	}
	at := r.patienceEnd(r.lastAttempt, r.lastSent, wait)
	half := r.deadline.Sub(r.lastSent) / 2
	if latest := r.lastSent.Add(half); next != server && next.rto.canAnswerWithin(half) && latest.Before(at) {
		at = latest // the answers of this server may all come too late
	}
	if at.Before(r.unpaidUntil) {
		at = r.unpaidUntil
	}
	for i, s := range servers {
		if sent := r.selection.uses[i].lastSent; sent.After(r.lastSent) {
			if hedged := sent.Add(s.lossDelay()); at.Before(hedged) {
				at = hedged
			}
		}
	}
	return at
}

// patienceEnd returns when the wait for the query of an attempt ends: the patience after it was sent, or after its connection last carried
// another answer, because a connection loses no packets.
//
// But a server may drop one question and answer others. So the wait takes at most half of the time that was left, and a second at least, because
// queries may wait for their turn.
func (r *retransmissionTimer) patienceEnd(attempt int, sent time.Time, patience time.Duration) time.Time {
	at := sent.Add(patience)
	if carried := r.connection[attempt].LastAnswer(); carried.After(sent) {
		at = carried.Add(patience)
	}
	if latest := sent.Add(max(patience, r.deadline.Sub(sent)/2, firstRTO)); latest.Before(at) {
		return latest
	}
	return at
}

// lastPatience returns how long the last attempt waits, by present knowledge, for a query that it sent to a server at the given time.
func (r *retransmissionTimer) lastPatience(s *Server, sent time.Time) time.Duration {
	return max(s.rto.currentTimeout(r.count, true), r.minLastPatience(s, sent))
}

// minLastPatience returns how long the last attempt, and the wait before it, last at least: up to half of the time that was left.
func (r *retransmissionTimer) minLastPatience(s *Server, sent time.Time) time.Duration {
	servers := r.selection.servers
	isAlone := len(servers) == 1
	timeout := min(r.timeout, servers[0].rto.currentTimeout(0, isAlone), s.rto.currentTimeout(0, isAlone))
	return min(lastAttemptTimeouts*timeout, r.deadline.Sub(sent)/2)
}

// backOff doubles the timeout of the last query's server, unless the server has answered another query since.
func (r *retransmissionTimer) backOff(now time.Time) {
	if s := r.selection.servers[r.lastServer]; !s.AnsweredSince(r.lastSent) {
		s.rto.backOff(r.lastSent, now)
	}
}

// recordQuery stores the last query: its attempt and its server.
func (r *retransmissionTimer) recordQuery(attempt, server int, now time.Time) {
	r.lastAttempt, r.lastServer, r.lastSent = attempt, server, now
}

// recordUnpaid postpones the retransmission, for which no budget paid.
func (r *retransmissionTimer) recordUnpaid(now time.Time) {
	r.unpaidUntil = now.Add(alignCheck(max(minRTO, now.Sub(r.lastSent)/2)))
}

// nextCheck returns the time until the next check of a query that has waited for the given time. In between, a failure may change the
// server that is next, and an answer to another question ends the doubling of the timeout.
func nextCheck(waited time.Duration) time.Duration { return alignCheck(max(minRTO, waited/4)) }

// alignCheck rounds the time until a check up to the next check of other exchanges.
func alignCheck(d time.Duration) time.Duration {
	return d + checkInterval - time.Duration(time.Now().Add(d).UnixNano())%checkInterval
}
