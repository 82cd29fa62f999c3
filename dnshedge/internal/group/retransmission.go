package group

import (
	"errors"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

const (
	// lastAttemptTimeouts is the number of timeouts for which the last attempt waits at least. It bridges short outages of
	// the network in which hedges have used up the other attempts.
	lastAttemptTimeouts = 4

	// checkInterval aligns the times at which exchanges call Admit. Exchanges that wake up together cost less.
	checkInterval = 16 * time.Millisecond
)

// errLost is the cause of the cancellation of a query that is presumed lost.
var errLost = errors.New("dnshedge: query is lost")

// A retransmissionTimer computes when the last query of an exchange is presumed lost (RFC 6298). The last query is the
// primary or the last retransmission; hedges do not count. The lock of the exchange guards it.
type retransmissionTimer struct {
	selection  *serverSelection
	connection [1 + MaxHedges]transport.QueryPath // connection of each attempt; has locks of its own
	deadline   time.Time                          // no query is sent after it; zero: the message is sent once

	setupTime     time.Duration // expected time of the primary's handshake; 0: none is needed
	timeout       time.Duration // retransmission timeout of the first server when the exchange began
	count         int           // number of retransmissions
	lastServer    int           // index of the server of the last query
	lastAttempt   int           // number of the attempt that sent the last query
	lastSent      time.Time     // time of the last query
	unpaidUntil   time.Time     // no retransmission before this time, because no budget paid for one
	isLastAttempt bool          // only one further attempt is allowed
}

// lostAt returns the time at which the last query is presumed lost, given the present state. That is after the
// retransmission timeout of its server, doubled for each retransmission. It is not before the loss delay of a later
// hedge.
//
// If another server is next, the wait is at most half of the time that was left. This limit does not apply if that
// server is known to need longer for an answer.
func (r *retransmissionTimer) lostAt() time.Time {
	servers := r.selection.servers
	server, next := servers[r.lastServer], servers[r.selection.selectServer()]
	wait := server.rto.currentTimeout(r.count, next == server || next.IsSilent())
	if r.count == 0 {
		wait += r.setupTime
	}
	if r.isLastAttempt {
		wait = max(wait, r.minLastAttemptTimeout(server, r.lastSent))
	}
	at := r.timeoutEnd(r.lastAttempt, r.lastSent, wait)
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

// timeoutEnd returns when the wait for the answer to an attempt's query ends: at sent plus timeout. If its connection
// has carried another answer since, the timeout counts from then, because a connection loses no packets.
//
// A server may drop one question and answer others. So the wait takes at most half of the time that was left, but at
// least a second, because servers queue queries.
func (r *retransmissionTimer) timeoutEnd(attempt int, sent time.Time, timeout time.Duration) time.Time {
	at := sent.Add(timeout)
	if carried := r.connection[attempt].LastAnswer(); carried.After(sent) {
		at = carried.Add(timeout)
	}
	if latest := sent.Add(max(timeout, r.deadline.Sub(sent)/2, firstRTO)); latest.Before(at) {
		return latest
	}
	return at
}

// lastAttemptTimeout returns how long the last attempt waits for the answer to a query that it sent to s at the given time.
func (r *retransmissionTimer) lastAttemptTimeout(s *Server, sent time.Time) time.Duration {
	return max(s.rto.currentTimeout(r.count, true), r.minLastAttemptTimeout(s, sent))
}

// minLastAttemptTimeout returns the least time that the last attempt waits for a query sent to s at the given time. The
// exchange also waits that long before the last attempt. The result is lastAttemptTimeouts timeouts, or half of the
// time that was left if that is less.
func (r *retransmissionTimer) minLastAttemptTimeout(s *Server, sent time.Time) time.Duration {
	servers := r.selection.servers
	isAlone := len(servers) == 1
	timeout := min(r.timeout, servers[0].rto.currentTimeout(0, isAlone), s.rto.currentTimeout(0, isAlone))
	return min(lastAttemptTimeouts*timeout, r.deadline.Sub(sent)/2)
}

// backOff doubles the timeout of the last query's server, unless that server has answered any query since.
func (r *retransmissionTimer) backOff(now time.Time) {
	if s := r.selection.servers[r.lastServer]; !s.AnsweredSince(r.lastSent) {
		s.rto.backOff(r.lastSent, now)
	}
}

// recordQuery stores the attempt and the server of the last query, sent at now.
func (r *retransmissionTimer) recordQuery(attempt, server int, now time.Time) {
	r.lastAttempt, r.lastServer, r.lastSent = attempt, server, now
}

// recordUnpaid postpones the next retransmission because no budget paid for it.
func (r *retransmissionTimer) recordUnpaid(now time.Time) {
	r.unpaidUntil = now.Add(alignCheck(max(minRTO, now.Sub(r.lastSent)/2)))
}

// regularCheckDelay returns the time until the wait of a query is examined again. waited is the time since the query was sent.
// A regular check is needed because a failure may change the next server, and an answer to another question ends the
// doubling of the timeout.
func regularCheckDelay(waited time.Duration) time.Duration { return alignCheck(max(minRTO, waited/4)) }

// alignCheck lengthens d so that it ends at a multiple of checkInterval, at the same time as the checks of other
// exchanges.
func alignCheck(d time.Duration) time.Duration {
	return d + checkInterval - time.Duration(time.Now().Add(d).UnixNano())%checkInterval
}
