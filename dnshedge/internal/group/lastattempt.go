package group

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A lastAttempt sends the queries of the last attempt that the race permits, one server after the other. When a query
// of this attempt is lost or fails, the race starts no further attempt. The lastAttempt therefore sends the next query
// itself, while queries of the other attempts remain in flight.
type lastAttempt struct {
	mu             *sync.Mutex // Exchange.mu; guards selection and retransmission
	selection      *serverSelection
	retransmission *retransmissionTimer
	counters       *Counters
}

// queryServer sends the question to the server s. It returns the response, and the duration of the handshake if the
// query needed one. When the query is presumed lost, it cancels the query with the cause errLost. earlier is the number
// of earlier queries of the exchange to s. w records the connection of the query.
func (l *lastAttempt) queryServer(ctx context.Context, s *Server, earlier int, w *transport.QueryPath) (*wire.Answer, time.Duration, error) {
	queryCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer l.startLossTimer(s, func() { cancel(errLost) })()
	return s.queryAddresses(queryCtx, l.selection.query, earlier, w)
}

// lossTimeout returns how long to wait for the response to a query to s before the query is presumed lost. sent is the
// time at which the query was sent. The result may become shorter while the query waits, because later responses of s
// change it, so the caller must call lossTimeout again.
func (l *lastAttempt) lossTimeout(s *Server, sent time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.recoversLoss && len(l.selection.servers) == 1 {
		return l.retransmission.deadline.Sub(sent)
	}
	return max(s.rto.currentTimeout(l.retransmission.count, true), l.retransmission.minLastAttemptTimeout(s, sent))
}

// startLossTimer starts a timer for a query that is sent to s now. When that query is presumed lost, it calls onLost in
// a new goroutine. The caller must call stop when the query has ended.
func (l *lastAttempt) startLossTimer(s *Server, onLost func()) (stop func() bool) {
	sent, isDoubled := time.Now(), s.rto.isDoubled()
	longest := l.lossTimeout(s, sent)
	timer := new(RecheckTimer)
	timer.Start(func() time.Duration {
		end := l.retransmission.timeoutEnd(MaxHedges, sent, min(longest, l.lossTimeout(s, sent)))
		return lossCheckDelay(isDoubled, time.Since(sent), time.Until(end))
	}, onLost)
	return timer.Stop
}

// lossCheckDelay returns how long to wait before checking again whether a query is lost. waited is the time since the
// query was sent, and left is the rest of its timeout.
//
// isDoubled must be true if the timeout was doubled when the query was sent. A response to another question may end the
// doubling and shorten the timeout, so the query must then be checked earlier than after left.
func lossCheckDelay(isDoubled bool, waited, left time.Duration) time.Duration {
	if !isDoubled {
		return left
	}
	return min(left, timeoutCheckInterval(waited))
}

// waitForNextQuery waits until the last permitted attempt of the exchange may send its next query, and selects the
// server for it. The previous query went to s at the time sent, and ended with err.
//
// It returns the index of the selected server, and the number of earlier queries of the exchange to that server. ok is
// false if ctx ends first.
func (l *lastAttempt) waitForNextQuery(ctx context.Context, s *Server, sent time.Time, err error) (server, earlier int, ok bool) {
	other, otherSent := l.selectOtherServer(s)
	isOver := other != nil && !errors.Is(err, errLost) && !isTimeout(err) // s cannot respond any more
	if isOver {
		s, sent = other, otherSent
	}
	longest, isDoubled := l.lossTimeout(s, sent), s.rto.isDoubled() // before this query can double it
	if !isOver && !s.HasAnsweredSince(sent) {
		s.rto.backOff(sent, time.Now())
	}
	for {
		pause := lossCheckDelay(isDoubled, time.Since(sent), time.Until(sent.Add(min(longest, l.lossTimeout(s, sent)))))
		if pause <= 0 {
			if server, earlier, ok = l.spendForRetransmission(); ok {
				return server, earlier, true
			}
			pause = time.Since(sent) / 4
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, 0, false
		}
	}
}

// selectOtherServer selects a server that can still respond after s has failed: the one that selectServer prefers,
// among the servers except s that have sent no failure response. lastSent is the time of the last query to it. other is
// nil if there is no such server.
func (l *lastAttempt) selectOtherServer(s *Server) (other *Server, lastSent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.selection.selectServerExcept(l.selection.serverBit(s) | l.selection.failedServers())
	if i < 0 {
		return nil, lastSent
	}
	return l.selection.servers[i], l.selection.histories[i].lastSent
}

// spendForRetransmission spends tokens for a retransmission to the server that selectServer prefers, and counts the
// query. It returns the index of that server, and the number of earlier queries of the exchange to it. ok is false, and
// nothing is counted, if the budgets of the server do not permit the retransmission.
func (l *lastAttempt) spendForRetransmission() (server, earlier int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	server = l.selection.selectServer()
	if !l.selection.servers[server].spendForRetransmission(l.selection.query, false) {
		return 0, 0, false
	}
	l.retransmission.count++
	l.counters.Retransmissions.Add(1)
	return server, l.selection.recordQuery(server, time.Now()), true
}

// isTimeout reports whether err is a network timeout, for example because a connection could not be opened in time.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
