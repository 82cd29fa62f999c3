package group

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

const (
	maxColdHedges = 4 // to a single server of which nothing is known: they may all be useless

	// maxTimerLag is how late a timer may fire. If it is later, this process or machine
	// was slow, not the network, and the answer may wait to be read. lookAgain is how
	// long its reader then has.
	maxTimerLag = 3 * time.Millisecond
	lookAgain   = 2 * time.Millisecond

	// Questions that wait look again at the same times, so far apart: to be woken together costs each of them less.
	lookEvery = 16 * time.Millisecond

	// lastPatience is how many timeouts the last attempt waits: it is for a
	// network that was gone for a moment, in which hedges have used up the others.
	lastPatience = 4

	maxServfails = 3 // servers that are asked until SERVFAIL is believed

	// silentHandicap is how many queries more the other servers get than a silent one.
	silentHandicap = transport.MaxDatagrams

	// failedHandicap is how many queries more the others get than a server that has said that it cannot answer the question, for each
	// time that it has. So it is asked again when those that are silent have had two.
	failedHandicap = silentHandicap + 1

	usualServers = 2 // of a group
)

// errLost is why the wait for a query has ended that is sent again.
var errLost = errors.New("dnshedge: query is lost")

// errNoAnswer is an attempt's error if servers responded, but with failures.
var errNoAnswer = errors.New("dnshedge: no server answered the question")

// Result is what came of an exchange.
type Result struct {
	Answer *wire.Answer // what the servers said, even if that is a failure
	Err    error        // instead of an answer, if they said nothing
	From   *Server      // that the answer is from, or the error about
	Hedged bool         // a hedge was answered first
	Tries  int          // attempts made

	Refused bool // a server has refused a connection, and there is an error
}

// Exchange is one question on its way through a group of equal servers. The zero value is ready for Ask, and it is used once.
//
// Besides the primary, two things may be done. A hedge is due at a time that was learned before the exchange began, and goes
// out while the primary may still be answered. A resend is due when the last query that is no hedge is lost, as far as anybody
// can know at that time. The race looks when the earlier of them is due.
type Exchange struct {
	conf  *Config
	told  *told // nil: there are no observers
	q     *wire.Query
	group Servers // in the order of preference
	start time.Time
	end   time.Time // nothing is sent any more
	call  policy.Call
	key   *policy.Key // of the primary's server; nil if nothing is learned

	mu       sync.Mutex // guards the fields below, but for the attempts that were admitted: they do not change
	attempts [1 + MaxHedges]attempt
	ways     [1 + MaxHedges]transport.Way // of their queries, which guard themselves
	tries    int                          // attempts admitted, the primary included
	turns    []turn                       // of each server
	look     time.Time                    // when the race looks what is due
	late     bool                         // it has looked too late once
	others   int                          // attempts besides the primary that have not ended
	alone    chan struct{}                // closed when others is 0; nil: nobody waits for that
	hedges   hedges
	resends  resends
	failing

	// What else an exchange needs, in one piece of memory.
	race  race.Race[reply]
	first first // the primary
	room  room  // for the slices above
}

// hedges are those of an Exchange, which guards them.
type hedges struct {
	due  []time.Duration // since the exchange began
	cold bool            // the times are guesses
	next int             // of due, whose time has not come
}

// resends are those of an Exchange, which guards them, and the last query: the primary, or the last resend.
type resends struct {
	setup   time.Duration // of the primary's connection
	timeout time.Duration // of the primary's server
	n       int
	last    int       // the server that the last query went to
	attempt int       // the attempt that sent it
	lastAt  time.Time // when that was
	unpaid  time.Time // none before this time, because nothing paid for one
}

type first struct {
	race.Attempt
	own  race.Own
	span transport.Span
}

type room struct {
	due   [MaxHedges]time.Duration
	turns [usualServers]turn
}

