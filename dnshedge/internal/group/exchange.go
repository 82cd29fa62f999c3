package group

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

const (
	// maxTimerLag is the time by which timers are usually late at most. A timer that is later shows that this process
	// or machine was slow, and not the network. In that case, the response may have arrived already and wait to be
	// read. readGrace is the additional time for reading it.
	maxTimerLag = 3 * time.Millisecond
	readGrace   = 2 * time.Millisecond
)

// A Result is the outcome of an Exchange: a response or an error.
type Result struct {
	Answer   *wire.Answer // response of a server, which may be a failure; nil: Err is set
	Err      error        // error of the primary if no server responded; nil: Answer is set
	Server   *Server      // server that sent Answer or caused Err; never nil
	IsHedged bool         // Answer is the response to a hedge
	Attempts int          // number of attempts, with the primary

	HasRefused bool // Err is set, and at least one server has refused a connection
}

// An Exchange sends one question to a group of equivalent servers, and returns the first successful response. The zero
// value is ready for Run, which must be called only once.
//
// Besides the primary there are two kinds of attempts. A hedge starts after a delay that is computed in advance,
// although the primary may still be answered. A retransmission starts when the last query is presumed lost.
//
// Exchange implements race.Op and race.Schedule, through which a race runs the attempts. The race calls Admit at the
// earliest time at which an attempt may be due.
type Exchange struct {
	conf   *Config
	events *eventReporter // nil: no observers
	query  *wire.Query
	start  time.Time // time at which Run was called
	// primaryContext is the context of the primary. Waiting for it is cheaper than waiting for the context of the
	// race.Attempt.
	primaryContext *transport.InlineContext

	mu                 sync.Mutex                   // guards the fields below; the used elements of attempts never change
	attempts           [1 + MaxHedges]attemptTarget // elements 0 to admitted-1 are in use
	admitted           int                          // number of attempts started, with the primary
	runningOthers      int                          // number of attempts besides the primary that have not ended
	othersEnded        chan struct{}                // closed when runningOthers becomes 0; nil: the primary does not wait for that
	checkAt            time.Time                    // time at which the race must call Admit next
	hasGrantedReadTime bool                         // Admit was called too late once, and has postponed its decision by readGrace
	selection          serverSelection
	hedges             hedgeSchedule
	retransmission     retransmissionTimer
	failures           exchangeFailures
}

// An exchangeRace holds the race that runs the attempts of one exchange, and the context of the first attempt, the
// primary. Both are in one struct to save an allocation.
type exchangeRace struct {
	race           race.Race[attemptReply]
	attempt        race.Attempt
	adoptedContext race.AdoptedContext     // context that attempt derives from span
	span           transport.InlineContext // cancellable context of the primary
}

// An attemptTarget holds the kind of an attempt, and the server of its first query.
type attemptTarget struct {
	kind           attemptKind
	server         int // index of the server in the group
	earlierQueries int // number of earlier queries of the exchange to that server
}

// An attemptKind is the reason for an attempt: the primary, a hedge, or a retransmission.
type attemptKind int8

const (
	primaryAttempt attemptKind = iota
	hedgeAttempt
	retransmittedAttempt
)

// An attemptReply is a successful response to an attempt, with its server and the kind of the attempt.
type attemptReply struct {
	*wire.Answer
	answeringServer *Server       // the server that sent the response
	kind            attemptKind   // kind of the attempt
	handshakeTime   time.Duration // part of the attempt's latency that a handshake took; 0: there was none
}

var (
	_ race.Op[attemptReply] = (*Exchange)(nil)
	_ race.Schedule         = (*Exchange)(nil)
)

