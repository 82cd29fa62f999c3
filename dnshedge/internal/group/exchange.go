package group

import (
	"cmp"
	"context"
	"errors"
	"math"
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
	maxInitialHedges = 4 // to a single server without learned delays: they may all be useless

	// maxTimerLag is how late a timer may fire. A timer that fires later shows that this process or machine was slow, not the network, and
	// the answer may wait to be read. readGrace is the time for reading it.
	maxTimerLag = 3 * time.Millisecond
	readGrace   = 2 * time.Millisecond
)

// Result is the outcome of an exchange.
type Result struct {
	Answer   *wire.Answer // the response of a server, even if that is a failure; nil: there is none
	Err      error        // if there is no response
	Server   *Server      // that sent the answer, or that the error is about
	IsHedged bool         // the answer is that of a hedge
	Attempts int          // attempts made

	HasRefused bool // there is an error, and a server has refused a connection
}

// An Exchange asks a group of equal servers one question. The zero value is ready for Ask, and it is used once.
//
// Besides the primary it starts two kinds of attempts. A hedge is due at a time that was learned before the exchange began, and is sent
// while the primary may still be answered. A retransmission is due when the last query that is no hedge counts as lost. The race
// checks at the earlier time whether an attempt is due.
type Exchange struct {
	conf           *Config
	events         *eventReporter // nil: there are no observers
	query          *wire.Query
	start          time.Time
	call           policy.Call
	key            *policy.Key     // of the primary's server; nil if no latency is learned
	primaryContext *transport.Span // which costs less to wait for than the context of the attempt

	mu             sync.Mutex                   // guards the fields below, but for admitted attempts: they do not change
	attempts       [1 + MaxHedges]attemptTarget // of admitted attempts
	admitted       int                          // attempts, the primary included
	running        int                          // attempts besides the primary that have not ended
	idle           chan struct{}                // closed when running is 0; nil: the primary does not wait for that
	checkAt        time.Time                    // when the race checks whether an attempt is due
	hasCheckedLate bool                         // once
	selection      serverSelection
	hedges         hedgeTimes
	retransmission retransmissionTimer
	failures       failures
}

// hedgeTimes are the times of an exchange's hedges.
type hedgeTimes struct {
	due        []time.Duration // since the exchange began
	areGuesses bool            // no delays are learned yet
	next       int             // index of the first hedge that is not due yet
	room       [MaxHedges]time.Duration
}

// A primaryRun is the race of an exchange and its primary, in one piece of memory.
type primaryRun struct {
	race    race.Race[reply]
	attempt race.Attempt
	own     race.AdoptedContext
	span    transport.Span
}

// An attemptTarget is the kind of an attempt and its first query.
type attemptTarget struct {
	kind    attemptKind
	server  int
	earlier int // queries to that server
}

// An attemptKind is the reason for an attempt.
type attemptKind int8

const (
	primaryAttempt attemptKind = iota
	hedgeAttempt
	retransmittedAttempt
)

// A reply is the answer to an attempt.
type reply struct {
	*wire.Answer
	from          *Server
	kind          attemptKind
	handshakeTime time.Duration // how long the answer waited for a handshake
}

var (
	_ race.Op[reply] = (*Exchange)(nil)
	_ race.Schedule  = (*Exchange)(nil)
)

// Ask sends a question to a group of servers of p, with hedges.
func (x *Exchange) Ask(ctx context.Context, p *Pool, q *wire.Query, group Servers) Result {
	x.conf, x.query, x.start = &p.conf, q, time.Now()
	x.selection.init(q, group)
	x.retransmission.selection = &x.selection
	x.events = newEventReporter(ctx, x.conf.Watcher, group[0])
	x.recordAttempt(primaryAttempt, 0, x.start)
	x.scheduleAttempts(ctx)
	run := new(primaryRun)
	x.primaryContext = &run.span
	run.span.Begin(ctx, 0)
	defer run.span.Cancel()
	run.attempt.AdoptContext(&run.own, &run.span, run.span.End, nil)
	run.race.Style.Observer, run.race.Style.Primary = x.events.raceWatch(), &run.attempt
	out := run.race.Run(ctx, x, x)
	x.recordOutcome(out.Winner, &out.Value)
	if out.Err != nil {
		return x.failureResult(out.Err, out.Started)
	}
	switch v := &out.Value; v.kind {
	case hedgeAttempt:
		x.conf.Counters.HedgeWins.Add(1)
		v.from.hedgeWinCount.Add(1)
	case retransmittedAttempt:
		x.conf.Counters.RetransmissionWins.Add(1)
	}
	return Result{Answer: out.Value.Answer, Server: out.Value.from, IsHedged: out.Value.kind == hedgeAttempt, Attempts: out.Started}
}

