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

// A lastAttempt is the attempt after which a race starts no other. When its query is lost or fails, it sends another one, while the
// queries of the other attempts are still waited for.
type lastAttempt struct {
	mu             *sync.Mutex // of the exchange: it guards the fields below
	selection      *serverSelection
	retransmission *retransmissionTimer
	counters       *Counters
}

// askServer sends the query to a server, and cancels it with errLost when it counts as lost.
func (l *lastAttempt) askServer(ctx context.Context, s *Server, earlier int, w *transport.QueryPath) (*wire.Answer, time.Duration, error) {
	queryCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer l.startLossTimer(s, func() { cancel(errLost) })()
	return s.queryAddresses(queryCtx, l.selection.query, earlier, w)
}

// patience returns how long a query that was sent to a server at the given time is waited for, by present knowledge, after the last answer over its
// connection.
func (l *lastAttempt) patience(s *Server, sent time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retransmission.lastPatience(s, sent)
}

// startLossTimer calls onLost when the query that is sent to a server now counts as lost, unless stop is called before.
func (l *lastAttempt) startLossTimer(s *Server, onLost func()) (stop func()) {
	sent, isDoubled := time.Now(), s.rto.isDoubled()
	longest := l.patience(s, sent)
	var mu sync.Mutex // guards timer
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(limitToCheck(isDoubled, 0, longest), func() {
		mu.Lock()
		defer mu.Unlock()
		end := l.retransmission.patienceEnd(MaxHedges, sent, min(longest, l.patience(s, sent)))
		if left := time.Until(end); left > 0 {
			timer.Reset(limitToCheck(isDoubled, time.Since(sent), left))
		} else {
			onLost()
		}
	})
	return func() { timer.Stop() }
}

// limitToCheck returns the time until a query is checked again: the time that is left, or less if the timeout was doubled when the query was
// sent, because only that timeout can become shorter.
func limitToCheck(isDoubled bool, waited, left time.Duration) time.Duration {
	if !isDoubled {
		return left
	}
	return min(left, nextCheck(waited))
}

// waitForServer waits until another query may be sent in place of the one to s, which was sent at the given time and ended with err. It returns the
// server of the next query and the number of earlier queries to that server. ok is false if ctx ends first.
func (l *lastAttempt) waitForServer(ctx context.Context, s *Server, sent time.Time, err error) (server, earlier int, ok bool) {
	other, otherSent := l.serverAfter(s)
	isOver := other != nil && !errors.Is(err, errLost) && !isTimeout(err) // no answer of s can come any more
	if isOver {
		s, sent = other, otherSent
	}
	longest, isDoubled := l.patience(s, sent), s.rto.isDoubled() // not by this query
	if !isOver && !s.AnsweredSince(sent) {
		s.rto.backOff(sent, time.Now())
	}
	for {
		pause := limitToCheck(isDoubled, time.Since(sent), time.Until(sent.Add(min(longest, l.patience(s, sent)))))
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

// serverAfter returns the best server besides s and servers that could not answer, and when it was last asked; nil: there is none.
func (l *lastAttempt) serverAfter(s *Server) (other *Server, lastSent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.selection.selectServerExcept(l.selection.serverBit(s) | l.selection.failedServers())
	if i < 0 {
		return nil, lastSent
	}
	return l.selection.servers[i], l.selection.uses[i].lastSent
}

// payRetransmission counts another retransmission, if the budget of the best server pays for it.
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

// isTimeout reports whether a connection was not opened in time.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