// turn is what a server was asked in an Exchange.
type turn struct {
	uses   int       // queries
	failed int       // those of them that it has said it cannot answer
	unable bool      // it has said so, or has refused a connection
	asked  time.Time // the last one
}

// attempt is how an attempt begins.
type attempt struct {
	kind kind
	to   int // the server
	use  int // how often that one was asked before
}

// kind is why an attempt is made.
type kind int8

const (
	primary kind = iota
	hedge
	resent
)

// failing is what came of attempts without an answer. It is guarded by the Exchange's mu.
type failing struct {
	unable      int          // servers that have said that they cannot answer, or have refused a connection
	failures    int          // servers whose responses were failures
	servfails   int          // those of them that said SERVFAIL first
	failure     *wire.Answer // the first of all, or of those that a healthy server has decided
	failureFrom *Server      // its server
	failed      *Server      // the server that the primary's error is about
	refused     bool         // a server has refused a connection
}

// reply is an attempt's answer.
type reply struct {
	*wire.Answer
	from  *Server
	kind  kind
	setup time.Duration // how long the answer waited for a handshake
}

var (
	_ race.Op[reply] = (*Exchange)(nil)
	_ race.Schedule  = (*Exchange)(nil)
)

// Ask puts a question to a group of servers of p, hedged.
func (x *Exchange) Ask(ctx context.Context, p *Pool, q *wire.Query, group Servers) Result {
	x.conf, x.q, x.group, x.start = &p.conf, q, group, time.Now()
	if n := len(group); n <= usualServers {
		x.turns = x.room.turns[:n]
	} else {
		x.turns = make([]turn, n)
	}
	x.told = tell(ctx, x.conf.Watcher, group[0])
	x.admit(primary, 0, x.start)
	x.plan(ctx)
	span := &x.first.span
	span.Begin(ctx, 0)
	defer span.Cancel()
	x.first.Adopt(&x.first.own, span, span.End, nil)
	style := &x.race.Style
	style.Watch, style.Primary = x.told.watch(), &x.first.Attempt
	out := x.race.Run(ctx, x, x)
	x.ended(out.Winner, &out.Value)
	if out.Err != nil {
		return x.failedAll(out.Err, out.Started)
	}
	switch v := &out.Value; v.kind {
	case hedge:
		x.conf.Count.HedgeWins.Add(1)
		v.from.hedgeWins.Add(1)
	case resent:
		x.conf.Count.ResendWins.Add(1)
	}
	return Result{Answer: out.Value.Answer, From: out.Value.from, Hedged: out.Value.kind == hedge, Tries: out.Started}
}

// Unable returns how many servers have said that they cannot answer, or have refused a connection. It may be called at any time.
func (x *Exchange) Unable() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.unable
}

// Failure returns what the first server has said that cannot answer, or the first that has decided so, and that server; nil: none has said
// so yet. It may be called at any time.
func (x *Exchange) Failure() (*wire.Answer, *Server) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failure, x.failureFrom
}

// failedAll returns what the servers said if none answered, or else the error of the primary.
func (x *Exchange) failedAll(err error, tries int) Result {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failure != nil {
		return Result{Answer: x.failure, From: x.failureFrom, Tries: tries}
	}
	return Result{Err: err, From: cmp.Or(x.failed, x.group[0]), Tries: tries, Refused: x.refused}
}

// ended learns from the exchange and tells how it ended. The winner is -1 if there is none.
func (x *Exchange) ended(winner int, r *reply) {
	answered := winner >= 0
	if x.key != nil {
		outcome := policy.Outcome{Answered: answered, Winner: x.number(winner), Setup: r.setup}
		if x.told != nil {
			outcome.Delay = x.told.delay
		}
		x.call.End(outcome)
		return
	}
	if x.told != nil {
		x.mu.Lock()
		hedges := x.hedgesUpTo(x.tries - 1)
		x.mu.Unlock()
		x.told.end(x.number(winner), hedges, time.Since(x.start))
	}
}

