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
	maxInitialHedges = 4 // maxInitialHedges limits the hedges of a single server while its delays are not learned. Such hedges may all be useless.

	// maxTimerLag is the usual maximum delay of a timer. A later timer shows that this process or machine was slow, not
	// the network, and that the answer may wait to be read. readGrace is the extra time for reading it.
	maxTimerLag = 3 * time.Millisecond
	readGrace   = 2 * time.Millisecond
)

// Result is the outcome of an exchange.
type Result struct {
	Answer   *wire.Answer // the response of a server, even if it is a failure; nil: no response
	Err      error        // the error if there is no response
	Server   *Server      // the server that sent Answer or caused Err
	IsHedged bool         // Answer is the response to a hedge
	Attempts int          // number of attempts made

	HasRefused bool // Err is set, and a server has refused a connection
}

// An Exchange sends one question to a group of equal servers. The zero value is ready for Ask, which may be called
// once.
//
// Besides the primary there are two kinds of attempts. A hedge is due after a delay that was computed before the
// exchange began, and starts while the primary may still be answered. A retransmission is due when the last primary or
// retransmission is presumed lost.
//
// The race calls Admit at the earliest time at which an attempt may be due.
type Exchange struct {
	conf           *Config
	events         *eventReporter // nil: no observers
	query          *wire.Query
	start          time.Time
	call           policy.Call
	key            *policy.Key     // latency key of the first server; nil if the exchange records no latency
	primaryContext *transport.Span // context of the primary; cheaper to wait for than that of race.Attempt

	mu             sync.Mutex                   // guards the fields below; elements of attempts below admitted never change
	attempts       [1 + MaxHedges]attemptTarget // the first admitted elements are in use
	admitted       int                          // number of attempts started, with the primary
	running        int                          // attempts other than the primary that have not ended
	idle           chan struct{}                // closed when running becomes 0; nil: the primary does not wait for that
	checkAt        time.Time                    // time of the next call of Admit
	hasCheckedLate bool                         // Admit was called late, and readGrace was granted; this happens once
	selection      serverSelection
	hedges         hedgeTimes
	retransmission retransmissionTimer
	failures       failures
}

// hedgeTimes holds the delays of an exchange's hedges.
type hedgeTimes struct {
	due        []time.Duration          // delay of each hedge since the start of the exchange
	areInitial bool                     // the delays are the initial ones, because none are learned yet
	next       int                      // index of the next hedge that is to be due
	dueBuffer  [MaxHedges]time.Duration // memory for due
}

// A primaryRun holds the race of an exchange and the state of its primary, so that they need one allocation.
type primaryRun struct {
	race    race.Race[reply]
	attempt race.Attempt
	own     race.AdoptedContext
	span    transport.Span
}

// An attemptTarget is the kind of an attempt and the server of its first query.
type attemptTarget struct {
	kind    attemptKind
	server  int // index of the server
	earlier int // number of earlier queries of the exchange to that server
}

// An attemptKind tells why an attempt was started.
type attemptKind int8

const (
	primaryAttempt attemptKind = iota
	hedgeAttempt
	retransmittedAttempt
)

// A reply is the result of an attempt that was answered.
type reply struct {
	*wire.Answer
	from          *Server // the server that answered
	kind          attemptKind
	handshakeTime time.Duration // part of the latency that a handshake took
}

var (
	_ race.Op[reply] = (*Exchange)(nil)
	_ race.Schedule  = (*Exchange)(nil)
)

// Ask sends the question q to a group of servers of p, with hedges, and returns the first answer that is no failure.
// Servers that come earlier in group are preferred; group must not be empty.
func (x *Exchange) Ask(ctx context.Context, p *Pool, q *wire.Query, group Servers) Result {
	x.conf, x.query, x.start = &p.conf, q, time.Now()
	x.selection.init(q, group)
	x.retransmission.selection = &x.selection
	x.events = newEventReporter(ctx, x.conf.Observers, group[0])
	x.recordAttempt(primaryAttempt, 0, x.start)
	x.scheduleAttempts(ctx)
	run := new(primaryRun)
	x.primaryContext = &run.span
	run.span.Begin(ctx, 0)
	defer run.span.Cancel()
	run.attempt.AdoptContext(&run.own, &run.span, run.span.End, nil)
	run.race.Style.Observer, run.race.Style.Primary = x.events.raceObserver(), &run.attempt
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

// UnableServers returns the number of servers that could not answer the question or refused a connection. It may be
// called during Ask.
func (x *Exchange) UnableServers() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failures.unable
}