// Run sends the question q to servers of the Pool p, with hedges, and returns the first successful response. A response
// is a failure if the server could not or would not answer (wire.Failure). If no response is successful, the Result
// holds a failure response, or the error of the primary if there is no failure response either.
//
// group lists the servers in order of preference, and must not be empty. ctx limits the time of the exchange.
func (x *Exchange) Run(ctx context.Context, p *Pool, q *wire.Query, group Servers) Result {
	x.conf, x.query, x.start = &p.conf, q, time.Now()
	x.mu.Lock() // CountFailedServers may run
	s := &x.selection
	s.query, s.servers, s.histories = q, group, append(s.historyBuffer[:0], make([]serverHistory, len(group))...)
	x.mu.Unlock()
	x.retransmission.selection = s
	if o := x.conf.Observers; o != nil {
		x.events = &eventReporter{notifier: o, ctx: ctx, first: group[0]}
	}
	x.recordAttempt(primaryAttempt, 0, x.start)
	x.scheduleAttempts(ctx)
	run := new(exchangeRace)
	x.primaryContext = &run.span
	run.span.Begin(ctx, 0)
	defer run.span.Cancel()
	run.attempt.AdoptContext(&run.adoptedContext, &run.span, run.span.End, nil)
	run.race.Style.Primary = &run.attempt
	if x.events != nil {
		run.race.Style.Observer = x.events
	}
	out := run.race.Run(ctx, x, x)
	x.recordOutcome(out.Winner, &out.Value)
	if out.Err != nil {
		return x.newFailureResult(out.Err, out.Started)
	}
	x.refundFailovers()
	switch v := &out.Value; v.kind {
	case hedgeAttempt:
		x.conf.Counters.HedgeWins.Add(1)
		v.answeringServer.hedgeWinCount.Add(1)
	case retransmittedAttempt:
		x.conf.Counters.RetransmissionWins.Add(1)
	}
	return Result{Answer: out.Value.Answer, Server: out.Value.answeringServer, IsHedged: out.Value.kind == hedgeAttempt, Attempts: out.Started}
}

// CountFailedServers returns the number of servers that responded with a failure or refused a connection. It may be
// called while Run is running.
func (x *Exchange) CountFailedServers() (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.selection.histories {
		if x.selection.histories[i].hasBeenUnable {
			n++
		}
	}
	return n
}

// FirstFailure returns the failure response to report if no server answers the question, and its server. That is the
// first failure response, unless a later one is a decision of its server, such as that of a filter (see
// Server.IsDeliberateFailure).
//
// Both results are nil if no server responded with a failure. It may be called while Run is running.
func (x *Exchange) FirstFailure() (*wire.Answer, *Server) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failures.response, x.failures.failureServer
}

// newFailureResult returns the Result of an exchange without a successful response. It holds the failure response that
// FirstFailure returns, or else err, the error of the primary. tries is the number of attempts.
func (x *Exchange) newFailureResult(err error, tries int) Result {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &x.failures
	if f.response != nil {
		return Result{Answer: f.response, Server: f.failureServer, Attempts: tries}
	}
	return Result{Err: err, Server: cmp.Or(f.primaryServer, x.selection.servers[0]), Attempts: tries, HasRefused: f.hasRefused}
}

// recordOutcome reports the end of the exchange to observers. If the exchange may be hedged and the hedge delay is not
// fixed, it also records the latency under the latency key of the first server.
//
// winner is the number of the successful attempt, and r is its reply. If no attempt succeeded, winner is -1, and r is
// the zero value.
func (x *Exchange) recordOutcome(winner int, r *attemptReply) {
	isAnswered := winner >= 0
	if x.hedges.key != nil {
		outcome := policy.Outcome{Answered: isAnswered, Winner: x.observerNumber(winner), Setup: r.handshakeTime}
		if x.events != nil {
			outcome.Delay = x.events.delay
		}
		x.hedges.call.End(outcome)
		return
	}
	if x.events != nil {
		x.mu.Lock()
		hedges := x.countHedges(x.admitted - 1)
		x.mu.Unlock()
		x.events.reportEnd(x.observerNumber(winner), hedges, time.Since(x.start))
	}
}

// observerNumber converts n, the number of an attempt in the race, to its number for observers. Hedges are counted from
// 1. The primary and retransmissions have the number 0, because observers see no retransmissions. A negative n is
// returned unchanged.
func (x *Exchange) observerNumber(n int) int {
	if n < 0 || x.attempts[n].kind != hedgeAttempt {
		return min(n, 0)
	}
	return x.countHedges(n)
}

// countHedges returns the number of hedges among the attempts with the numbers 0 to n; n itself is included.
func (x *Exchange) countHedges(n int) (hedges int) {
	for _, a := range x.attempts[:n+1] {
		if a.kind == hedgeAttempt {
			hedges++
		}
	}
	return hedges
}

