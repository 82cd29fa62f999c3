package group

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
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

// sendQueries sends the question in attempt n to the server of target, and after each failure to another server. It
// returns the first successful response, or the last server's error. ctx cancels the query. Observers and the tracer get
// a as their context. For observers, reported keeps the last query; without observers, it may be nil.
func (x *Exchange) sendQueries(ctx context.Context, a *race.Attempt, n int, target attemptTarget, reported *reportedQuery) (attemptReply, error) {
	i, earlier, isHedge := target.server, target.earlierQueries, target.kind == hedgeAttempt
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
				return attemptReply{answer, s, target.kind, setup}, nil
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

// recordResponse records the response of the server s in its health. isFailure is true if another server must be tried.
// A DNSSEC validation failure is final if the server can validate; otherwise, answer.Outcome becomes wire.Failure. ctx
// limits the test of the server.
func (x *Exchange) recordResponse(ctx context.Context, s *Server, answer *wire.Answer) (isFailure bool) {
	isStandard := x.query.IsStandard()
	isBogus := isStandard && answer.IsBogus()
	s.recordResponse(x.query, isBogus || isStandard && answer.Outcome == wire.Failure)
	if isBogus && !s.canValidate(ctx) { // otherwise, the signatures of the name are broken
		answer.Outcome = wire.Failure
	}
	return isStandard && answer.Outcome == wire.Failure
}

// replaceRefusedServer selects another server for attempt n if err means that the server s has refused the connection.
// It also adds s to the bit set refused, whose servers are not selected. ok is false after any other error, or if no
// server is left.
func (x *Exchange) replaceRefusedServer(n int, s *Server, err error, refused *uint64) (server, earlierQueries int, ok bool) {
	if n == 0 || !x.query.IsStandard() || !isConnectionRefused(err) {
		return 0, 0, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	*refused |= x.selection.serverBit(s)
	if server = x.selection.selectServerExcept(*refused | x.selection.failedServers()); server < 0 {
		return 0, 0, false
	}
	return server, x.switchServer(n, server), true // without a token, because the refused query reached no server
}

// switchServer records that attempt n continues with a query to another server, whose index in the group is server. It
// returns the number of earlier queries of the exchange to that server. The caller must hold mu.
func (x *Exchange) switchServer(n, server int) (earlierQueries int) {
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

// failOver records that the server s has failed in attempt n: with the response, or with err if response is nil. It
// selects the server for the next query, which the caller must send at once. ok is false if the attempt must end.
func (x *Exchange) failOver(n int, s *Server, response *wire.Answer, err error) (server, earlierQueries int, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &x.failures
	f.hasRefused = f.hasRefused || isConnectionRefused(err)
	history := &x.selection.histories[slices.Index(x.selection.servers, s)]
	earlierFailures := f.recordFailure(history, s, response, err)
	if !x.query.IsStandard() && !IsUnsent(err) || s.pool.IsClosed() {
		return 0, 0, false // the message may be unsafe to repeat, or the Client was closed
	}
	server = x.selection.selectServerExcept(x.selection.serverSet(func(u *serverHistory) bool { return u.queries > 0 }))
	if server < 0 || x.selection.histories[server].queries > 0 {
		return x.replaceFailedServer(n, earlierFailures)
	}
	if f.servfails >= maxServfails {
		return 0, 0, false // the zone itself may fail (RFC 9520 §3.1)
	}
	// After failures of two servers, or of one if the next server is silent, a query to a new server costs a token.
	if next := x.selection.servers[server]; f.responses > 1 || f.responses > 0 && next.IsSilent() {
		if !next.account.spendForFailover() {
			return 0, 0, false
		}
		f.paidFailovers++
	}
	return server, x.switchServer(n, server), true
}

// replaceFailedServer selects a server without a failure response after every server has had a query. earlierFailures
// counts the failed server's previous failure responses. ok is false if earlierFailures or n is 0, or if no server or
// budget remains. The caller must hold mu.
func (x *Exchange) replaceFailedServer(n, earlierFailures int) (server, earlierQueries int, ok bool) {
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

// runLastAttempt runs the last attempt that the race permits. It sends the question again and again, each time after the
// previous query is presumed lost, and returns the first successful response to any of these queries. It returns the
// latest error if all have failed and no further query may succeed.
func (x *Exchange) runLastAttempt(a *race.Attempt) (attemptReply, error) {
	ctx, cancel := context.WithCancelCause(a)
	defer cancel(race.ErrLost)
	results, running := make(chan queriesResult), 1
	go x.runQueries(ctx, a, x.attempts[MaxHedges], results)
	timer := time.NewTimer(x.timeToNextCheck())
	defer timer.Stop()
	otherEnded, attempts := x.nextAttemptEnd()
	var lastErr error // of the query that failed last
	// A further query may succeed after a refused connection or a timeout, or while another attempt is running.
	for running > 0 || attempts > 1 || isUnavailable(lastErr) && x.maySendAgain() {
		select {
		case r := <-results:
			if running--; r.err == nil {
				if x.events != nil {
					x.events.lastQueries[MaxHedges] = r.last
				}
				return r.reply, nil
			}
			lastErr = r.err
		case <-otherEnded:
			otherEnded, attempts = x.nextAttemptEnd()
		case <-timer.C:
			if next, ok := x.admitFurtherQuery(time.Now()); ok {
				running++
				go x.runQueries(ctx, a, next, results)
			}
		case <-ctx.Done():
			return attemptReply{}, ctx.Err()
		}
		timer.Reset(x.timeToNextCheck()) // after a failure, the next query may go to another server, and earlier
	}
	return attemptReply{}, lastErr
}

// runQueries calls sendQueries for the last attempt, reports a failure to observers, and sends the result to results. It
// reports a success only if ctx has ended, because another query or attempt has then won.
func (x *Exchange) runQueries(ctx context.Context, a *race.Attempt, target attemptTarget, results chan<- queriesResult) {
	r := queriesResult{err: errNoAnswer} // if an observer ends the goroutine
	defer func() {
		select {
		case results <- r:
		case <-ctx.Done():
			if r.err == nil {
				x.events.reportOutcome(a, &r.last, failedQueryOutcome(ctx))
			}
		}
	}()
	r.err = race.RecoverPanic(func() (err error) {
		r.reply, err = x.sendQueries(ctx, a, MaxHedges, target, &r.last)
		return err
	})
	if r.err != nil {
		x.events.reportOutcome(a, &r.last, failedQueryOutcome(ctx))
	}
}

// failedQueryOutcome returns the outcome, for observers, of a query that has ended without a response, or will do so
// because ctx, its context, has ended. It is Lost if another query or attempt has won, and Failed otherwise.
func failedQueryOutcome(ctx context.Context) race.Outcome {
	if context.Cause(ctx) == race.ErrLost {
		return race.Lost
	}
	return race.Failed
}

// admitFurtherQuery decides whether the last attempt sends the question again, and to which server. ok is true if the
// last query is presumed lost and a budget permits a retransmission, which is then recorded.
func (x *Exchange) admitFurtherQuery(now time.Time) (next attemptTarget, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	server, ok := x.selectRetransmission(now)
	if ok {
		next = attemptTarget{x.attempts[MaxHedges].kind, server, x.selection.recordQuery(server, now)}
		r := &x.retransmission
		r.lastAttempt, r.lastServer, r.lastSent = MaxHedges, server, now
	}
	return next, ok
}

// timeToNextCheck returns the time until runLastAttempt must check again, by admitFurtherQuery, whether the last query
// is presumed lost. It is the maximum duration if the deadline comes first.
func (x *Exchange) timeToNextCheck() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	at := x.nextLossCheck(now)
	if !at.Before(x.retransmission.deadline) {
		return math.MaxInt64
	}
	return at.Sub(now)
}

// maySendAgain reports whether the last query will be presumed lost before the deadline, so that the question may be
// sent again.
func (x *Exchange) maySendAgain() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.retransmission.presumedLossTime().Before(x.retransmission.deadline)
}

// isUnavailable reports whether err is a refused connection or a timeout (net.Error), for example because a connection
// could not be opened in time.
func isUnavailable(err error) bool {
	var timeout net.Error
	return isConnectionRefused(err) || errors.As(err, &timeout) && timeout.Timeout()
}