// FirstFailure returns the failure response that stands for the question, with its server. That is the first one that
// is a decision of a healthy server (see Server.IsDeliberateFailure), or else the first one. Both results are nil if there is
// none. It may be called during Ask.
func (x *Exchange) FirstFailure() (*wire.Answer, *Server) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failures.response, x.failures.responseServer
}

// failureResult returns the Result of an exchange without an answer: the failure response of a server, or else err, the
// error of the primary.
func (x *Exchange) failureResult(err error, tries int) Result {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &x.failures
	if f.response != nil {
		return Result{Answer: f.response, Server: f.responseServer, Attempts: tries}
	}
	return Result{Err: err, Server: cmp.Or(f.primaryServer, x.selection.servers[0]), Attempts: tries, HasRefused: f.hasRefused}
}

// recordOutcome records the latency of the exchange for the latency key and reports the end of the exchange to
// observers. winner is the number of the attempt that was answered, or -1.
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

// observedNumber converts the attempt number n to the number for observers, who see no retransmissions. A hedge has the
// number of the hedge; the primary and retransmissions have 0. Negative n remains.
func (x *Exchange) observedNumber(n int) int {
	if n < 0 || x.attempts[n].kind != hedgeAttempt {
		return min(n, 0)
	}
	return x.countHedges(n)
}

// countHedges returns the number of hedges among attempts 0 to n.
func (x *Exchange) countHedges(n int) (hedges int) {
	for _, a := range x.attempts[:n+1] {
		if a.kind == hedgeAttempt {
			hedges++
		}
	}
	return hedges
}