// UnableServers returns the number of servers that could not answer, or refused a connection. It may be called at any time.
func (x *Exchange) UnableServers() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failures.unable
}

// FirstFailure returns the response of the first server that could not answer, or of the first healthy one that decided so, and that server; nil: there
// is none yet. It may be called at any time.
func (x *Exchange) FirstFailure() (*wire.Answer, *Server) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failures.response, x.failures.responseServer
}

// failureResult returns the response of a server that could not answer, or else the error of the primary.
func (x *Exchange) failureResult(err error, tries int) Result {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &x.failures
	if f.response != nil {
		return Result{Answer: f.response, Server: f.responseServer, Attempts: tries}
	}
	return Result{Err: err, Server: cmp.Or(f.primaryServer, x.selection.servers[0]), Attempts: tries, HasRefused: f.hasRefused}
}

// recordOutcome learns from the exchange and reports its end to observers. The winner is -1 if there is none.
func (x *Exchange) recordOutcome(winner int, r *reply) {
	isAnswered := winner >= 0
	if x.key != nil {
		outcome := policy.Outcome{Answered: isAnswered, Winner: x.observedNumber(winner), Setup: r.handshakeTime}
		if x.events != nil {
			outcome.Delay = x.events.delay
		}
		x.call.End(outcome)
		return
	}
	if x.events != nil {
		x.mu.Lock()
		hedges := x.countHedges(x.admitted - 1)
		x.mu.Unlock()
		x.events.reportEnd(x.observedNumber(winner), hedges, time.Since(x.start))
	}
}

// observedNumber returns the number of attempt n for observers: the number of the hedge, or 0.
func (x *Exchange) observedNumber(n int) int {
	if n < 0 || x.attempts[n].kind != hedgeAttempt {
		return min(n, 0)
	}
	return x.countHedges(n)
}

// countHedges counts the hedges among the attempts up to n.
func (x *Exchange) countHedges(n int) (hedges int) {
	for _, a := range x.attempts[:n+1] {
		if a.kind == hedgeAttempt {
			hedges++
		}
	}
	return hedges
}

// scheduleAttempts computes when attempts besides the primary are due.
func (x *Exchange) scheduleAttempts(ctx context.Context) {
	if !x.query.Standard() {
		x.events.reportDenied(observe.DeniedMethod) // not known to be safe to repeat
		return
	}
	servers, r := x.selection.servers, &x.retransmission
	first := servers[0]
	if !first.isReady() {
		r.setupTime = first.handshakeAllowance()
	}
	first.account.earnTokens()
	x.scheduleHedges(ctx)
	r.timeout = first.rto.currentTimeout(0, len(servers) == 1)
	wait, left := r.setupTime+first.rto.currentTimeout(0, false), x.conf.Timeout // not doubled: see nextCheck
	if len(x.hedges.due) > 0 {
		wait = min(wait, x.hedges.due[0])
		if x.events != nil {
			x.events.delay = x.hedges.due[0]
		}
	}
	if end, ok := ctx.Deadline(); ok {
		left = end.Sub(x.start)
	}
	if len(servers) > 1 {
		wait = min(wait, left/2) // see lostAt
	}
	x.checkAt, r.deadline = x.start.Add(wait), x.start.Add(left)
}

