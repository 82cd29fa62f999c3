package group

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/race"
)

// Attempt implements race.Op. It sends the question to the server that was selected for attempt n, and to other servers
// if that server fails. It returns the first successful response, or the error of the last server.
func (x *Exchange) Attempt(a *race.Attempt, n int) (attemptReply, error) {
	if n == MaxHedges {
		return x.runLastAttempt(a)
	}
	ctx := context.Context(a)
	if n == 0 {
		ctx = x.primaryContext
	}
	var reported *reportedQuery
	if x.events != nil {
		reported = &x.events.lastQueries[n]
	}
	return x.sendQueries(ctx, a, n, x.attempts[n], reported)
}

// sendQueries sends the question in attempt n, at first to the server that first names. If that server fails, it sends
// the question to another server at once, and so on. It returns the first successful response, or the error of the last
// server. When ctx ends, it cancels the query and returns.
//
// a is the context that observers and the tracer get. sendQueries stores its last query in reported, for observers.
// reported may be nil if there are no observers.
func (x *Exchange) sendQueries(ctx context.Context, a *race.Attempt, n int, first attemptTarget, reported *reportedQuery) (attemptReply, error) {
	i, earlier, isHedge := first.server, first.earlierQueries, first.kind == hedgeAttempt
	var refused uint64 // bit set of the servers that refused a connection one after the other
	for {
		s, start := x.selection.servers[i], time.Now()
		if x.events != nil {
			x.events.reportQuery(a, reported, x.observerNumber(n), s)
		}
		if x.conf.Tracer != nil {
			x.conf.Tracer.AttemptStarted(a, x.query, s, n, isHedge)
		}
		answer, setup, err := s.queryAddresses(ctx, x.query, earlier, &x.retransmission.connection[n])
		if x.conf.Tracer != nil {
			x.conf.Tracer.AttemptEnded(a, x.query, s, n, isHedge, time.Since(start), err)
		}
		if err == nil {
			if isFailure := x.recordResponse(ctx, s, answer); !isFailure {
				s.answerRate.recordQuestion(x.query, true)
				return attemptReply{answer, s, first.kind, setup}, nil
			}
			err = errNoAnswer
		} else if ctx.Err() != nil {
			// Time ran out, or another attempt won.
			if time.Since(start) >= s.unansweredDelay() {
				s.recordUnanswered(x.query, start)
			}
			return attemptReply{}, x.recordPrimaryError(n, s, err)
		} else if !localerror.IsLocal(err) {
			s.recordUnanswered(x.query, start)
		}
		var ok bool
		if i, earlier, ok = x.failOver(n, s, answer, err); ok {
			continue
		}
		if i, earlier, ok = x.replaceRefusedServer(n, s, err, &refused); ok {
			continue
		}
		if n == 0 {
			x.waitForOtherAttempts(ctx)
		}
		return attemptReply{}, x.recordPrimaryError(n, s, err)
	}
}

// recordResponse records the response of the server s in the health of s. isFailure is true if the response is a
// failure, so that another server must be tried. A response to an opcode other than QUERY is never a failure.
//
// A DNSSEC validation failure of a server that can validate is final, because the signatures of the name are broken. If
// Server.canValidate returns false, isFailure is true, and answer.Outcome becomes wire.Failure. canValidate may send a
// query with the context ctx. The health of s records every validation failure as a failure.
func (x *Exchange) recordResponse(ctx context.Context, s *Server, answer *wire.Answer) (isFailure bool) {
	isStandard := x.query.IsStandard()
	isBogus := isStandard && answer.IsBogus()
	s.recordResponse(x.query, isBogus || isStandard && answer.Outcome == wire.Failure)
	if isBogus && !s.canValidate(ctx) {
		answer.Outcome = wire.Failure
	}
	return isStandard && answer.Outcome == wire.Failure
}