// number is what observers call attempt n: 0, or which of the hedges it is.
func (x *Exchange) number(n int) int {
	if n < 0 || x.attempts[n].kind != hedge {
		return min(n, 0)
	}
	return x.hedgesUpTo(n)
}

// hedgesUpTo counts the hedges among the attempts up to n.
func (x *Exchange) hedgesUpTo(n int) (hedges int) {
	for _, a := range x.attempts[:n+1] {
		if a.kind == hedge {
			hedges++
		}
	}
	return hedges
}

// plan decides when attempts besides the primary are due.
func (x *Exchange) plan(ctx context.Context) {
	if !x.q.Standard() {
		x.told.denied(observe.DeniedMethod) // not known to be safe to repeat
		return
	}
	first, h := x.group[0], &x.conf.Hedging
	if !first.ready() {
		x.resends.setup = first.setupTime()
	}
	first.purse.earn()
	x.hedges.due = x.room.due[:0]
	refused := policy.Eligibility{SwitchedOff: x.conf.Off()}.Reason(race.OverridesFrom(ctx))
	switch {
	case refused != policy.None:
		x.told.denied(refused)
	case h.Fixed > 0:
		x.hedges.due = append(x.hedges.due, h.Fixed)
	case x.zoneSilent(): // no hedge helps, and how long its questions take is nobody's latency
		x.told.denied(observe.DeniedSlow)
	default:
		x.key = first.key
		x.call.Begin(ctx, x.key, 0)
		x.hedges.cold = first.cold()
		loss := first.lossDelay()
		at := max(first.slowDelay(), loss) + x.resends.setup
		// The second hedge starts when the first one is probably lost as well, and the
		// third waits twice as long.
		for n := range h.MaxHedges {
			x.hedges.due = append(x.hedges.due, at)
			at += loss << n
		}
	}
	x.resends.timeout = first.rto.timeout(0, len(x.group) == 1)
	wait, left := x.resends.setup+first.rto.timeout(0, false), x.conf.Timeout // not doubled: see lookAfter
	if len(x.hedges.due) > 0 {
		wait = min(wait, x.hedges.due[0])
		if x.told != nil {
			x.told.delay = x.hedges.due[0]
		}
	}
	if end, ok := ctx.Deadline(); ok {
		left = end.Sub(x.start)
	}
	if len(x.group) > 1 {
		wait = min(wait, left/2) // see lostAt
	}
	x.look, x.end = x.start.Add(wait), x.start.Add(left)
}

// zoneSilent reports whether all servers of the group are silent about the question's zone.
func (x *Exchange) zoneSilent() bool {
	return !slices.ContainsFunc(x.group, func(s *Server) bool { return !s.zones.silent(x.q) })
}

// Admit starts what is due, a resend or a hedge.
func (x *Exchange) Admit(int) bool {
	now := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.Sub(x.look) > maxTimerLag && !x.late {
		x.late, x.look = true, now.Add(lookAgain)
		return false
	}
	admitted := x.resend(now) || x.hedge(now)
	x.look = now.Add(lookAfter(now.Sub(x.start)))
	if at := x.lostAt(); at.Before(x.look) {
		x.look = at
	}
	if x.hedges.next < len(x.hedges.due) {
		if at := x.start.Add(x.hedges.due[x.hedges.next]); at.Before(x.look) {
			x.look = at
		}
	}
	return admitted
}

// lookAfter is when to look again whether a query is lost that is waited for so long: a failure may change who is asked next, and when, and
// an answer to another question ends the doubling of the timeout.
func lookAfter(waited time.Duration) time.Duration { return together(max(minRTO, waited/4)) }

// together returns how long it is until others look as well, d or a little more.
func together(d time.Duration) time.Duration {
	return d + lookEvery - time.Duration(time.Now().Add(d).UnixNano())%lookEvery
}

