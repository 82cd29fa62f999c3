package group

import (
	"context"
	"errors"
	"math"
	"net"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A queriesResult is the result of one call of sendQueries. The last attempt may run several of these calls at the same
// time.
type queriesResult struct {
	reply attemptReply
	err   error         // nil: reply is a successful response
	last  reportedQuery // last query, for observers
}

// runLastAttempt runs the last attempt that the race permits. The race starts no further attempt, so runLastAttempt
// itself sends the question again whenever the last query is presumed lost. All queries stay in flight, and the first
// successful response to any of them is the result.
//
// After all of them have failed, it returns the error of the query that failed last, unless a further query may
// succeed. That is the case if this error is a refused connection or a timeout, or if another attempt is running. Then
// it waits until the question is due to be sent again.
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
			x.events.reportOutcome(a, &r.last, outcomeOfCancelled(ctx))
		}
	}()
	start(x.attempts[MaxHedges])
	timer := time.NewTimer(x.timeToNextCheck())
	defer timer.Stop()
	for {
		select {
		case r := <-results:
			running--
			if r.err == nil || running == 0 && !isUnavailable(r.err) && !x.hasOtherAttempts() {
				if x.events != nil {
					x.events.lastQueries[MaxHedges] = r.last
				}
				return r.reply, r.err
			}
			x.events.reportOutcome(a, &r.last, race.Failed)
		case <-timer.C:
			if next, ok := x.admitFurtherQuery(time.Now()); ok {
				start(next)
			}
			timer.Reset(x.timeToNextCheck())
		case <-ctx.Done():
			return attemptReply{}, ctx.Err()
		}
	}
}

// outcomeOfCancelled returns the outcome, for observers, of a query that was cancelled together with ctx: Lost if
// another query or attempt has won, and Failed if the time ran out or the caller cancelled the question.
func outcomeOfCancelled(ctx context.Context) race.Outcome {
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
		x.retransmission.recordQuery(MaxHedges, server, now)
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

// hasOtherAttempts reports whether the primary or any other attempt besides the last permitted one is running. Only the
// last attempt may call it, after a failure. If the result is false, all other attempts have failed, and the last
// attempt must end as well.
func (x *Exchange) hasOtherAttempts() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.runningOthers > 1 || x.othersEnded == nil
}

// isUnavailable reports whether err is a refused connection or a timeout (net.Error), for example because a connection
// could not be opened in time.
func isUnavailable(err error) bool {
	var timeout net.Error
	return isConnectionRefused(err) || errors.As(err, &timeout) && timeout.Timeout()
}
