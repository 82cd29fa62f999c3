package dnshedge

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/engine"
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

	// lastPatience is how many timeouts the last attempt waits at least: it is for a
	// network that was gone for a moment, in which hedges have used up the others.
	lastPatience = 4

	maxServfails = 3 // servers that are asked until SERVFAIL is believed

	// silentHandicap is how many queries more the other servers get than a silent one.
	silentHandicap = transport.MaxDatagrams
)

// resendChecks are when an exchange looks whether its last query's retransmission
// timeout has passed, in fourths of the timeout that held when the exchange began. It
// doubles after each resend, and while the server is silent.
var resendChecks = [...]time.Duration{4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128}

// errNoAnswer is an attempt's error if servers responded, but with failures.
var errNoAnswer = errors.New("dnshedge: no server answered the question")

// exchange is one question on its way through a group of equivalent servers.
type exchange struct {
	c     *core
	told  *told // nil: there are no observers
	q     *wire.Query
	group []*upstreamState // in the order of preference
	start time.Time
	cold  bool // the delays are guesses
	call  engine.Call
	key   *engine.Key // of the primary's server; nil if nothing is learned

	setup   time.Duration   // of the primary's connection
	timeout time.Duration   // of the primary's server
	steps   []step          // what may be done
	delays  []time.Duration // when, since start

	mu          sync.Mutex // guards the fields below
	kinds       [1 + race.MaxHedges]kind
	tries       int         // attempts admitted, the primary included
	resends     int         // of those
	uses        []int       // queries, by server
	asked       []time.Time // when each server was asked last
	last        int         // the server that the last query went to, the primary or a resend
	lastAt      time.Time   // when that was
	fired       time.Time   // when the last step was due; zero: none was
	firedDelay  time.Duration
	deferred    int            // the step that waits for its second look, from 1; 0: none
	late        bool           // a step was deferred
	failures    int            // responses that were failures
	failure     *wire.Answer   // the first of them
	failureFrom *upstreamState // its server
	failed      *upstreamState // the server that the primary's error is about

	// What else an exchange needs, in one piece of memory.
	race  race.Race[*result]
	first struct { // the primary
		race.Attempt
		own    race.Own
		span   transport.Span
		result result
	}
	room struct { // for the slices above
		steps  [maxSteps]step
		delays [maxSteps]time.Duration
		uses   [usualServers]int
		asked  [usualServers]time.Time
	}
}

const (
	maxSteps     = 2*race.MaxHedges + 1 + len(resendChecks)
	usualServers = 2 // of a group
)

// kind is why an attempt is made.
type kind int8

const (
	primary kind = iota
	hedged
	resent
)

// step is an attempt that may be made when its delay has passed without an answer.
type step struct {
	kind kind
	n    int8 // of its kind, from 0
	look bool // only if the step before was deferred
}

var (
	_ race.Op[*result] = (*exchange)(nil)
	_ race.Gate        = (*exchange)(nil)
)

// ask puts a question to a group of equivalent servers, hedged. The result is ready
// to be shared. It is what the servers said, even if that is a failure, or an error
// if they said nothing.
func (c *core) ask(ctx context.Context, q *wire.Query, group []*upstreamState) *result {
	x := &exchange{c: c, q: q, group: group, tries: 1}
	if n := len(group); n <= usualServers {
		x.uses, x.asked = x.room.uses[:n], x.room.asked[:n]
	} else {
		x.uses, x.asked = make([]int, n), make([]time.Time, n)
	}
	x.plan(ctx)
	span := &x.first.span
	span.Begin(ctx, 0)
	defer span.Cancel()
	x.first.Adopt(&x.first.own, span, span.End, nil)
	out := x.race.Run(ctx, x, x, x.delays, race.Style{Watch: x.watch(), Primary: &x.first.Attempt})
	r, err := out.Value, out.Err
	answered := err == nil
	if !answered {
		r = new(result)
	}
	x.end(out.Winner, r)
	switch {
	case answered && r.kind == hedged:
		c.count.hedgeWins.Add(1)
		r.from.hedgeWins.Add(1)
	case answered && r.kind == resent:
		c.count.resendWins.Add(1)
	case !answered:
		x.mu.Lock()
		r.from = cmp.Or(x.failed, group[0])
		if x.failure != nil {
			r.answer, r.from, err = x.failure, x.failureFrom, nil
		}
		x.mu.Unlock()
	}
	r.tries = out.Started
	if err == nil {
		err = c.seal(q, r)
	}
	if err != nil {
		c.count.failures.Add(1)
		r.answer, r.err = nil, r.from.fail(q, err)
	}
	return r
}