// Next returns the time until Admit is called next. That is not known before Admit has been called for the index before.
func (x *Exchange) Next(index int) (wait time.Duration, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if index == 0 {
		wait = x.look.Sub(x.start)
	} else {
		wait = time.Until(x.look)
	}
	return wait, x.tries <= MaxHedges && x.look.Before(x.end)
}

// Failed stops hedging if the primary has failed, which it does not before the other attempts, see waitForOthers.
func (x *Exchange) Failed(n, _ int, _ error) race.Reschedule { return race.Reschedule{Stop: n == 0} }

// HedgeTimeout sets no limit: the timeouts of servers end every attempt.
func (x *Exchange) HedgeTimeout(time.Duration) time.Duration { return math.MaxInt64 }

// admit counts an attempt that starts now. The caller holds mu.
func (x *Exchange) admit(k kind, to int, now time.Time) {
	x.attempts[x.tries] = attempt{kind: k, to: to, use: x.turns[to].uses}
	x.tries++
	if k != primary {
		x.others++
	}
	x.countUse(to, now)
	if k != hedge {
		x.resends.last, x.resends.lastAt, x.resends.attempt = to, now, x.tries-1
	}
}

// lostAt returns when the last query counts as lost, as far as anybody can know now: its
// server's retransmission timeout has passed, doubled for each resend, and no hedge is under
// way. Another server gets half of the time
// that was left, unless it is known to take longer. The caller holds mu.
func (x *Exchange) lostAt() time.Time {
	s := x.group[x.resends.last]
	to := x.group[x.pick()]
	wait := s.rto.timeout(x.resends.n, to == s || to.Silent())
	if x.resends.n == 0 {
		wait += x.resends.setup
	}
	if x.tries == MaxHedges {
		wait = max(wait, x.lastPatience(s, x.resends.lastAt))
	}
	at := x.givenUp(x.resends.attempt, x.resends.lastAt, wait)
	half := x.end.Sub(x.resends.lastAt) / 2
	if latest := x.resends.lastAt.Add(half); to != s && to.rto.within(half) && latest.Before(at) {
		at = latest // the answers of this one may all come too late
	}
	if at.Before(x.resends.unpaid) {
		at = x.resends.unpaid
	}
	for i, s := range x.group {
		if asked := x.turns[i].asked; asked.After(x.resends.lastAt) {
			if hedged := asked.Add(s.lossDelay()); at.Before(hedged) {
				at = hedged
			}
		}
	}
	return at
}

// givenUp returns when the query of attempt n, which was sent then, is waited for no longer: patience after it was sent, or after its connection
// has carried another answer, for a connection loses nothing. But a server may have forgotten one question, or have answered another
// one: half of the time that was left is enough, and a second at least, for it may wait for its turn.
func (x *Exchange) givenUp(n int, sent time.Time, patience time.Duration) time.Time {
	at := sent.Add(patience)
	if carried := x.ways[n].Carried(); carried.After(sent) {
		at = carried.Add(patience)
	}
	if latest := sent.Add(max(patience, x.end.Sub(sent)/2, firstRTO)); latest.Before(at) {
		return latest
	}
	return at
}

// resend admits a query in place of the last one, if that is lost and something pays for another. The caller holds mu.
func (x *Exchange) resend(now time.Time) bool {
	if now.Before(x.lostAt()) {
		return false
	}
	if s := x.group[x.resends.last]; !s.AnsweredSince(x.resends.lastAt) {
		s.rto.backOff(x.resends.lastAt, now)
	}
	best := x.pick()
	to, paid := x.payResend(x.resends.n == 0)
	x.countMisses(now)
	if !paid {
		x.resends.unpaid = now.Add(together(max(minRTO, now.Sub(x.resends.lastAt)/2)))
		x.group.ProbeDoubtful(now, x.q, nil) // one that is back has to be paid for no more
		return false
	}
	if to == best { // which may be silent now, and another one the better choice
		to = x.pick()
	}
	x.resends.n++
	x.conf.Count.Resends.Add(1)
	x.admit(resent, to, now)
	return true
}