// scheduleAttempts computes when hedges and retransmissions are due. It must be called before the primary starts. A
// message with an opcode other than QUERY gets neither, because it may not be safe to repeat.
//
// None is due after the deadline of ctx. If ctx has no deadline, Config.Timeout is the limit, counted from the start of
// the exchange. Settings in ctx may switch hedging off.
func (x *Exchange) scheduleAttempts(ctx context.Context) {
	if !x.query.IsStandard() {
		x.events.reportDenied(observe.DeniedMethod) // not known to be safe to repeat
		return
	}
	servers, r := x.selection.servers, &x.retransmission
	first := servers[0]
	if !first.transports[first.preferredTransport.Load()].Ready() {
		r.setupTime = first.handshakeAllowance()
	}
	first.account.refillHedgeBuckets()
	if denied := x.hedges.computeDelays(ctx, x.conf, &x.selection, r.setupTime); denied != policy.None {
		x.events.reportDenied(denied)
	}
	r.timeout = first.rto.currentTimeout(0, len(servers) == 1)
	wait, left := r.setupTime+first.rto.currentTimeout(0, false), x.conf.Timeout // not doubled: see timeoutCheckInterval
	if due, ok := x.hedges.nextDue(); ok {
		wait = min(wait, due)
		if x.events != nil {
			x.events.delay = due
		}
	}
	if end, ok := ctx.Deadline(); ok {
		left = end.Sub(x.start)
	}
	if len(servers) > 1 {
		wait = min(wait, left/2) // see presumedLossTime
	}
	x.checkAt, r.deadline = x.start.Add(wait), x.start.Add(left)
}

// Admit implements race.Op. It returns true if a retransmission or a hedge is due and its budget permits it, and
// records that attempt. It also computes the time at which the race must call Admit next. If the race calls it too late
// for the first time, it only postpones the decision (see maxTimerLag). It ignores its argument.
func (x *Exchange) Admit(int) bool {
	now := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.Sub(x.checkAt) > maxTimerLag && !x.hasGrantedReadTime {
		x.hasGrantedReadTime, x.checkAt = true, now.Add(readGrace)
		return false
	}
	isAdmitted := x.admitRetransmission(now) || x.admitHedge(now)
	x.checkAt = x.nextLossCheck(now)
	if due, ok := x.hedges.nextDue(); ok && x.start.Add(due).Before(x.checkAt) {
		x.checkAt = x.start.Add(due)
	}
	return isAdmitted
}

// Next implements race.Schedule. It returns the time until the race must call Admit. ok is false if the race must not
// call Admit again, because all attempts are used up or the deadline comes first.
//
// index is the number of times that Admit was called before.
func (x *Exchange) Next(index int) (wait time.Duration, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if index == 0 {
		wait = x.checkAt.Sub(x.start)
	} else {
		wait = time.Until(x.checkAt)
	}
	return wait, x.admitted <= MaxHedges && x.checkAt.Before(x.retransmission.deadline)
}

// Failed implements race.Schedule. The race calls it after the failure of attempt n. If n is 0, the primary has failed,
// and the result stops the start of further attempts. The primary fails only after all other attempts have ended (see
// waitForOtherAttempts). If n is not 0, the result changes nothing.
func (x *Exchange) Failed(n, _ int, _ error) race.Reschedule { return race.Reschedule{Stop: n == 0} }

// HedgeTimeout implements race.Schedule, which asks how long hedges may run after the primary has failed. It sets no
// limit, because the retransmission timeouts of the servers limit every attempt.
func (x *Exchange) HedgeTimeout(time.Duration) time.Duration { return math.MaxInt64 }

// recordAttempt stores the kind and the server of an attempt that starts at the time now. server is the index of the
// server in the group. The caller must hold mu.
func (x *Exchange) recordAttempt(kind attemptKind, server int, now time.Time) {
	n := x.admitted
	x.admitted++
	if kind != primaryAttempt {
		x.runningOthers++
	}
	x.attempts[n] = attemptTarget{kind, server, x.selection.recordQuery(server, now)}
	r := &x.retransmission
	if kind != hedgeAttempt {
		r.recordQuery(n, server, now)
	}
	r.hasFewAttempts = x.admitted >= MaxHedges
}

// nextLossCheck returns the time after now at which to check next whether the last query is presumed lost. The caller
// must hold mu.
func (x *Exchange) nextLossCheck(now time.Time) time.Time {
	at, latest := x.retransmission.presumedLossTime(), now.Add(timeoutCheckInterval(now.Sub(x.start)))
	if latest.Before(at) {
		return latest
	}
	return at
}

// admitRetransmission decides whether a retransmission starts as an attempt at the time now. It returns true, and
// records the attempt, if the last query is presumed lost and a budget permits a retransmission. The caller must hold
// mu.
func (x *Exchange) admitRetransmission(now time.Time) bool {
	server, ok := x.selectRetransmission(now)
	if ok {
		x.recordAttempt(retransmittedAttempt, server, now)
	}
	return ok
}