// seal makes the answer ready to be shared.
func (c *core) seal(q *wire.Query, r *result) error {
	if f := c.conf.RebindFilter; f != nil && q.Standard() && !c.routed(q) {
		if err := f.apply(q, r.answer); err != nil {
			return err
		}
	}
	var limits *wire.TTLLimits
	if q.Standard() && c.conf.Cache != nil {
		limits = c.conf.Cache.limits()
	}
	r.keep = r.answer.Limit(limits)
	return nil
}

// plan decides when attempts besides the primary are due.
func (x *exchange) plan(ctx context.Context) {
	x.start, x.told = time.Now(), x.c.tell(ctx)
	if !x.q.Standard() {
		x.tellDenied(observe.DeniedMethod) // not known to be safe to repeat
		return
	}
	first := x.group[0]
	h := &x.c.conf.Hedge
	var setup time.Duration
	if !first.ready() {
		setup = first.setupTime()
	}
	x.c.bucket.Earn()
	first.bucket.Earn()
	var due [race.MaxHedges]time.Duration
	n := 0
	refused := engine.OverridesFrom(ctx).Refuses(engine.Facts{SwitchedOff: x.c.isOff()})
	switch {
	case refused != engine.None:
		x.tellDenied(refused)
	case h.Fixed > 0:
		due[0], n = h.Fixed, 1
	default:
		x.key = first.key
		x.call.Begin(ctx, x.key, 0)
		x.cold = first.slow.Load() == 0
		loss := first.lossDelay()
		due[0] = max(first.slowDelay(), loss) + setup
		// The second hedge starts when the first one is probably lost as well, and the
		// third waits twice as long.
		for n = 1; n < cmp.Or(h.MaxHedges, defaultHedges); n++ {
			due[n] = due[n-1] + loss<<(n-1)
		}
	}
	x.setup, x.timeout = setup, first.rto.timeout(0, len(x.group) == 1)
	x.schedule(due[:n], x.timeLeft(ctx))
}

// timeLeft is how long the exchange may last.
func (x *exchange) timeLeft(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return end.Sub(x.start)
	}
	return x.c.timeout()
}

// schedule makes the steps: hedges at the times that are due, resends from the
// timeout on, and after the first of each a second look.
func (x *exchange) schedule(due []time.Duration, left time.Duration) {
	add := func(at time.Duration, s step) {
		if at >= left {
			return
		}
		i := len(x.delays)
		for i > 0 && x.delays[i-1] > at {
			i--
		}
		x.delays, x.steps = slices.Insert(x.delays, i, at), slices.Insert(x.steps, i, s)
	}
	x.delays, x.steps = x.room.delays[:0], x.room.steps[:0]
	for i, fourths := range resendChecks {
		at := x.setup + fourths*x.timeout/4
		add(at, step{kind: resent, n: int8(i)})
		if i == 0 {
			add(at+lookAgain, step{kind: resent, look: true})
		}
	}
	for i, at := range due {
		add(at, step{kind: hedged, n: int8(i)})
		add(at+lookAgain, step{kind: hedged, n: int8(i), look: true})
	}
	x.due(due)
}

// Admit decides whether step n, a hedge or a resend, starts.
func (x *exchange) Admit(n int) bool {
	now := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tries > race.MaxHedges || x.deferrable(n, now) {
		return false
	}
	s := x.steps[n]
	if s.kind == resent && !x.timedOut(now) {
		return false
	}
	to := x.group[x.pick()]
	switch {
	case s.kind == resent:
		paid := x.payResend(to)
		x.countMisses(now) // which may make it silent
		if !paid {
			return false
		}
		x.resends++
		x.c.count.resends.Add(1)
	case x.key == nil && x.c.shadow:
		x.deny(observe.DeniedShadow)
		return false
	case x.key == nil: // a fixed delay
		x.c.count.hedges.Add(1)
		to.hedges.Add(1)
	case x.cold && len(x.group) == 1 && x.group[0].lateHedges.Load() >= maxColdHedges:
		x.deny(observe.DeniedWarming)
		return false
	default:
		if !x.c.admit(&x.call, int(s.n), x.group[0]) {
			return false
		}
		x.group[0].lateHedges.Add(1)
		to.hedges.Add(1)
	}
	x.kinds[x.tries] = s.kind
	x.tries++
	return true
}