// payResend chooses the server for a resend: the best one that something pays for, so that one that may not be asked hides no other.
// One that has said that it cannot answer the question is chosen only if it is the best of all. The caller holds mu.
func (x *Exchange) payResend(first bool) (to int, paid bool) {
	not := uint64(0)
	for range x.group {
		i := x.pickBut(not)
		if i < 0 {
			break
		}
		if x.group[i].payResend(x.q, first) {
			return i, true
		}
		not |= x.haveFailed() | 1<<i
	}
	return 0, false
}

// hedge admits the next hedge, if it is due, allowed and paid for. One that is not admitted is not asked for again. The caller
// holds mu.
func (x *Exchange) hedge(now time.Time) bool {
	n := x.hedges.next
	if n == len(x.hedges.due) || now.Sub(x.start) < x.hedges.due[n] {
		return false
	}
	x.hedges.next++
	first := x.group[0]
	reason := policy.None
	switch {
	case x.key == nil: // a fixed delay
		if x.conf.Shadow {
			reason = observe.DeniedShadow
		}
	case x.hedges.cold && len(x.group) == 1 && first.lateHedges.Load() >= maxColdHedges:
		reason = observe.DeniedWarming
	case !first.purse.payHedge(&x.call, n): // which has told why
		x.conf.Count.Denied.Add(1)
		return false
	default:
		first.lateHedges.Add(1)
	}
	if reason != policy.None {
		x.conf.Count.Denied.Add(1)
		x.told.denied(reason)
		return false
	}
	to := x.pick()
	x.conf.Count.Hedges.Add(1)
	x.group[to].hedges.Add(1)
	x.admit(hedge, to, now)
	return true
}