// scheduleAttempts computes the delays of hedges and retransmissions before the primary starts. A message with an
// opcode other than QUERY gets neither.
func (x *Exchange) scheduleAttempts(ctx context.Context) {
	if !x.query.IsStandard() {
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
	wait, left := r.setupTime+first.rto.currentTimeout(0, false), x.conf.Timeout // not doubled: see regularCheckDelay
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

// scheduleHedges computes the delay of each hedge, or reports to observers why there are none.
func (x *Exchange) scheduleHedges(ctx context.Context) {
	first, conf := x.selection.servers[0], &x.conf.Hedging
	x.hedges.due = x.hedges.dueBuffer[:0]
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
		x.hedges.areInitial = first.hasInitialDelay()
		loss := first.lossDelay()
		at := max(first.slowDelay(), loss) + x.retransmission.setupTime
		// The second hedge starts when the first one is probably lost as well, and the third waits twice as long.
		for n := range conf.MaxHedges {
			x.hedges.due = append(x.hedges.due, at)
			at += loss << n
		}
	}
}

// Admit implements race.Op. It reports whether an attempt is due and admitted, a retransmission or a hedge, and sets
// the time of the next call.
func (x *Exchange) Admit(int) bool {
	now := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.Sub(x.checkAt) > maxTimerLag && !x.hasCheckedLate {
		x.hasCheckedLate, x.checkAt = true, now.Add(readGrace)
		return false
	}
	isAdmitted := x.admitRetransmission(now) || x.admitHedge(now)
	x.checkAt = now.Add(regularCheckDelay(now.Sub(x.start)))
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

// Next implements race.Schedule. It returns the time until the next call of Admit, and false if there is none: all
// attempts are used up, or the deadline comes first. The race calls Admit before it calls Next for the next index.
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

// Failed implements race.Schedule. The failure of the primary ends hedging. A primary that fails reports that only when
// no other attempt runs, see waitForOthers.
func (x *Exchange) Failed(n, _ int, _ error) race.Reschedule { return race.Reschedule{Stop: n == 0} }

// HedgeTimeout implements race.Schedule without a limit: the timeouts of servers end every attempt.
func (x *Exchange) HedgeTimeout(time.Duration) time.Duration { return math.MaxInt64 }

// recordAttempt stores the kind and the server of an attempt that starts now. The caller holds mu.
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

// admitRetransmission admits a retransmission if the last query is presumed lost and a budget pays for it. The caller
// holds mu.
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

// admitHedge admits the next hedge if its delay is over, hedging is allowed and the budget pays for it. A denied hedge
// is not tried again. The caller holds mu.
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
	case x.hedges.areInitial && len(servers) == 1 && first.lateHedgeCount.Load() >= maxInitialHedges:
		reason = observe.DeniedWarming
	case !first.account.payHedge(&x.call, n): // which has reported the reason
		x.conf.Counters.Denied.Add(1)
		return false
	default:
		first.lateHedgeCount.Add(1)
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

// Ended implements race.Op. It records the end of attempt n, which is a hedge or a retransmission.
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

// waitForOthers waits until no attempt besides the primary runs, or ctx ends. A primary that has failed calls it,
// because the race starts no attempt after that failure, and queries of other attempts may still need a retransmission.
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

// Attempt implements race.Op. It sends the question to the server of attempt n, and if that server cannot answer, at
// once to the next.
func (x *Exchange) Attempt(a *race.Attempt, n int) (r reply, err error) {
	kind, i, earlier := x.attempts[n].kind, x.attempts[n].server, x.attempts[n].earlier
	var refused uint64 // bit set of the servers that refused in a row
	ctx := context.Context(a)
	if n == 0 {
		ctx = x.primaryContext
	}
	var last *lastAttempt
	if n == MaxHedges && x.query.IsStandard() {
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
		if last != nil && (errors.Is(err, errLost) || IsRefused(err) || isTimeout(err) || x.hasOtherAttempts()) {
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

// askServer sends the question to s in attempt n and reports that to observers and the tracer. earlier is the number of
// earlier queries to s. last is nil unless n is the last attempt.
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

// isFailure records a response of s, and reports whether it is a failure, so that another server must be asked.
// Responses to opcodes other than QUERY never are. A bogus answer is a failure only if the server cannot validate.
func (x *Exchange) isFailure(ctx context.Context, s *Server, answer *wire.Answer) bool {
	isStandard := x.query.IsStandard()
	isBogus := isStandard && answer.IsBogus()
	s.recordResponse(x.query, isBogus || isStandard && answer.Outcome == wire.Failure)
	if isBogus && !s.canValidate(ctx) {
		answer.Outcome = wire.Failure
	}
	return isStandard && answer.Outcome == wire.Failure
}

// replaceRefused returns another server for attempt n, a hedge or a retransmission, after s has refused the connection.
// refused collects the servers that did so in this attempt. No budget is spent, because the query that was paid for has
// reached no server. ok is false if no server is left.
func (x *Exchange) replaceRefused(n int, s *Server, err error, refused *uint64) (server, earlier int, ok bool) {
	if n == 0 || !x.query.IsStandard() || !IsRefused(err) {
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

// changeServer records that attempt n continues with another server. It returns the number of earlier queries to that
// server. The caller holds mu.
func (x *Exchange) changeServer(n, server int) (earlier int) {
	now := time.Now()
	if x.retransmission.lastAttempt == n {
		x.retransmission.recordQuery(n, server, now)
	}
	x.conf.Counters.Failovers.Add(1)
	return x.selection.recordQuery(server, now)
}

// hasOtherAttempts reports whether the last attempt is not the only one that runs. Only then may it continue after a failure.
func (x *Exchange) hasOtherAttempts() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.running > 1 || x.idle == nil
}

// recordError returns err, the error of attempt n. If n is the primary, it stores the server s that caused err.
func (x *Exchange) recordError(n int, s *Server, err error) error {
	if n == 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.failures.primaryServer = s
	}
	return err
}

// failOver records that a server could not answer attempt n, by a failure response a or an error. It selects a server
// that was not asked yet. ok is false if the attempt must end.
//
// The first failure response costs no token. The next query costs a token after two failure responses. It costs a token
// after one if the next server is silent: a question that fails everywhere must not be sent everywhere. A server that
// closes or refuses a connection has not responded.
//
// SERVFAIL may be the failure of a zone, so three servers with it are enough (RFC 9520 §3.1).
func (x *Exchange) failOver(n int, from *Server, a *wire.Answer, err error) (server, earlier int, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &x.failures
	f.hasRefused = f.hasRefused || IsRefused(err)
	earlierFailures := f.record(x.selection.findUse(from), from, a, err)
	if !x.query.IsStandard() && !IsUnsent(err) {
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

// replaceFailed returns a server without failures for attempt n, a hedge or a retransmission, whose server has failed a
// second time. earlierFailures counts the earlier failures of that server. ok is false if no server is left or no
// budget pays. The caller holds mu.
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

// Discard implements race.Op. A reply holds nothing that must be released.
func (x *Exchange) Discard(reply, error) {}
