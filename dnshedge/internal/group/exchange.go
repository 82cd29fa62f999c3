package group

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

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

// An Exchange sends one question to a group of equivalent servers. Besides the first attempt (the primary), it sends
// hedges after computed delays, and retransmissions when the last query is presumed lost. The zero value is ready for
// Run, which must be called only once.
type Exchange struct {
	conf   *Config
	events *eventReporter // nil: no observers
	query  *wire.Query
	start  time.Time // time at which Run was called
	// primaryContext is the context of the primary. Waiting for it is cheaper than waiting for the context of the
	// race.Attempt.
	primaryContext *transport.EmbeddedContext

	mu                 sync.Mutex                   // guards the fields below; the used elements of attempts never change
	attempts           [1 + MaxHedges]attemptTarget // elements 0 to admitted-1 are in use
	admitted           int                          // number of attempts started, with the primary
	running            int                          // number of attempts that have not ended, without a failed primary that waits for the others
	attemptEnded       chan struct{}                // closed when running becomes smaller; nil: no attempt waits for that
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
	adoptedContext race.AdoptedContext       // context that attempt derives from span
	span           transport.EmbeddedContext // cancellable context of the primary
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

// Run sends the question q to servers of the Pool p. It returns the first successful response, or else a failure
// response such as SERVFAIL, or else the primary's error. group is in order of preference, and must not be empty. ctx
// limits the time.
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

// FirstFailure returns the failure response to report if no server answers, and its server: the first response that
// seems deliberate, such as a filter's, or else the first of all. Both are nil without a failure response. It may be
// called during Run.
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

// recordOutcome reports the end of the exchange to observers. If the hedge delay is learned, it also records the
// latency of the exchange. winner is the number of the successful attempt, and r its reply, or -1 and the zero value if
// none succeeded.
func (x *Exchange) recordOutcome(winner int, r *attemptReply) {
	isAnswered := winner >= 0
	if x.hedges.key != nil {
		outcome := policy.Outcome{Answered: isAnswered, Winner: x.observerNumber(winner), Setup: r.handshakeTime}
		if x.events != nil {
			outcome.Delay = x.events.delay
		}
		x.hedges.call.End(outcome) // reports the end to observers as well
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

// scheduleAttempts computes when hedges and retransmissions are due. It must be called before the primary starts. None
// is due after the deadline of ctx, or else Config.Timeout. Only the opcode QUERY permits any. Settings in ctx may
// switch hedging off.
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
// records that attempt. It also computes the time of the next call (checkAt). The argument is ignored.
func (x *Exchange) Admit(int) bool {
	now := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.Sub(x.checkAt) > maxTimerLag && !x.hasGrantedReadTime { // a response may have arrived, and is read first
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

// Next implements race.Schedule. It returns the time until the next call of Admit. index is the number of earlier
// calls. ok is false if Admit must not be called again: all attempts are used up, or the deadline comes first.
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

// Failed implements race.Schedule. n is the number of the failed attempt. After the failure of the primary (n is 0), no
// further attempt starts. The primary fails only after all other attempts have ended (see waitForOtherAttempts). The
// failure of another attempt changes nothing.
func (x *Exchange) Failed(n, _ int, _ error) race.Reschedule { return race.Reschedule{Stop: n == 0} }

// HedgeTimeout implements race.Schedule, which asks how long hedges may run after the primary has failed. It sets no
// limit besides the deadline of the question.
func (x *Exchange) HedgeTimeout(time.Duration) time.Duration { return math.MaxInt64 }

// recordAttempt stores the kind and the server of an attempt that starts at the time now. server is the index of the
// server in the group. The caller must hold mu.
func (x *Exchange) recordAttempt(kind attemptKind, server int, now time.Time) {
	n := x.admitted
	x.admitted++
	x.running++
	x.attempts[n] = attemptTarget{kind, server, x.selection.recordQuery(server, now)}
	r := &x.retransmission
	if kind != hedgeAttempt {
		r.lastAttempt, r.lastServer, r.lastSent = n, server, now
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
// true if the last query is presumed lost and a budget permits a retransmission. If no budget permits it, it is
// postponed. The caller must hold mu.
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
// the end of a hedge to the hedge policy, and wakes the attempts that wait for the end of others.
func (x *Exchange) Ended(n int) {
	if x.attempts[n].kind == hedgeAttempt && x.hedges.key != nil {
		x.hedges.call.Ended(n)
	}
	x.recordAttemptEnd()
}

// recordAttemptEnd records that an attempt has ended, or that the primary waits for the others. It wakes the attempts
// that wait for this.
func (x *Exchange) recordAttemptEnd() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.running--
	if x.attemptEnded != nil {
		close(x.attemptEnded)
		x.attemptEnded = nil
	}
}

// nextAttemptEnd returns the number of running attempts, and a channel that is closed when that number becomes smaller.
// The channel is nil if no attempt is running.
func (x *Exchange) nextAttemptEnd() (ended <-chan struct{}, running int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.attemptEnded == nil && x.running > 0 {
		x.attemptEnded = make(chan struct{})
	}
	return x.attemptEnded, x.running
}

// waitForOtherAttempts waits until all attempts besides the primary have ended, or ctx ends. A failed primary must call
// it before it returns, because the race starts no retransmission after the primary has returned an error.
func (x *Exchange) waitForOtherAttempts(ctx context.Context) {
	x.recordAttemptEnd()
	for {
		ended, running := x.nextAttemptEnd()
		if running == 0 {
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

// refundFailovers returns the tokens that this exchange has spent for failovers, which are queries to another server
// after a failure. It must be called when a server has answered the question. Servers that fail every question then do
// not use up the tokens.
func (x *Exchange) refundFailovers() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for ; x.failures.paidFailovers > 0; x.failures.paidFailovers-- {
		x.selection.servers[0].account.refundFailover()
	}
}

// Discard implements race.Op. It does nothing, because a reply holds no resources.
func (x *Exchange) Discard(attemptReply, error) {}