// scheduleHedges computes when hedges are due.
func (x *Exchange) scheduleHedges(ctx context.Context) {
	first, conf := x.selection.servers[0], &x.conf.Hedging
	x.hedges.due = x.hedges.room[:0]
	denied := policy.Eligibility{SwitchedOff: x.conf.IsOff()}.Reason(race.OverridesFrom(ctx))
	switch {
	case denied != policy.None:
		x.events.reportDenied(denied)
	case conf.FixedDelay > 0:
		x.hedges.due = append(x.hedges.due, conf.FixedDelay)
	case x.selection.isZoneSilent(): // no hedge helps, and the time that these questions take is no latency of the server
		x.events.reportDenied(observe.DeniedSlow)
	default:
		x.key = first.key
		x.call.Begin(ctx, x.key, 0)
		x.hedges.areGuesses = first.hasInitialDelay()
		loss := first.lossDelay()
		at := max(first.slowDelay(), loss) + x.retransmission.setupTime
		// The second hedge starts when the first one is probably lost as well, and the third waits twice as long.
		for n := range conf.MaxHedges {
			x.hedges.due = append(x.hedges.due, at)
			at += loss << n
		}
	}
}

// Admit starts the attempt that is due: a retransmission or a hedge.
func (x *Exchange) Admit(int) bool {
	now := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.Sub(x.checkAt) > maxTimerLag && !x.hasCheckedLate {
		x.hasCheckedLate, x.checkAt = true, now.Add(readGrace)
		return false
	}
	isAdmitted := x.admitRetransmission(now) || x.admitHedge(now)
	x.checkAt = now.Add(nextCheck(now.Sub(x.start)))
	if at := x.retransmission.lostAt(); at.Before(x.checkAt) {
		x.checkAt = at
	}
	if x.hedges.next < len(x.hedges.due) {
		if at := x.start.Add(x.hedges.due[x.hedges.next]); at.Before(x.checkAt) {
			x.checkAt = at
		}
	}
	return isAdmitted
}

// Next returns the time until Admit is called next. Admit must have been called for the index before.
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

// Failed stops hedging if the primary has failed. The primary fails after the other attempts, see waitForOthers.
func (x *Exchange) Failed(n, _ int, _ error) race.Reschedule { return race.Reschedule{Stop: n == 0} }

// HedgeTimeout sets no limit: the timeouts of servers end every attempt.
func (x *Exchange) HedgeTimeout(time.Duration) time.Duration { return math.MaxInt64 }

// recordAttempt counts an attempt that starts now. The caller holds mu.
func (x *Exchange) recordAttempt(kind attemptKind, server int, now time.Time) {
	n := x.admitted
	x.admitted++
	if kind != primaryAttempt {
		x.running++
	}
	x.attempts[n] = attemptTarget{kind, server, x.selection.recordQuery(server, now)}
	if kind != hedgeAttempt {
		x.retransmission.recordQuery(n, server, now)
	}
	x.retransmission.isLastAttempt = x.admitted == MaxHedges
}

// admitRetransmission admits a query in place of the last one, if that counts as lost and a budget pays for another. The caller holds mu.
func (x *Exchange) admitRetransmission(now time.Time) bool {
	r := &x.retransmission
	if now.Before(r.lostAt()) {
		return false
	}
	r.backOff(now)
	best := x.selection.selectServer()
	server, isPaid := x.selection.selectPaidServer(r.count == 0)
	x.selection.recordMisses(now)
	if !isPaid {
		r.recordUnpaid(now)
		x.selection.servers.ProbeDoubtful(now, x.query, nil) // no budget has to pay for a server that answers again
		return false
	}
	if server == best { // which may be silent now
		server = x.selection.selectServer()
	}
	r.count++
	x.conf.Counters.Retransmissions.Add(1)
	x.recordAttempt(retransmittedAttempt, server, now)
	return true
}