// selectRetransmission selects the server for a retransmission at the time now, and counts the retransmission. ok is
// true if the last query is presumed lost and a budget permits a retransmission. If no budget permits it, the
// retransmission is postponed, and servers that are silent or failing are probed. The caller must hold mu.
func (x *Exchange) selectRetransmission(now time.Time) (server int, ok bool) {
	r := &x.retransmission
	if now.Before(r.presumedLossTime()) {
		return 0, false
	}
	r.backOff(now)
	best := x.selection.selectServer()
	server, isPaid := x.selection.selectAffordableServer(r.count == 0)
	x.selection.recordUnansweredQueries(now)
	if !isPaid {
		r.postponedUntil = now.Add(alignTimer(max(minRTO, now.Sub(r.lastSent)/2)))
		x.selection.servers.ProbeUnhealthy(now, x.query, nil) // a server that works again needs no budget
		return 0, false
	}
	if server == best { // the misses may have made that server silent
		server = x.selection.selectServer()
	}
	r.count++
	x.conf.Counters.Retransmissions.Add(1)
	return server, true
}

// admitHedge decides whether the next hedge starts at the time now. It returns true, and records the attempt, if the
// hedge is due and both policy and budget permit it. A hedge that is denied is never tried again. The caller must hold
// mu.
func (x *Exchange) admitHedge(now time.Time) bool {
	if due, ok := x.hedges.nextDue(); !ok || now.Sub(x.start) < due {
		return false
	}
	servers := x.selection.servers
	if isAdmitted, denied := x.hedges.admitNext(servers, x.conf.IsShadow); !isAdmitted {
		x.conf.Counters.Denied.Add(1)
		if denied != policy.None {
			x.events.reportDenied(denied)
		}
		return false
	}
	server := x.selection.selectServer()
	x.conf.Counters.Hedges.Add(1)
	servers[server].hedgeCount.Add(1)
	x.recordAttempt(hedgeAttempt, server, now)
	return true
}

