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

// presumedLossTime returns the time at which the last query is presumed lost, so that a retransmission is due: usually
// the end of its retransmission timeout, or earlier if another server can be queried instead. Responses, hedges and
// failures may change the result.
func (r *retransmissionTimer) presumedLossTime() time.Time {
	servers := r.selection.servers
	server, next := servers[r.lastServer], servers[r.selection.selectServer()]
	if next == server && server.recoversLoss {
		return r.deadline // the protocol retransmits lost packets itself
	}
	wait := server.rto.currentTimeout(r.count, next == server || next.IsSilent())
	if r.count == 0 {
		wait += r.setupTime
	}
	if r.hasFewAttempts {
		wait = max(wait, r.minFinalTimeout(server, r.lastSent))
	}
	at := r.timeoutEnd(r.lastAttempt, r.lastSent, wait)
	half := r.deadline.Sub(r.lastSent) / 2
	if latest := r.lastSent.Add(half); next != server && next.rto.canAnswerWithin(half) && latest.Before(at) {
		at = latest // all responses of this server may come too late
	}
	if at.Before(r.postponedUntil) {
		at = r.postponedUntil
	}
	for i, s := range servers { // a later hedge may still be answered until its loss delay is over
		if sent := r.selection.histories[i].lastSent; sent.After(r.lastSent) {
			if hedged := sent.Add(s.lossDelay()); at.Before(hedged) {
				at = hedged
			}
		}
	}
	return at
}

// timeoutEnd returns when a query of the given attempt, sent at the time sent, times out. Later responses over the same
// connection restart the timeout. The total is at most the longest of timeout, one second, and half of the time to the
// deadline.
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

// minFinalTimeout returns the least time to wait for the response to a query, sent to s at the time sent, when at
// most one further attempt is permitted: four retransmission timeouts, but at most half of the time from sent to the
// deadline.
func (r *retransmissionTimer) minFinalTimeout(s *Server, sent time.Time) time.Duration {
	servers := r.selection.servers
	isAlone := len(servers) == 1
	// The shortest timeout of the two servers counts, now or when the exchange began.
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

// timeoutCheckInterval returns how long to wait before the timeout of a query is computed again, because events may
// have shortened it. waited is the time since the exchange began. The result is waited/4, but at least 200 ms, plus up
// to 16 ms.
func timeoutCheckInterval(waited time.Duration) time.Duration {
	// A failure can change the next server, or a response to another question can end the doubling of the timeout.
	return alignTimer(max(minRTO, waited/4))
}

// alignTimer returns a timer duration that is longer than d by at most 16 ms. A timer that starts now expires when the
// wall clock is at a multiple of 16 ms. Timers that expire together cost less CPU time.
func alignTimer(d time.Duration) time.Duration {
	return d + checkInterval - time.Duration(time.Now().Add(d).UnixNano())%checkInterval
}
