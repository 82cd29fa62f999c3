package dnshedge

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/race"
)

const (
	maxColdHedges = 4 // to a single server of which nothing is known: they may all be useless

	// maxTimerLag is how late the timer of a hedge may fire.
	maxTimerLag = 3 * time.Millisecond

	// silentHandicap is how many queries more the other servers get than a silent one.
	silentHandicap = transport.MaxDatagrams
)

// resends are when a query that is still unanswered is sent again, hedged or not,
// as every client of a lossy transport must do.
var resends = [...]time.Duration{time.Second, 2 * time.Second, 4 * time.Second}

// errNoAnswer is an attempt's error if servers responded, but with failures.
var errNoAnswer = errors.New("dnshedge: no server answered the question")

// exchange is one question on its way through a group of equivalent servers.
type exchange struct {
	c     *core
	q     *wire.Query
	group []*upstreamState // in the order of preference
	start time.Time
	cold  bool // the delays are guesses
	call  engine.Call
	key   *engine.Key // of the primary's server; nil if nothing is learned

	steps  [race.MaxHedges + len(resends)]step
	delays []time.Duration // of the steps

	mu          sync.Mutex // guards the fields below
	kinds       [1 + race.MaxHedges]kind
	tries       int            // attempts admitted, the primary included
	uses        []int          // queries, by server
	asked       []time.Time    // when each server was asked last
	failure     *wire.Answer   // the first response that was a failure
	failureFrom *upstreamState // its server

	told *told // nil: there are no observers
}

// kind is why an attempt is made.
type kind int8

const (
	primary kind = iota
	hedged
	resent
)

// step is an attempt that is made when its delay has passed without an answer.
type step struct {
	kind kind
	n    int // of its kind, from 0
}

var (
	_ race.Op[result] = (*exchange)(nil)
	_ race.Gate       = (*exchange)(nil)
)

// ask puts a question to a group of equivalent servers, hedged. The result is ready
// to be shared. It is what the servers said, even if that is a failure, or an error
// if they said nothing.
func (c *core) ask(ctx context.Context, q *wire.Query, group []*upstreamState) result {
	x := &exchange{c: c, q: q, group: group, uses: make([]int, len(group)), asked: make([]time.Time, len(group)), tries: 1, told: c.tell(ctx)}
	x.plan(ctx)
	var run race.Race[result]
	out := run.Run(ctx, x, x, x.delays, race.Style{Watch: x.watch()})
	r, err := out.Value, out.Err
	answered := err == nil
	x.end(out.Winner, &r)
	switch {
	case answered && r.kind == hedged:
		c.count.hedgeWins.Add(1)
		r.from.hedgeWins.Add(1)
	case answered && r.kind == resent:
		c.count.resendWins.Add(1)
	case !answered:
		r = result{from: group[0]}
		x.mu.Lock()
		if x.failure != nil {
			r.answer, r.from, err = x.failure, x.failureFrom, nil
		}
		x.mu.Unlock()
	}
	r.tries = out.Started
	if err == nil {
		var limits *wire.TTLLimits
		if q.Standard() && c.conf.Cache != nil {
			limits = c.conf.Cache.limits()
		}
		r.keep, err = r.answer.Seal(limits)
	}
	if err != nil {
		c.count.failures.Add(1)
		r.answer, r.err = nil, r.from.fail(q, err)
	}
	return r
}