// Ended says that attempt n, a hedge or a resend, has ended.
func (x *Exchange) Ended(n int) {
	if x.attempts[n].kind == hedge && x.key != nil {
		x.call.Ended(n)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.others--; x.others == 0 && x.alone != nil {
		close(x.alone)
		x.alone = nil
	}
}

// waitForOthers returns when no other attempt is under way, or ctx ends. It is for a primary that has failed: a race starts none once it has
// that failure, and what is lost of the others must be sent again.
func (x *Exchange) waitForOthers(ctx context.Context) {
	x.mu.Lock()
	var alone chan struct{}
	if x.others > 0 {
		alone = make(chan struct{})
		x.alone = alone
	}
	x.mu.Unlock()
	if alone == nil {
		return
	}
	select {
	case <-alone:
	case <-ctx.Done():
	}
}

// countMisses counts a miss of each server that has not answered in time. The
// caller holds mu.
func (x *Exchange) countMisses(now time.Time) {
	for i, s := range x.group {
		if one := &x.turns[i]; one.uses > 0 && now.Sub(one.asked) >= s.lossDelay() {
			s.miss(x.q, one.asked)
		}
	}
}

// pick chooses the server for another attempt: the first of those asked least. A
// doubtful server is chosen as if it had had silentHandicap more queries; among equals
// it is last. So is one that was asked and has never answered anything. One that has said that it cannot answer this question comes after all that were
// not asked, as if it had had failedHandicap more queries each time. One that has refused a connection precedes servers asked as often: its query has
// reached no process, and if it refuses again the attempt asks the next server at once. The caller holds mu.
func (x *Exchange) pick() int { return x.pickBut(0) }

// pickBut is pick without some of the servers: a bit for each, those above 64 are left out with them. It returns -1 if there is no
// other one. The caller holds mu.
func (x *Exchange) pickBut(not uint64) int {
	best, rank := -1, -1
	for i, s := range x.group {
		if not>>i&1 != 0 || not != 0 && i >= 64 {
			continue
		}
		r := 2 * (x.turns[i].uses + failedHandicap*x.turns[i].failed)
		if s.doubtful() || s.zones.silent(x.q) || x.turns[i].uses > 0 && !s.Good() {
			r += 2*silentHandicap + 1
		}
		if x.turns[i].unable && x.turns[i].failed == 0 {
			r-- // it has refused a connection
		}
		if rank < 0 || r < rank {
			best, rank = i, r
		}
	}
	return best
}

// wereAsked returns the servers that were asked, a bit for each of the first 64. The caller holds mu.
func (x *Exchange) wereAsked() uint64 { return x.those(func(t *turn) bool { return t.uses > 0 }) }

// haveFailed returns the servers that have said that they cannot answer the question, a bit for each of the first 64. The caller holds mu.
func (x *Exchange) haveFailed() uint64 { return x.those(func(t *turn) bool { return t.failed > 0 }) }

// those returns the servers whose turn is as is says, a bit for each of the first 64. The caller holds mu.
func (x *Exchange) those(is func(*turn) bool) (all uint64) {
	for i := range x.turns {
		if is(&x.turns[i]) {
			all |= 1 << i
		}
	}
	return all
}

// countUse counts a query to a server. The caller holds mu.
func (x *Exchange) countUse(i int, now time.Time) {
	x.turns[i].uses++
	x.turns[i].asked = now
}

// Attempt asks one server, and if that one cannot answer, at once the next.
func (x *Exchange) Attempt(a *race.Attempt, n int) (r reply, err error) {
	k, i, use := x.attempts[n].kind, x.attempts[n].to, x.attempts[n].use
	var refused uint64 // by these servers in a row
	ctx := context.Context(a)
	if n == 0 {
		ctx = &x.first.span // which costs less to wait for
	}
	for {
		s := x.group[i]
		start := time.Now()
		x.told.asks(a, n, x.number(n), s)
		if x.conf.Trace != nil {
			x.conf.Trace.Attempt(a, x.q, s, n, k == hedge)
		}
		answer, setup, err := x.ask(ctx, n, s, use)
		if x.conf.Trace != nil {
			x.conf.Trace.Done(a, x.q, s, n, k == hedge, time.Since(start), err)
		}
		if err == nil {
			bogus := x.q.Standard() && answer.Bogus()
			s.answeredTo(x.q, bogus || x.q.Standard() && answer.Outcome == wire.Failure)
			if bogus && !s.validates(ctx) {
				answer.Outcome = wire.Failure
			}
			if !x.q.Standard() || answer.Outcome != wire.Failure {
				s.share.add(x.q, true)
				return reply{answer, s, k, setup}, nil
			}
			err = errNoAnswer
		} else if a.Err() != nil {
			// Time ran out, or another attempt won.
			if time.Since(start) >= s.lossDelay() {
				s.miss(x.q, start)
			}
			return reply{}, x.fail(n, s, err)
		} else if !localerror.Is(err) {
			s.miss(x.q, start)
		}
		var ok bool
		if i, use, ok = x.failover(n, s, answer, err); ok {
			continue
		}
		if i, use, ok = x.moveOn(n, s, err, &refused); ok {
			continue
		}
		if x.last(n) && (errors.Is(err, errLost) || Refused(err) || timedOut(err) || x.othersWait()) {
			refused = 0
			if i, use, ok = x.sendAgain(a, s, start, err); ok {
				continue
			}
		}
		if n == 0 {
			x.waitForOthers(ctx)
		}
		return reply{}, x.fail(n, s, err)
	}
}

// moveOn finds another server for attempt n, a hedge or a resend that s has refused, as those before it in the same attempt. It costs
// nothing more: what was paid for has reached nobody.
func (x *Exchange) moveOn(n int, s *Server, err error, refused *uint64) (to, use int, ok bool) {
	if n == 0 || !x.q.Standard() || !Refused(err) {
		return 0, 0, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	*refused |= 1 << slices.Index(x.group, s)
	if to = x.pickBut(*refused | x.haveFailed()); to < 0 {
		return 0, 0, false
	}
	return to, x.turnTo(n, to), true
}

// turnTo counts a query of attempt n to another server than the one before, and returns how often that one was asked. The caller holds mu.
func (x *Exchange) turnTo(n, to int) (use int) {
	now := time.Now()
	use = x.turns[to].uses
	x.countUse(to, now)
	if x.resends.attempt == n {
		x.resends.last, x.resends.lastAt = to, now
	}
	x.conf.Count.Failovers.Add(1)
	return use
}

// last reports whether attempt n is the last one, which a race has only so many of. When its query is lost, as far as anybody can
// know, or fails, the attempt goes on with another one, while the queries of the others are still waited for.
func (x *Exchange) last(n int) bool { return n == MaxHedges && x.q.Standard() }

// othersWait reports whether attempts besides the last one are under way: as long as they are, it goes on.
func (x *Exchange) othersWait() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.others > 1 || x.alone == nil
}

// patience is how long the last attempt waits for s, which it has asked then, after the last sign of its connection, as far as anybody can know now.
func (x *Exchange) patience(s *Server, sent time.Time) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return max(s.rto.timeout(x.resends.n, true), x.lastPatience(s, sent))
}

