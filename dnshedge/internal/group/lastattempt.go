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

// A lastAttempt is the attempt that uses up the race's limit of attempts. When its query is lost or fails, it sends
// further queries itself, because the race starts no other attempt. The queries of the other attempts remain in flight.
type lastAttempt struct {
	mu             *sync.Mutex // lock of the exchange; guards selection and retransmission
	selection      *serverSelection
	retransmission *retransmissionTimer
	counters       *Counters
}

// askServer sends the question to s. It cancels the query with errLost when the query is presumed lost. earlier is the
// number of earlier queries to s.
func (l *lastAttempt) askServer(ctx context.Context, s *Server, earlier int, w *transport.QueryPath) (*wire.Answer, time.Duration, error) {
	queryCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer l.startLossTimer(s, func() { cancel(errLost) })()
	return s.queryAddresses(queryCtx, l.selection.query, earlier, w)
}

// lossTimeout returns how long to wait for the answer to a query that was sent to s at the given time. The value may
// change while the query waits, as latencies are learned.
func (l *lastAttempt) lossTimeout(s *Server, sent time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retransmission.lastAttemptTimeout(s, sent)
}

// startLossTimer calls onLost when a query that is sent to s now is presumed lost. A call of stop cancels the timer.
func (l *lastAttempt) startLossTimer(s *Server, onLost func()) (stop func()) {
	sent, isDoubled := time.Now(), s.rto.isDoubled()
	longest := l.lossTimeout(s, sent)
	var mu sync.Mutex // guards timer
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(lossCheckDelay(isDoubled, 0, longest), func() {
		mu.Lock()
		defer mu.Unlock()
		end := l.retransmission.timeoutEnd(MaxHedges, sent, min(longest, l.lossTimeout(s, sent)))
		if left := time.Until(end); left > 0 {
			timer.Reset(lossCheckDelay(isDoubled, time.Since(sent), left))
		} else {
			onLost()
		}
	})
	return func() { timer.Stop() }
}

// lossCheckDelay returns the time until the wait of a query is examined again: the time that is left. It is less if the
// timeout was doubled when the query was sent, because an answer to another question ends the doubling.
func lossCheckDelay(isDoubled bool, waited, left time.Duration) time.Duration {
	if !isDoubled {
		return left
	}
	return min(left, regularCheckDelay(waited))
}

// waitForServer waits until a further query may be sent after the query to s, sent at the given time, has ended with
// err. It returns the index of the server for that query and the number of earlier queries to that server. ok is false
// if ctx ends first.
func (l *lastAttempt) waitForServer(ctx context.Context, s *Server, sent time.Time, err error) (server, earlier int, ok bool) {
	other, otherSent := l.serverAfter(s)
	isOver := other != nil && !errors.Is(err, errLost) && !isTimeout(err) // no answer of s can come any more
	if isOver {
		s, sent = other, otherSent
	}
	longest, isDoubled := l.lossTimeout(s, sent), s.rto.isDoubled() // not by this query
	if !isOver && !s.AnsweredSince(sent) {
		s.rto.backOff(sent, time.Now())
	}
	for {
		pause := lossCheckDelay(isDoubled, time.Since(sent), time.Until(sent.Add(min(longest, l.lossTimeout(s, sent)))))
		if pause <= 0 {
			if server, earlier, ok = l.payRetransmission(); ok {
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

// serverAfter returns the best server other than s that has not failed, and the time of the last query to it. other is
// nil if there is none.
func (l *lastAttempt) serverAfter(s *Server) (other *Server, lastSent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.selection.selectServerExcept(l.selection.serverBit(s) | l.selection.failedServers())
	if i < 0 {
		return nil, lastSent
	}
	return l.selection.servers[i], l.selection.uses[i].lastSent
}

// payRetransmission spends tokens for a retransmission to the best server, and records its query. It returns the
// server's index and the number of earlier queries to it. ok is false if no budget pays.
func (l *lastAttempt) payRetransmission() (server, earlier int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	server = l.selection.selectServer()
	if !l.selection.servers[server].payRetransmission(l.selection.query, false) {
		return 0, 0, false
	}
	l.retransmission.count++
	l.counters.Retransmissions.Add(1)
	return server, l.selection.recordQuery(server, time.Now()), true
}

// isTimeout reports whether err is a timeout of the network, for example while a connection was opened.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