// replaceRefusedServer selects another server for attempt n if the error err of the server s is a refused connection.
// It returns the index of that server, and the number of earlier queries of the exchange to it. The new query costs no
// token, because the refused query has reached no server.
//
// refused is the bit set of servers that have refused a connection in this attempt; s is added to it. Servers in this
// set, and servers with a failure response, are not selected. ok is false if no server remains, attempt n is the
// primary, err is another error, or the opcode is not QUERY.
func (x *Exchange) replaceRefusedServer(n int, s *Server, err error, refused *uint64) (server, earlier int, ok bool) {
	if n == 0 || !x.query.IsStandard() || !isConnectionRefused(err) {
		return 0, 0, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	*refused |= x.selection.serverBit(s)
	if server = x.selection.selectServerExcept(*refused | x.selection.failedServers()); server < 0 {
		return 0, 0, false
	}
	return server, x.switchServer(n, server), true
}

// switchServer records that attempt n continues with a query to another server, whose index in the group is server. It
// returns the number of earlier queries of the exchange to that server. The caller must hold mu.
func (x *Exchange) switchServer(n, server int) (earlier int) {
	now := time.Now()
	if r := &x.retransmission; r.lastAttempt == n {
		r.lastServer, r.lastSent = server, now
	}
	x.conf.Counters.Failovers.Add(1)
	return x.selection.recordQuery(server, now)
}

// recordPrimaryError stores the server s that caused err, for the Result, if err is the error of the primary. n is the
// number of the attempt. In any case it returns err unchanged.
func (x *Exchange) recordPrimaryError(n int, s *Server, err error) error {
	if n == 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.failures.primaryServer = s
	}
	return err
}

// failOver records that the server from failed in attempt n: with the response a, or with err if a is nil. It selects
// the next server, and returns its index and the number of earlier queries of the exchange to it. ok is false if the
// attempt must end.
//
// failOver selects a new server, which has had no query of this exchange. If there is none, replaceFailedServer selects
// the server. After SERVFAIL from three servers (maxServfails), no new server is selected, because the zone itself may
// fail (RFC 9520 §3.1). After the transports were closed, no server is selected.
//
// After failure responses from two servers, a query to a new server costs a token of the shared hedge bucket. If the
// new server is silent, one failure response suffices. Closed and refused connections are no failure responses. ok is
// false if the bucket is empty.
//
// A message with an opcode other than QUERY gets another server only if IsUnsent(err) is true.
func (x *Exchange) failOver(n int, from *Server, a *wire.Answer, err error) (server, earlier int, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &x.failures
	f.hasRefused = f.hasRefused || isConnectionRefused(err)
	history := &x.selection.histories[slices.Index(x.selection.servers, from)]
	earlierFailures := f.recordFailure(history, from, a, err)
	if !x.query.IsStandard() && !IsUnsent(err) || errors.Is(err, transport.ErrClosed) {
		return 0, 0, false
	}
	server = x.selection.selectServerExcept(x.selection.serverSet(func(u *serverHistory) bool { return u.queries > 0 }))
	if server < 0 || x.selection.histories[server].queries > 0 {
		return x.replaceFailedServer(n, earlierFailures)
	}
	if f.servfails >= maxServfails {
		return 0, 0, false
	}
	if next := x.selection.servers[server]; f.responses > 1 || f.responses > 0 && next.IsSilent() {
		if !next.account.spendForFailover() {
			return 0, 0, false
		}
		f.paidFailovers++
	}
	return server, x.switchServer(n, server), true
}

// replaceFailedServer selects another server for attempt n when every server has had a query. It returns the index of a
// server that has sent no failure response, and the number of earlier queries of the exchange to it. The caller must
// hold mu.
//
// earlierFailures is the number of failure responses that the failed server had sent in this exchange before its last
// one. ok is false if earlierFailures is 0, attempt n is the primary, or every server has sent a failure response. The
// query costs a token like a retransmission, and ok is false if no budget permits it.
func (x *Exchange) replaceFailedServer(n, earlierFailures int) (server, earlier int, ok bool) {
	if earlierFailures == 0 || n == 0 {
		return 0, 0, false
	}
	server = x.selection.selectServerExcept(x.selection.failedServers())
	if server < 0 || !x.selection.servers[server].spendForRetransmission(x.query, false) {
		return 0, 0, false
	}
	return server, x.switchServer(n, server), true
}

