package group

import (
	"errors"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

const (
	// lastAttemptTimeouts is the minimum wait of the last attempt, in retransmission timeouts. It bridges a short outage
	// of the network in which hedges have used up the other attempts.
	lastAttemptTimeouts = 4

	// checkInterval is the interval to which exchanges align their timers. Timers that expire together cost less CPU time.
	checkInterval = 16 * time.Millisecond
)

// errLost is the cause with which the context of a query is cancelled when the query is presumed lost.
var errLost = errors.New("dnshedge: query is lost")

// A retransmissionTimer computes when the last query of an exchange is presumed lost and must be retransmitted (RFC
// 6298). The last query is the query of the primary or of the latest retransmission; hedges do not count. Exchange.mu
// guards it.
type retransmissionTimer struct {
	selection  *serverSelection
	connection [1 + MaxHedges]transport.QueryPath // connection that each attempt uses; each element has a lock of its own
	deadline   time.Time                          // time after which no query is sent; zero: the message is never sent again

	setupTime     time.Duration // expected duration of the handshake that the primary needs; 0: none is needed
	timeout       time.Duration // retransmission timeout of the first server when the exchange began
	count         int           // number of retransmissions so far
	lastServer    int           // index of the server that the last query went to
	lastAttempt   int           // number of the attempt that sent the last query
	lastSent      time.Time     // time at which the last query was sent
	unpaidUntil   time.Time     // no retransmission before this time, because the budgets did not permit one; zero: they did
	isLastAttempt bool          // exactly one further attempt is permitted
}

// lostAt returns the time at which the last query is presumed lost, given the present state. That time is one
// retransmission timeout of its server after the query, doubled for each retransmission. It is at least the loss delay
// after each later hedge.
//
// If the next query would go to another server, the wait is at most half of the time between the last query and the
// deadline. This limit does not apply if the next server is known to need longer for a response.
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
		at = latest // all responses of this server may come too late
	}
	if at.Before(r.unpaidUntil) {
		at = r.unpaidUntil
	}
	for i, s := range servers {
		if sent := r.selection.histories[i].lastSent; sent.After(r.lastSent) {
			if hedged := sent.Add(s.lossDelay()); at.Before(hedged) {
				at = hedged
			}
		}
	}
	return at
}

// timeoutEnd returns the time at which a query of the given attempt times out: timeout after it was sent. If its
// connection has carried another response since, the timeout counts from that response, because a working connection
// loses no packets.
//
// A server may drop one question and answer others. So the wait after sent is limited to the longest of timeout, half
// of the time to the deadline, and a second, because servers queue queries.
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

// lastAttemptTimeout returns how long the last attempt waits for the response to its query to s. sent is the time at
// which that query was sent.
func (r *retransmissionTimer) lastAttemptTimeout(s *Server, sent time.Time) time.Duration {
	return max(s.rto.currentTimeout(r.count, true), r.minLastAttemptTimeout(s, sent))
}

// minLastAttemptTimeout returns the least time that the last attempt waits for the response to a query to s. sent is
// the time at which that query was sent. The exchange waits as long before it starts the last attempt.
//
// The result is lastAttemptTimeouts retransmission timeouts, or half of the time between sent and the deadline if that
// is less.
func (r *retransmissionTimer) minLastAttemptTimeout(s *Server, sent time.Time) time.Duration {
	servers := r.selection.servers
	isAlone := len(servers) == 1
	timeout := min(r.timeout, servers[0].rto.currentTimeout(0, isAlone), s.rto.currentTimeout(0, isAlone))
	return min(lastAttemptTimeouts*timeout, r.deadline.Sub(sent)/2)
}

// backOff doubles the retransmission timeout of the server that the last query went to. It does nothing if that server
// has responded to any query since.
func (r *retransmissionTimer) backOff(now time.Time) {
	if s := r.selection.servers[r.lastServer]; !s.AnsweredSince(r.lastSent) {
		s.rto.backOff(r.lastSent, now)
	}
}

// recordQuery stores that the given attempt has sent the last query, to the server with the given index, at the time
// now.
func (r *retransmissionTimer) recordQuery(attempt, server int, now time.Time) {
	r.lastAttempt, r.lastServer, r.lastSent = attempt, server, now
}

// recordUnpaid postpones the next retransmission, because the budgets did not permit one at the time now.
func (r *retransmissionTimer) recordUnpaid(now time.Time) {
	r.unpaidUntil = now.Add(alignCheck(max(minRTO, now.Sub(r.lastSent)/2)))
}

// regularCheckDelay returns the time after which the timeout of a waiting query must be computed again. waited is the
// time since the query was sent.
//
// The timeout may change while the query waits. A failure may change the next server, and a response to another
// question ends the doubling of the timeout.
func regularCheckDelay(waited time.Duration) time.Duration { return alignCheck(max(minRTO, waited/4)) }

// alignCheck returns a duration that is longer than d by at most checkInterval. It ends when the wall clock is at a
// multiple of checkInterval, so that the timers of several exchanges expire together.
func alignCheck(d time.Duration) time.Duration {
	return d + checkInterval - time.Duration(time.Now().Add(d).UnixNano())%checkInterval
}