// lastPatience is how long a query that was sent to s then is waited for at least before the last attempt begins, or sends another one: no
// longer than half of the time that was left. The caller holds mu.
func (x *Exchange) lastPatience(s *Server, sent time.Time) time.Duration {
	timeout := min(x.resends.timeout, x.group[0].rto.timeout(0, len(x.group) == 1), s.rto.timeout(0, len(x.group) == 1))
	return min(lastPatience*timeout, x.end.Sub(sent)/2)
}

// ask asks s in attempt n.
func (x *Exchange) ask(ctx context.Context, n int, s *Server, use int) (*wire.Answer, time.Duration, error) {
	w := &x.ways[n]
	w.Begin()
	if !x.last(n) {
		return s.ask(ctx, x.q, use, w)
	}
	mine, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer x.whenLost(n, s, func() { cancel(errLost) })()
	return s.ask(mine, x.q, use, w)
}

// nextLook is when to look again whether a query counts as lost that is waited for so long, and that does in the time left if nothing
// changes. Only a timeout that was doubled when the query was sent becomes shorter.
func nextLook(doubled bool, waited, left time.Duration) time.Duration {
	if !doubled {
		return left
	}
	return min(left, lookAfter(waited))
}

// whenLost calls f when the query of attempt n, which is sent to s now, counts as lost, unless stop is called before.
func (x *Exchange) whenLost(n int, s *Server, f func()) (stop func()) {
	sent, doubled := time.Now(), s.rto.isDoubled()
	most := x.patience(s, sent)
	var mu sync.Mutex // guards t
	var t *time.Timer
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(nextLook(doubled, 0, most), func() {
		mu.Lock()
		defer mu.Unlock()
		if left := time.Until(x.givenUp(n, sent, min(most, x.patience(s, sent)))); left > 0 {
			t.Reset(nextLook(doubled, time.Since(sent), left))
		} else {
			f()
		}
	})
	return func() { t.Stop() }
}