// admitHedge admits the next hedge, if it is due, allowed and paid for. A hedge that is not admitted is not due again. The caller holds mu.
func (x *Exchange) admitHedge(now time.Time) bool {
	n := x.hedges.next
	if n == len(x.hedges.due) || now.Sub(x.start) < x.hedges.due[n] {
		return false
	}
	x.hedges.next++
	servers := x.selection.servers
	first := servers[0]
	reason := policy.None
	switch {
	case x.key == nil: // a fixed delay
		if x.conf.IsShadow {
			reason = observe.DeniedShadow
		}
	case x.hedges.areGuesses && len(servers) == 1 && first.hedgesWhenLate.Load() >= maxInitialHedges:
		reason = observe.DeniedWarming
	case !first.account.payHedge(&x.call, n): // which has reported the reason
		x.conf.Counters.Denied.Add(1)
		return false
	default:
		first.hedgesWhenLate.Add(1)
	}
	if reason != policy.None {
		x.conf.Counters.Denied.Add(1)
		x.events.reportDenied(reason)
		return false
	}
	server := x.selection.selectServer()
	x.conf.Counters.Hedges.Add(1)
	servers[server].hedgeCount.Add(1)
	x.recordAttempt(hedgeAttempt, server, now)
	return true
}

// Ended counts the end of attempt n, a hedge or a retransmission.
func (x *Exchange) Ended(n int) {
	if x.attempts[n].kind == hedgeAttempt && x.key != nil {
		x.call.Ended(n)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.running--; x.running == 0 && x.idle != nil {
		close(x.idle)
		x.idle = nil
	}
}

// waitForOthers returns when no other attempt runs, or ctx ends. A primary that has failed calls it: the race starts no attempt after
// that failure, and lost queries of the others must be sent again.
func (x *Exchange) waitForOthers(ctx context.Context) {
	x.mu.Lock()
	var idle chan struct{}
	if x.running > 0 {
		idle = make(chan struct{})
		x.idle = idle
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

// Attempt asks one server, and if that server cannot answer, at once the next.
func (x *Exchange) Attempt(a *race.Attempt, n int) (r reply, err error) {
	kind, i, earlier := x.attempts[n].kind, x.attempts[n].server, x.attempts[n].earlier
	var refused uint64 // bit set of the servers that refused in a row
	ctx := context.Context(a)
	if n == 0 {
		ctx = x.primaryContext
	}
	var last *lastAttempt
	if n == MaxHedges && x.query.Standard() {
		last = &lastAttempt{&x.mu, &x.selection, &x.retransmission, x.conf.Counters}
	}
	for {
		s := x.selection.servers[i]
		start := time.Now()
		answer, setup, err := x.askServer(ctx, a, n, s, earlier, last)
		if err == nil {
			if !x.isFailure(ctx, s, answer) {
				s.answerRate.recordQuestion(x.query, true)
				return reply{answer, s, kind, setup}, nil
			}
			err = errNoAnswer
		} else if a.Err() != nil {
			// Time ran out, or another attempt won.
			if time.Since(start) >= s.lossDelay() {
				s.recordMiss(x.query, start)
			}
			return reply{}, x.recordError(n, s, err)
		} else if !localerror.IsLocal(err) {
			s.recordMiss(x.query, start)
		}
		var ok bool
		if i, earlier, ok = x.failOver(n, s, answer, err); ok {
			continue
		}
		if i, earlier, ok = x.replaceRefused(n, s, err, &refused); ok {
			continue
		}
		if last != nil && (errors.Is(err, errLost) || IsRefused(err) || isTimeout(err) || x.othersRun()) {
			refused = 0
			if i, earlier, ok = last.waitForServer(a, s, start, err); ok {
				continue
			}
		}
		if n == 0 {
			x.waitForOthers(ctx)
		}
		return reply{}, x.recordError(n, s, err)
	}
}

// askServer sends the question to a server in attempt n, and reports that to observers. The attempt is the last one if last is not nil.
func (x *Exchange) askServer(ctx context.Context, a *race.Attempt, n int, s *Server, earlier int, last *lastAttempt) (answer *wire.Answer, setup time.Duration, err error) {
	isHedge := x.attempts[n].kind == hedgeAttempt
	start := time.Now()
	x.events.reportAttempt(a, n, x.observedNumber(n), s)
	if x.conf.Tracer != nil {
		x.conf.Tracer.AttemptStarted(a, x.query, s, n, isHedge)
	}
	connection := &x.retransmission.connection[n]
	connection.Reset()
	if last != nil {
		answer, setup, err = last.askServer(ctx, s, earlier, connection)
	} else {
		answer, setup, err = s.queryAddresses(ctx, x.query, earlier, connection)
	}
	if x.conf.Tracer != nil {
		x.conf.Tracer.AttemptEnded(a, x.query, s, n, isHedge, time.Since(start), err)
	}
	return answer, setup, err
}

// isFailure reports whether a response of s does not answer the question, and records it. Responses to other messages count as answers.
func (x *Exchange) isFailure(ctx context.Context, s *Server, answer *wire.Answer) bool {
	isStandard := x.query.Standard()
	isBogus := isStandard && answer.Bogus()
	s.recordResponse(x.query, isBogus || isStandard && answer.Outcome == wire.Failure)
	if isBogus && !s.canValidate(ctx) {
		answer.Outcome = wire.Failure
	}
	return isStandard && answer.Outcome == wire.Failure
}

// replaceRefused returns another server for attempt n, a hedge or a retransmission, if s has refused it, as the servers before it in the same
// attempt. No budget pays for it: the query that was paid for has reached no server.
func (x *Exchange) replaceRefused(n int, s *Server, err error, refused *uint64) (server, earlier int, ok bool) {
	if n == 0 || !x.query.Standard() || !IsRefused(err) {
		return 0, 0, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	*refused |= x.selection.serverBit(s)
	if server = x.selection.selectServerExcept(*refused | x.selection.failedServers()); server < 0 {
		return 0, 0, false
	}
	return server, x.changeServer(n, server), true
}

// changeServer counts a query of attempt n to another server, and returns the number of earlier queries to that server. The caller holds mu.
func (x *Exchange) changeServer(n, server int) (earlier int) {
	now := time.Now()
	if x.retransmission.lastAttempt == n {
		x.retransmission.recordQuery(n, server, now)
	}
	x.conf.Counters.Failovers.Add(1)
	return x.selection.recordQuery(server, now)
}

// othersRun reports whether attempts besides the last one run: meanwhile the last one goes on.
func (x *Exchange) othersRun() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.running > 1 || x.idle == nil
}

// recordError returns the error of attempt n, which is about s.
func (x *Exchange) recordError(n int, s *Server, err error) error {
	if n == 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.failures.primaryServer = s
	}
	return err
}

// failOver records that a server could not answer, and returns another server that has not been asked.
//
// It costs no budget, unless a server has responded with a failure and the next one is silent, or two have responded so: a
// question that fails everywhere must not be sent everywhere. A server that closes or refuses a connection has not
// responded. SERVFAIL may be the failure of a zone, and so three servers with it are enough (RFC 9520 §3.1).
func (x *Exchange) failOver(n int, from *Server, a *wire.Answer, err error) (server, earlier int, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &x.failures
	f.hasRefused = f.hasRefused || IsRefused(err)
	earlierFailures := f.record(x.selection.useOf(from), from, a, err)
	if !x.query.Standard() && !IsUnsent(err) {
		return 0, 0, false
	}
	server = x.selection.selectServerExcept(x.selection.askedServers())
	if server < 0 || x.selection.uses[server].queries > 0 {
		return x.replaceFailed(n, earlierFailures)
	}
	next := x.selection.servers[server]
	switch {
	case f.servfails >= maxServfails:
		return 0, 0, false
	case (f.responses > 0 && next.IsSilent() || f.responses > 1) && !next.account.payFailover():
		return 0, 0, false
	}
	return server, x.changeServer(n, server), true
}

// replaceFailed returns a server without failures for attempt n, a hedge or a retransmission, if its server has failed before and has failed again.
// The caller holds mu.
func (x *Exchange) replaceFailed(n, earlierFailures int) (server, earlier int, ok bool) {
	if earlierFailures == 0 || n == 0 {
		return 0, 0, false
	}
	server = x.selection.selectServerExcept(x.selection.failedServers())
	if server < 0 || !x.selection.servers[server].payRetransmission(x.query, false) {
		return 0, 0, false
	}
	return server, x.changeServer(n, server), true
}

// Discard does nothing, because a reply holds nothing that must be released.
func (x *Exchange) Discard(reply, error) {}