// Ended implements race.Op. The race calls it after attempt n, a hedge or a retransmission, has ended. Ended reports
// the end of a hedge to the hedge policy. If no attempt besides the primary is running any more, it ends the wait of a
// failed primary (see waitForOtherAttempts).
func (x *Exchange) Ended(n int) {
	if x.attempts[n].kind == hedgeAttempt && x.hedges.key != nil {
		x.hedges.call.Ended(n)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.runningOthers--; x.runningOthers == 0 && x.othersEnded != nil {
		close(x.othersEnded)
		x.othersEnded = nil
	}
}

// waitForOtherAttempts waits until all attempts besides the primary have ended, or ctx ends. A failed primary must call
// it before it returns. Otherwise the race would start no further attempts, although queries of other attempts may
// still need a retransmission.
func (x *Exchange) waitForOtherAttempts(ctx context.Context) {
	x.mu.Lock()
	var idle chan struct{}
	if x.runningOthers > 0 {
		idle = make(chan struct{})
		x.othersEnded = idle
	}
	x.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// Attempt implements race.Op. It sends the question to the server that was selected for attempt n, and to other servers
// if that server fails. It returns the first successful response, or the error of the last server.
func (x *Exchange) Attempt(a *race.Attempt, n int) (attemptReply, error) {
	switch n {
	case 0:
		return x.sendQueries(x.primaryContext, a, 0, x.attempts[0], x.events.lastQuery(0))
	case MaxHedges:
		return x.runLastAttempt(a)
	}
	return x.sendQueries(a, a, n, x.attempts[n], x.events.lastQuery(n))
}

// sendQueries sends the question in attempt n, at first to the server that first names. If that server fails, it sends
// the question to another server at once, and so on. It returns the first successful response, or the error of the last
// server. When ctx ends, it cancels the query and returns.
//
// Observers and the tracer get the context a, which may be another one than ctx. For observers, sendQueries stores its
// last query in reported. Without observers, reported is not used and may be nil.
func (x *Exchange) sendQueries(ctx context.Context, a *race.Attempt, n int, first attemptTarget, reported *reportedQuery) (attemptReply, error) {
	i, earlier := first.server, first.earlierQueries
	var refused uint64 // bit set of the servers that refused a connection one after the other
	for {
		s := x.selection.servers[i]
		start := time.Now()
		answer, setup, err := x.queryServer(ctx, a, n, s, earlier, reported)
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

// queryServer sends the question to s in attempt n, and reports that query to observers and the tracer, with the
// context a. It returns the response, and the duration of the handshake, or 0 if the query needed none.
//
// earlier is the number of earlier queries of the exchange to s. For observers, the query is stored in reported (see
// eventReporter.reportQuery). Without observers, reported is not used and may be nil.
func (x *Exchange) queryServer(ctx context.Context, a *race.Attempt, n int, s *Server, earlier int, reported *reportedQuery) (answer *wire.Answer, setup time.Duration, err error) {
	isHedge := x.attempts[n].kind == hedgeAttempt
	start := time.Now()
	if x.events != nil {
		x.events.reportQuery(a, reported, x.observerNumber(n), s)
	}
	if x.conf.Tracer != nil {
		x.conf.Tracer.AttemptStarted(a, x.query, s, n, isHedge)
	}
	answer, setup, err = s.queryAddresses(ctx, x.query, earlier, &x.retransmission.connection[n])
	if x.conf.Tracer != nil {
		x.conf.Tracer.AttemptEnded(a, x.query, s, n, isHedge, time.Since(start), err)
	}
	return answer, setup, err
}

// recordResponse records the response of the server s in the health of s. isFailure is true if the response is a
// failure, so that another server must be tried. A response to an opcode other than QUERY is never a failure.
//
// If the signatures of a name are broken, a validating server responds with a DNSSEC failure, and no other server must
// be tried. If s seems unable to validate, isFailure is true nevertheless, and answer.Outcome becomes wire.Failure.
// Server.canValidate decides this, and may send a query with the context ctx. The health of s records each DNSSEC
// failure as a failure.
func (x *Exchange) recordResponse(ctx context.Context, s *Server, answer *wire.Answer) (isFailure bool) {
	isStandard := x.query.IsStandard()
	isBogus := isStandard && answer.IsBogus()
	s.recordResponse(x.query, isBogus || isStandard && answer.Outcome == wire.Failure)
	if isBogus && !s.canValidate(ctx) {
		answer.Outcome = wire.Failure
	}
	return isStandard && answer.Outcome == wire.Failure
}

// replaceRefusedServer selects another server for attempt n after the server s has refused the connection. It returns
// the index of that server, and the number of earlier queries of the exchange to it. The new query costs no token,
// because the query that was refused has reached no server.
//
// refused is the bit set of servers that refused a connection in this attempt; s is added to it. ok is false if attempt
// n is the primary, err is not a refused connection, the message must not be repeated, or no server remains.
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
		r.recordQuery(n, server, now)
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

// failOver records that the server from failed in attempt n, and selects the next server. The failure is the response
// a, or err if a is nil. It returns the index of the next server, and the number of earlier queries of the exchange to
// that server. ok is false if the attempt must end.
//
// The next server is one without a query of this exchange. If every server has had a query, replaceFailedServer may
// select one. After SERVFAIL from three servers (maxServfails), no server without a query is tried, because the zone
// itself may fail (RFC 9520 §3.1). A message with an opcode other than QUERY gets another server only if IsUnsent(err)
// is true.
//
// A query to a server without an earlier query costs a token of the shared hedge bucket after failure responses from
// two servers. If that server is silent, one failure response suffices. A question that fails everywhere is therefore
// not sent to every server. A closed or refused connection is not a response.
func (x *Exchange) failOver(n int, from *Server, a *wire.Answer, err error) (server, earlier int, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &x.failures
	f.hasRefused = f.hasRefused || isConnectionRefused(err)
	history := &x.selection.histories[slices.Index(x.selection.servers, from)]
	earlierFailures := f.recordFailure(history, from, a, err)
	if !x.query.IsStandard() && !IsUnsent(err) {
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

// refundFailovers returns the tokens that this exchange has spent for failovers, which are queries to another server
// after a failure. It must be called when a server has answered the question. Otherwise servers that fail every
// question would use up the tokens, and no query would reach the server that answers.
func (x *Exchange) refundFailovers() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for ; x.failures.paidFailovers > 0; x.failures.paidFailovers-- {
		x.selection.servers[0].account.refundFailover()
	}
}

// replaceFailedServer selects another server for attempt n if every server has had a query, and a server has responded
// with a failure more than once. It returns the index of a server that has sent no failure response, and the number of
// earlier queries of the exchange to it. The caller must hold mu.
//
// The query costs the same token as a retransmission that is not the first one. earlierFailures is the number of
// failure responses that the failed server had sent before its last one. ok is false if that number is 0, attempt n is
// the primary, no server remains, or no budget permits the query.
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

// Discard implements race.Op. It does nothing, because a reply holds no resources.
func (x *Exchange) Discard(attemptReply, error) {}