// sendAgain waits until it is time for another query in place of the one to s that was sent then and ended with err, and something pays for it. It
// returns to which server that goes, and how often that one was asked before, or reports false if the attempt ends.
func (x *Exchange) sendAgain(ctx context.Context, s *Server, sent time.Time, err error) (to, use int, ok bool) {
	other, asked := x.nextBut(s)
	ended := other != nil && !errors.Is(err, errLost) && !timedOut(err) // nothing more is to come from s
	if ended {
		s, sent = other, asked
	}
	most, doubled := x.patience(s, sent), s.rto.isDoubled() // not by this query
	if !ended && !s.AnsweredSince(sent) {
		s.rto.backOff(sent, time.Now())
	}
	for {
		pause := nextLook(doubled, time.Since(sent), time.Until(sent.Add(min(most, x.patience(s, sent)))))
		if pause <= 0 {
			if to, use, ok = x.payAgain(); ok {
				return to, use, true
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

// nextBut returns the server that is asked next if it is not s, and when it was asked last; nil if there is none.
func (x *Exchange) nextBut(s *Server) (other *Server, asked time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := x.pickBut(1<<slices.Index(x.group, s) | x.haveFailed())
	if i < 0 {
		return nil, asked
	}
	return x.group[i], x.turns[i].asked
}

// payAgain counts another resend by the last attempt, if something pays for it.
func (x *Exchange) payAgain() (to, use int, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	to = x.pick()
	s := x.group[to]
	if !s.payResend(x.q, false) {
		return 0, 0, false
	}
	use = x.turns[to].uses
	x.countUse(to, time.Now())
	x.resends.n++
	x.conf.Count.Resends.Add(1)
	return to, use, true
}

// timedOut reports whether a connection was not opened in time.
func timedOut(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// fail returns the error of attempt n, which is about s.
func (x *Exchange) fail(n int, s *Server, err error) error {
	if n == 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.failed = s
	}
	return err
}

// failover keeps the response of a server that could not answer, and finds another
// server that has not been asked. Asking that one costs no budget, unless a server has
// said that it cannot answer and this one is known to be silent, or two have said so:
// what fails everywhere must not be asked everywhere. Who closes or refuses a connection
// has said nothing, and a silent server may be all that is left. SERVFAIL is what a
// zone's own failure looks like, and so three servers are enough (RFC 9520 §3.1).
func (x *Exchange) failover(n int, from *Server, a *wire.Answer, err error) (to, use int, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.refused = x.refused || Refused(err)
	before := x.keepFailure(from, a, err)
	if !x.q.Standard() && !Unsent(err) {
		return 0, 0, false
	}
	i := x.pickBut(x.wereAsked())
	switch {
	case i < 0 || x.turns[i].uses > 0:
		return x.passOn(n, before)
	case x.servfails >= maxServfails:
		return 0, 0, false
	case (x.failures > 0 && x.group[i].Silent() || x.failures > 1) && !x.group[i].purse.payFailover():
		return 0, 0, false
	}
	return i, x.turnTo(n, i), true
}

// keepFailure keeps what a server said if that is that it cannot answer, and returns how often it had said so before. The caller holds mu.
func (x *Exchange) keepFailure(from *Server, a *wire.Answer, err error) (before int) {
	t := &x.turns[slices.Index(x.group, from)]
	said := a != nil || transport.OnlyCut(err)
	if (said || Refused(err)) && !t.unable {
		t.unable = true
		x.unable++
	}
	if !said {
		return 0
	}
	before = t.failed
	t.failed++
	if a == nil {
		return before
	}
	if before == 0 {
		x.failures++
		if a.Rcode() == dns.RcodeServerFailure {
			x.servfails++
		}
	}
	if x.failure == nil || from.Decides(a) && !x.failureFrom.Decides(x.failure) {
		x.failure, x.failureFrom = a, from
	}
	return before
}

// passOn finds a server for attempt n, a hedge or a resend that went to a server that had failed before, and has failed again: one that has not, or
// the attempt was for nothing. The caller holds mu.
func (x *Exchange) passOn(n, before int) (to, use int, ok bool) {
	if before == 0 || n == 0 {
		return 0, 0, false
	}
	if to = x.pickBut(x.haveFailed()); to < 0 || !x.group[to].payResend(x.q, false) {
		return 0, 0, false
	}
	return to, x.turnTo(n, to), true
}

// Discard does nothing, because a reply holds nothing that must be released.
func (x *Exchange) Discard(reply, error) {}