// plan decides when attempts besides the primary are due.
func (x *exchange) plan(ctx context.Context) {
	x.start = time.Now()
	if !x.q.Standard() {
		x.unhedged(engine.Method) // not known to be safe to repeat
		return
	}
	first := x.group[0]
	h := &x.c.conf.Hedge
	var setup time.Duration
	if !first.transport.Ready() {
		setup = first.setupTime()
	}
	x.c.bucket.Earn()
	first.bucket.Earn()
	var due [race.MaxHedges]time.Duration
	n := 0
	asked := engine.OverridesFrom(ctx)
	switch {
	case x.c.isOff() || asked.Never:
		x.unhedged(engine.Disabled)
	case asked.Hedge > 0:
		x.unhedged(engine.Nested)
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
	x.due(due[:n])
	x.delays = make([]time.Duration, 0, len(x.steps))
	for i, j := 0, 0; i < n || j < len(resends); {
		s, at := step{hedged, i}, time.Duration(0)
		if i < n && (j == len(resends) || due[i] <= resends[j]+setup) {
			at = due[i]
			i++
		} else {
			s, at = step{resent, j}, resends[j]+setup
			j++
		}
		x.steps[len(x.delays)] = s
		x.delays = append(x.delays, at)
	}
}

// Admit decides whether step n, a hedge or a resend, starts. A hedge needs the
// budget, and so does a resend to a silent server: an outage must not double the
// load.
func (x *exchange) Admit(n int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tries > race.MaxHedges {
		return false
	}
	s := x.steps[n]
	to := x.group[x.pick()]
	if late := time.Since(x.start) - x.delays[n]; s.kind == hedged && late > maxTimerLag {
		// This process or machine was slow, not the network: the answer may be waiting
		// to be read. If it is not, the next step hedges.
		x.deny(engine.NotReady)
		return false
	}
	switch {
	case s.kind == resent:
		if s.n == 0 {
			x.countMisses()
		}
		if to.silent.Load() && !x.c.spend() {
			return false
		}
		x.c.count.resends.Add(1)
	case x.key == nil && x.c.shadow:
		x.deny(engine.Shadow)
		return false
	case x.key == nil: // a fixed delay
		x.c.count.hedges.Add(1)
		to.hedges.Add(1)
	case x.cold && len(x.group) == 1 && x.group[0].lateHedges.Load() >= maxColdHedges:
		x.deny(engine.Warming)
		return false
	default:
		if !x.c.admit(&x.call, s.n, x.group[0]) {
			return false
		}
		x.group[0].lateHedges.Add(1)
		to.hedges.Add(1)
	}
	x.kinds[x.tries] = s.kind
	x.tries++
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
func (x *exchange) countMisses() {
	now := time.Now()
	for i, s := range x.group {
		if x.uses[i] > 0 && now.Sub(x.asked[i]) >= s.lossDelay() {
			s.missed(x.asked[i])
		}
	}
}

// pick chooses the server for another attempt: the first of those asked least. A
// silent server counts as asked silentHandicap times more than it was, and comes
// last among equals. The caller holds mu.
func (x *exchange) pick() int {
	best, rank := 0, -1
	for i, s := range x.group {
		r := 2 * x.uses[i]
		if s.silent.Load() {
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
func (x *exchange) Attempt(a *race.Attempt, n int) (result, error) {
	x.mu.Lock()
	k := x.kinds[n]
	i := 0
	if n > 0 {
		i = x.pick()
	}
	use := x.uses[i]
	x.countUse(i)
	x.mu.Unlock()
	for {
		s := x.group[i]
		start := time.Now()
		x.asks(a, n, s)
		x.c.traceAttempt(a, x.q, s, n, k)
		answer, setup, err := s.exchange(a, x.q, use)
		x.c.traceDone(a, x.q, s, n, k, time.Since(start), err)
		if err == nil {
			s.endSilence()
			if !x.q.Standard() || answer.Outcome != wire.Failure {
				return result{answer: answer, setup: setup, from: s, kind: k}, nil
			}
			err = errNoAnswer
		} else if a.Err() != nil {
			// Time ran out, or another attempt won.
			if time.Since(start) >= s.lossDelay() {
				s.missed(start)
			}
			return result{}, err
		} else {
			s.missed(start)
		}
		var ok bool
		if i, ok = x.failover(s, answer); !ok {
			return result{}, err
		}
		use = 0
	}
}

// failover keeps the response of a server that could not answer, and finds another
// server that has not been asked. Asking that one costs no budget, because it
// replaces a query and adds none, unless the server is known to be silent.
func (x *exchange) failover(from *upstreamState, a *wire.Answer) (int, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failure == nil && a != nil {
		x.failure, x.failureFrom = a, from
	}
	i := x.pick()
	if !x.q.Standard() || x.uses[i] > 0 || x.group[i].silent.Load() && !x.c.spend() {
		return 0, false
	}
	x.countUse(i)
	x.c.count.failovers.Add(1)
	return i, true
}

// Discard does nothing, because a result holds nothing that must be released.
func (x *exchange) Discard(result, error) {}

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
	if c.bucket.Tokens() < 1 || s.bucket.Tokens() < 1 {
		denial = engine.Budget
	}
	call.Denied = engine.None
	admitted := call.AdmitUnless(n, denial)
	if admitted || call.Denied == engine.Shadow {
		for _, b := range [...]*engine.Bucket{c.bucket, s.bucket} {
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
// trip times, roughly, and if those are alike, as they were given. Silent servers
// come last, and the one asked least recently is first among them: when all are
// silent they take turns, and callers' own queries find out which is back. If
// explore, no caller waits, and any server may come first.
func order(group []*upstreamState, now time.Time, explore bool) []*upstreamState {
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
		all[i] = ranked{s: s, rank: s.rank(now)}
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

// allSilent reports whether every server is silent.
func allSilent(group []*upstreamState) bool {
	return !slices.ContainsFunc(group, func(s *upstreamState) bool { return !s.silent.Load() })
}