// payResend reports whether a resend may go to the server. The first one of a question
// is paid for by the answers that the server has given. Others need the budget, or
// answers in plenty: then it is packets that are lost, and not a server that is
// overloaded. A silent server is sent nothing but for the budget: an outage must not
// double the load. The caller holds mu.
func (x *exchange) payResend(to *upstreamState) bool {
	silent := to.silent.Load()
	return x.resends == 0 && !silent && to.resends.Spend() || x.c.spend() ||
		!silent && to.resends.Tokens() >= budgetBurst/2 && to.resends.Spend()
}

// deferrable reports whether step n must not start now: because it is late for the
// first time in this exchange and has its second look ahead, or is a second look
// and the step before it was not deferred. The caller holds mu.
func (x *exchange) deferrable(n int, now time.Time) bool {
	began := x.fired
	if began.IsZero() {
		began = x.start
	}
	lag := now.Sub(began) - (x.delays[n] - x.firedDelay)
	x.fired, x.firedDelay = now, x.delays[n]
	s := x.steps[n]
	if s.look {
		s.look = false
		was := x.deferred > 0 && x.steps[x.deferred-1] == s
		x.deferred = 0
		return !was
	}
	if lag > maxTimerLag && !x.late {
		x.late, x.deferred = true, n+1
		return true
	}
	return false
}

// timedOut reports whether the last query is lost, as far as anybody can know: its
// server's retransmission timeout has passed, doubled for each resend. A stream
// loses nothing while it carries other answers. The caller holds mu.
func (x *exchange) timedOut(now time.Time) bool {
	s := x.group[x.last]
	to := x.group[x.pick()]
	wait := s.rto.timeout(x.resends, to == s || to.silent.Load())
	if x.tries == race.MaxHedges {
		wait = max(wait, lastPatience*x.timeout)
	}
	if x.resends == 0 {
		wait += x.setup
	}
	switch {
	case x.lastAt.IsZero(), now.Sub(x.lastAt) < wait-wait/16:
		return false
	case s.stream && s.answeredSince(x.lastAt):
		return false
	}
	for i, s := range x.group {
		if x.asked[i].After(x.lastAt) && now.Sub(x.asked[i]) < s.lossDelay() {
			return false // a hedge is under way
		}
	}
	if !s.answeredSince(x.lastAt) {
		s.rto.backOff(x.lastAt, now)
	}
	return true
}

// Ended says that attempt n, a hedge or a resend, has ended.
func (x *exchange) Ended(n int) {
	if x.kinds[n] == hedged && x.key != nil {
		x.call.Ended(n)
	}
}

// countMisses counts a miss of each server that has not answered in time. The
// caller holds mu.
func (x *exchange) countMisses(now time.Time) {
	for i, s := range x.group {
		if x.uses[i] > 0 && now.Sub(x.asked[i]) >= s.lossDelay() {
			s.missed(x.asked[i])
		}
	}
}

// pick chooses the server for another attempt: the first of those asked least. A
// doubtful server counts as asked silentHandicap times more than it was, and comes
// last among equals. The caller holds mu.
func (x *exchange) pick() int {
	best, rank := 0, -1
	for i, s := range x.group {
		r := 2 * x.uses[i]
		if s.doubtful() {
			r += 2*silentHandicap + 1
		}
		if rank < 0 || r < rank {
			best, rank = i, r
		}
	}
	return best
}

// countUse counts a query to a server. The caller holds mu.
func (x *exchange) countUse(i int) {
	x.uses[i]++
	x.asked[i] = time.Now()
}

// Attempt asks one server, and if that one cannot answer, at once the next.
func (x *exchange) Attempt(a *race.Attempt, n int) (*result, error) {
	x.mu.Lock()
	k := x.kinds[n]
	i := 0
	if n > 0 {
		i = x.pick()
	}
	use := x.uses[i]
	x.countUse(i)
	if k != hedged {
		x.last, x.lastAt = i, x.asked[i]
	}
	x.mu.Unlock()
	ctx := context.Context(a)
	if n == 0 {
		ctx = &x.first.span // which costs less to wait for
	}
	for {
		s := x.group[i]
		start := time.Now()
		x.asks(a, n, s)
		x.c.traceAttempt(a, x.q, s, n, k)
		answer, setup, err := s.exchange(ctx, x.q, use)
		x.c.traceDone(a, x.q, s, n, k, time.Since(start), err)
		if err == nil {
			failure := x.q.Standard() && answer.Outcome == wire.Failure
			s.responded(failure)
			if !failure {
				r := &x.first.result
				if n > 0 {
					r = new(result)
				}
				r.answer, r.setup, r.from, r.kind = answer, setup, s, k
				return r, nil
			}
			err = errNoAnswer
		} else if a.Err() != nil {
			// Time ran out, or another attempt won.
			if time.Since(start) >= s.lossDelay() {
				s.missed(start)
			}
			return nil, x.fail(n, s, err)
		} else if !ours(err) {
			s.missed(start)
		}
		var ok bool
		if i, ok = x.failover(s, answer); !ok {
			return nil, x.fail(n, s, err)
		}
		use = 0
	}
}

