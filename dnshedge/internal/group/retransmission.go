package group

import (
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

// A retransmissionTimer computes when the last query of an exchange is presumed lost, so that the question must be sent
// again (RFC 6298). The last query is that of the primary or of the latest retransmission; hedges do not count.
// Exchange.mu guards it.
type retransmissionTimer struct {
	selection  *serverSelection
	connection [1 + MaxHedges]transport.QueryPath // connection that each attempt uses; each element has a lock of its own
	deadline   time.Time                          // time after which no query is sent; zero: the message is never sent again

	setupTime      time.Duration // expected duration of the handshake that the primary needs; 0: none is needed
	timeout        time.Duration // retransmission timeout of the first server when the exchange began
	count          int           // number of retransmissions so far
	lastServer     int           // index of the server that the last query went to
	lastAttempt    int           // number of the attempt that sent the last query
	lastSent       time.Time     // time at which the last query was sent
	postponedUntil time.Time     // no retransmission before this time, because the budgets of the servers did not permit one; zero: they did
	hasFewAttempts bool          // at most one further attempt is permitted
}

// presumedLossTime returns the time at which the last query is presumed lost, so that a retransmission is due. The
// result may change with each response, hedge and failure.
//
// The wait is the retransmission timeout of the queried server, which doubles with each retransmission. For the first
// query, it includes the expected handshake. If at most one further attempt is permitted, it is at least
// minLastAttemptTimeout. Responses over the same connection extend it (see timeoutEnd).
//
// If the next query would go to another server, the wait is at most half of the time from the last query to the
// deadline. This limit does not apply if the other server cannot respond within that half (see canAnswerWithin).
//
// The result is never before postponedUntil. It is also never before each later query of a hedge has waited for the
// loss delay of its server. If the next query would go to the same server, and the protocol of that server retransmits
// lost packets itself, the result is the deadline.
func (r *retransmissionTimer) presumedLossTime() time.Time {
	servers := r.selection.servers
	server, next := servers[r.lastServer], servers[r.selection.selectServer()]
	if next == server && server.recoversLoss {
		return r.deadline
	}
	wait := server.rto.currentTimeout(r.count, next == server || next.IsSilent())
	if r.count == 0 {
		wait += r.setupTime
	}
	if r.hasFewAttempts {
		wait = max(wait, r.minLastAttemptTimeout(server, r.lastSent))
	}
	at := r.timeoutEnd(r.lastAttempt, r.lastSent, wait)
	half := r.deadline.Sub(r.lastSent) / 2
	if latest := r.lastSent.Add(half); next != server && next.rto.canAnswerWithin(half) && latest.Before(at) {
		at = latest // all responses of this server may come too late
	}
	if at.Before(r.postponedUntil) {
		at = r.postponedUntil
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

// timeoutEnd returns the time at which a query of the given attempt times out. sent is the time at which the query was
// sent, and timeout is how long it may wait. The wait begins again with each later response over the same connection,
// which shows that the connection works.
//
// The total wait is limited to the longest of three durations: timeout, one second (firstRTO), and half of the time
// from sent to the deadline.
func (r *retransmissionTimer) timeoutEnd(attempt int, sent time.Time, timeout time.Duration) time.Time {
	at := sent.Add(timeout)
	if carried := r.connection[attempt].LastAnswer(); carried.After(sent) {
		at = carried.Add(timeout)
	}
	// A server may drop one question and answer others, or queue queries.
	if latest := sent.Add(max(timeout, r.deadline.Sub(sent)/2, firstRTO)); latest.Before(at) {
		return latest
	}
	return at
}

// minLastAttemptTimeout returns the least time to wait for the response to a query to s when at most one further
// attempt is permitted. sent is the time at which that query was sent. With this minimum, a short outage of the network
// does not use up all attempts.
//
// The result is four times a retransmission timeout (lastAttemptTimeouts), but at most half of the time from sent to
// the deadline. The retransmission timeout is the shortest of three: that of s, that of the first server, and that of
// the first server when the exchange began.
func (r *retransmissionTimer) minLastAttemptTimeout(s *Server, sent time.Time) time.Duration {
	servers := r.selection.servers
	isAlone := len(servers) == 1
	timeout := min(r.timeout, servers[0].rto.currentTimeout(0, isAlone), s.rto.currentTimeout(0, isAlone))
	return min(lastAttemptTimeouts*timeout, r.deadline.Sub(sent)/2)
}

// backOff doubles the retransmission timeout of the server to which the last query went. It does nothing if that server
// has responded to any query since. now is the present time.
func (r *retransmissionTimer) backOff(now time.Time) {
	if s := r.selection.servers[r.lastServer]; !s.HasAnsweredSince(r.lastSent) {
		s.rto.backOff(r.lastSent, now)
	}
}

// timeoutCheckInterval returns how long to wait before the timeout of a waiting query is computed again, because events
// may have shortened it. waited is the time since the exchange began. The result is a quarter of waited, but at least
// 200 ms (minRTO), plus up to 16 ms (see alignTimer).
//
// The timeout becomes shorter when a failure changes the next server, or when a response to another question ends the
// doubling of the timeout.
func timeoutCheckInterval(waited time.Duration) time.Duration {
	return alignTimer(max(minRTO, waited/4))
}

// alignTimer returns a timer duration that is longer than d by at most 16 ms (checkInterval). A timer that starts now
// expires when the wall clock is at a multiple of 16 ms. The timers of several exchanges therefore expire together,
// which costs less CPU time.
func alignTimer(d time.Duration) time.Duration {
	return d + checkInterval - time.Duration(time.Now().Add(d).UnixNano())%checkInterval
}