// A queriesResult is the result of one call of sendQueries. The last attempt may run several of these calls at the same
// time.
type queriesResult struct {
	reply attemptReply
	err   error         // nil: reply is a successful response
	last  reportedQuery // last query, for observers
}

// runLastAttempt runs the last attempt that the race permits. Whenever the last query is presumed lost, runLastAttempt
// sends the question again, because the race starts no further attempt. Earlier queries stay in flight, and the first
// successful response to any of them is the result.
//
// After all of them have failed, it returns the error of the query that failed last, unless a further query may
// succeed. That is the case if this error is a refused connection or a timeout, or while another attempt is running.
// Then it waits until the question is due to be sent again.
func (x *Exchange) runLastAttempt(a *race.Attempt) (attemptReply, error) {
	ctx, cancel := context.WithCancelCause(a)
	results, running := make(chan queriesResult), 0
	start := func(first attemptTarget) {
		running++
		go func() {
			r := queriesResult{err: errNoAnswer} // if an observer ends the goroutine
			defer func() { results <- r }()
			r.err = race.RecoverPanic(func() (err error) {
				r.reply, err = x.sendQueries(ctx, a, MaxHedges, first, &r.last)
				return err
			})
		}()
	}
	defer func() {
		cancel(race.ErrLost)
		for ; running > 0; running-- {
			r := <-results
			x.events.reportOutcome(a, &r.last, failedQueryOutcome(ctx))
		}
	}()
	start(x.attempts[MaxHedges])
	otherEnded, attempts := x.nextAttemptEnd()
	timer := time.NewTimer(x.timeToNextCheck())
	defer timer.Stop()
	var lastErr error // of the query that failed last
	for running > 0 || isUnavailable(lastErr) || attempts > 1 {
		select {
		case r := <-results:
			if running--; r.err == nil {
				if x.events != nil {
					x.events.lastQueries[MaxHedges] = r.last
				}
				return r.reply, nil
			}
			lastErr = r.err
			x.events.reportOutcome(a, &r.last, failedQueryOutcome(ctx))
		case <-otherEnded:
			otherEnded, attempts = x.nextAttemptEnd()
		case <-timer.C:
			if next, ok := x.admitFurtherQuery(time.Now()); ok {
				start(next)
			}
			timer.Reset(x.timeToNextCheck())
		case <-ctx.Done():
			return attemptReply{}, ctx.Err()
		}
	}
	return attemptReply{}, lastErr
}

// failedQueryOutcome returns the outcome, for observers, of a query that has ended without a response, or will do so
// because ctx, its context, has ended. It is Lost if another query or attempt has won, and Failed otherwise.
func failedQueryOutcome(ctx context.Context) race.Outcome {
	if context.Cause(ctx) == race.ErrLost {
		return race.Lost
	}
	return race.Failed
}

// admitFurtherQuery decides for runLastAttempt whether the question is sent again at the time now, and to which server.
// ok is true if the last query is presumed lost and a budget permits a retransmission, which is then recorded. It also
// computes the time at which admitFurtherQuery must be called next.
func (x *Exchange) admitFurtherQuery(now time.Time) (next attemptTarget, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	server, ok := x.selectRetransmission(now)
	if ok {
		next = attemptTarget{x.attempts[MaxHedges].kind, server, x.selection.recordQuery(server, now)}
		r := &x.retransmission
		r.lastAttempt, r.lastServer, r.lastSent = MaxHedges, server, now
	}
	x.checkAt = x.nextLossCheck(now)
	return next, ok
}

// timeToNextCheck returns the time until runLastAttempt must check again, by admitFurtherQuery, whether the last query
// is presumed lost. It is the maximum duration if no query may be sent before the deadline.
func (x *Exchange) timeToNextCheck() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.checkAt.Before(x.retransmission.deadline) {
		return math.MaxInt64
	}
	return time.Until(x.checkAt)
}

// isUnavailable reports whether err is a refused connection or a timeout (net.Error), for example because a connection
// could not be opened in time.
func isUnavailable(err error) bool {
	var timeout net.Error
	return isConnectionRefused(err) || errors.As(err, &timeout) && timeout.Timeout()
}