// ours reports whether an error is this process's or machine's, and says nothing about the
// server.
func ours(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS)
}

// fail returns the error of attempt n, which is about s.
func (x *exchange) fail(n int, s *upstreamState, err error) error {
	if n == 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.failed = s
	}
	return err
}

// failover keeps the response of a server that could not answer, and finds another
// server that has not been asked. Asking that one costs no budget, unless it is known
// to be silent, or two servers have failed already: what fails everywhere must not be
// asked everywhere. SERVFAIL is what a zone's own failure looks like, and so three
// servers are enough (RFC 9520 §3.1).
func (x *exchange) failover(from *upstreamState, a *wire.Answer) (int, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if a != nil {
		x.failures++
		if x.failure == nil {
			x.failure, x.failureFrom = a, from
		}
	}
	i := x.pick()
	switch {
	case !x.q.Standard() || x.uses[i] > 0:
		return 0, false
	case a != nil && a.Rcode() == dns.RcodeServerFailure && x.failures >= maxServfails:
		return 0, false
	case (x.group[i].silent.Load() || x.failures > 1) && !x.c.spend():
		return 0, false
	}
	x.countUse(i)
	x.c.count.failovers.Add(1)
	return i, true
}

// Discard does nothing, because a result holds nothing that must be released.
func (x *exchange) Discard(*result, error) {}

// spend takes a token from the Client's bucket.
func (c *core) spend() bool {
	c.spending.Lock()
	defer c.spending.Unlock()
	return c.bucket.Spend()
}

// admit asks the Client's bucket and the server's for one hedge.
func (c *core) admit(call *engine.Call, n int, s *upstreamState) bool {
	c.spending.Lock()
	defer c.spending.Unlock()
	denial := engine.None
	if !c.bucket.Pays() || !s.bucket.Pays() {
		denial = observe.DeniedBudget
	}
	call.Denied = engine.None
	admitted := call.AdmitUnless(n, denial)
	if admitted || call.Denied == observe.DeniedShadow {
		for _, b := range [...]*budget.Bucket{c.bucket, s.bucket} {
			b.Spend()
			b.Earn() // because it is a query as well
		}
	}
	if !admitted {
		c.count.denied.Add(1)
		return false
	}
	c.count.hedges.Add(1)
	return true
}

// order returns the servers in the order of preference: by their smoothed round
// trip times, roughly, and if those are alike, as they were given. Doubtful servers
// come last, and the one asked least recently is first among them: when all are
// doubtful they take turns, and callers' own queries find out which is back. If
// explore, no caller waits, and any server may come first.
func order(group []*upstreamState, explore bool) []*upstreamState {
	if len(group) < 2 {
		return group
	}
	type ranked struct {
		s    *upstreamState
		rank int
		used int64
	}
	all := make([]ranked, len(group))
	for i, s := range group {
		all[i] = ranked{s: s, rank: s.rank()}
		if all[i].rank == lastRank {
			all[i].used = s.used.Load()
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Or(a.rank-b.rank, cmp.Compare(a.used, b.used)) })
	out := make([]*upstreamState, len(group))
	for i, r := range all {
		out[i] = r.s
	}
	if explore {
		n := rand.IntN(len(out))
		out[0], out[n] = out[n], out[0]
	}
	return out
}

// inOrder returns the servers as they were given, but those that are down last.
func inOrder(group []*upstreamState) []*upstreamState {
	out := slices.Clone(group)
	slices.SortStableFunc(out, func(a, b *upstreamState) int { return compareBool(a.down.Load(), b.down.Load()) })
	return out
}

// compareBool puts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// all reports whether something is true of every server.
func all(group []*upstreamState, f func(*upstreamState) bool) bool {
	return !slices.ContainsFunc(group, func(s *upstreamState) bool { return !f(s) })
}

func isSilent(s *upstreamState) bool { return s.silent.Load() }
func isDown(s *upstreamState) bool   { return s.down.Load() }
