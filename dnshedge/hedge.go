package dnshedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/race"
)

const (
	defaultPercentile = 0.90
	defaultHedges     = 2
	defaultBudget     = 5 // percent
	defaultMinDelay   = 10 * time.Millisecond
	loopbackMinDelay  = 2 * time.Millisecond
	defaultMaxDelay   = 2 * time.Second

	coldDelay   = 100 * time.Millisecond // before anything is learned
	coldSetup   = 200 * time.Millisecond // more, if there is a handshake to do first
	maxLoss     = 500 * time.Millisecond // the longest loss delay
	budgetBurst = 20                     // hedges that may be saved up

	coldHedges = 4 // of a single server of which nothing is known: they may all be of no use

	stalled = 3 * time.Millisecond // that a timer may strike late

	// planned is how much more than the budget the slow delay may cost: a window
	// of some hundred answers cannot tell 5 % from 6 %, and a delay that flees from
	// every cluster of losses does nothing about them. The buckets keep to the budget.
	planned = 1.5

	// maxDatagrams is how often one question is sent to one server over UDP before
	// the next goes over TCP (RFC 9520 §3.1).
	maxDatagrams = 3
)

// resends are when a query that is still unanswered is sent again, hedged or
// not: what every client of a lossy transport must do.
var resends = [...]time.Duration{time.Second, 2 * time.Second, 4 * time.Second}

// Hedge says when a query is sent a second time although the first may still be
// answered. The zero value is what most should use.
//
// Two delays are learned for each upstream. The loss delay is how long an
// answer takes that the server had at hand, plus a margin: who waits longer has
// probably lost a packet. The slow delay is when so few answers are still to
// come that hedging them all fits the budget. A hedge starts at the later of
// both: earlier it would be of no use, or could not be paid.
//
// What is asked for a hedge of package hedge, or under hedge.WithoutHedging, is not
// hedged, unless a Cache asks it for all.
type Hedge struct {
	// Off turns hedging off. Queries are still sent again after a second.
	Off bool

	// Fixed hedges once after this time, whatever it costs. It is there to be
	// compared with. Zero: learn.
	Fixed time.Duration

	// Percentile of the answers, in [0, 1), before which nothing is hedged.
	// Zero: 0.90.
	Percentile float64

	// MaxHedges is how many hedges one question may have, at most 3. Zero: 2.
	MaxHedges int

	// BudgetPercent bounds the hedges to this share of all queries on the wire, plus
	// a burst of twenty, for each upstream and for the whole Client. Zero: 5. At most
	// 100.
	BudgetPercent float64

	// MaxHedgesPerSecond bounds them absolutely, for servers that bill by the query.
	// Zero: no bound.
	MaxHedgesPerSecond float64

	// MinDelay is the shortest delay. Zero: 10 ms, and 2 ms for servers on this machine.
	MinDelay time.Duration

	// MaxDelay is the longest. Zero: 2 s.
	MaxDelay time.Duration
}

func (h *Hedge) validate() error {
	bad := func(field string, v any, want string) error {
		return fmt.Errorf("dnshedge: Hedge.%s is %v; want %s", field, v, want)
	}
	switch {
	case h.Fixed < 0:
		return bad("Fixed", h.Fixed, "0 or more")
	case !(h.Percentile >= 0 && h.Percentile < 1):
		return bad("Percentile", h.Percentile, "0 or more and less than 1")
	case h.MaxHedges < 0 || h.MaxHedges > race.MaxHedges:
		return bad("MaxHedges", h.MaxHedges, "0 to 3")
	case !(h.BudgetPercent >= 0 && h.BudgetPercent <= 100):
		return bad("BudgetPercent", h.BudgetPercent, "0 to 100")
	case !(h.MaxHedgesPerSecond >= 0):
		return bad("MaxHedgesPerSecond", h.MaxHedgesPerSecond, "0 or more")
	case h.MinDelay < 0:
		return bad("MinDelay", h.MinDelay, "0 or more")
	case h.MaxDelay < 0 || h.MaxDelay > 0 && h.MaxDelay < h.MinDelay:
		return bad("MaxDelay", h.MaxDelay, "0, or MinDelay or more")
	}
	return nil
}

func (h *Hedge) share() float64 { return cmp.Or(h.BudgetPercent, defaultBudget) / 100 }

func (h *Hedge) engine() engine.Config {
	share := planned * h.share() // what is stricter, the server's bucket sees to
	return engine.Config{
		Percentile:   cmp.Or(h.Percentile, defaultPercentile),
		MaxHedges:    1, // the delays are the servers' own
		Share:        share,
		EstimatedRPS: budgetBurst / share,
		Burst:        time.Second,
		MinDelay:     cmp.Or(h.MinDelay, loopbackMinDelay),
		InitialDelay: coldDelay,
		MaxPerSecond: h.MaxHedgesPerSecond,
		MaxKeys:      4 * maxServers,
	}
}

// kind is why an attempt is made.
type kind int8

const (
	primary kind = iota
	hedged
	resent
)

// won is what an attempt that succeeds returns.
type won struct {
	reply
	from *server
	kind kind
}

// errSoft is an attempt's error if the servers answered, but not the question.
var errSoft = errors.New("dnshedge: no server answered the question")

// exchange is one question on its way through a group of equivalent servers.
type exchange struct {
	c     *core
	q     *query
	group []*server // in the order of preference
	start time.Time
	cold  bool // the delays are guesses
	call  engine.Call
	key   *engine.Key // of the primary's server; nil if nothing is learned

	stages [race.MaxHedges + len(resends)]stage
	delays []time.Duration

	mu    sync.Mutex // guards the fields below
	kinds [1 + race.MaxHedges]kind
	tries int         // attempts admitted, the primary included
	uses  []int       // queries by server
	asked []time.Time // when each was asked last
	soft  *answer
	from  *server // soft's
}

type stage struct {
	kind kind
	n    int // of its kind
}

var (
	_ race.Op[won] = (*exchange)(nil)
	_ race.Gate    = (*exchange)(nil)
)

// ask puts a question to a group of equivalent servers, hedged. It returns what
// the servers said, even if that is a failure, or an error if they said nothing.
func (c *core) ask(ctx context.Context, q *query, group []*server) (w won, tries int, err error) {
	x := &exchange{c: c, q: q, group: group, uses: make([]int, len(group)), asked: make([]time.Time, len(group)), tries: 1}
	x.plan(ctx)
	var r race.Race[won]
	out := r.Run(ctx, x, x, x.delays, race.Style{})
	answered := out.Err == nil
	if x.key != nil {
		x.call.End(answered, answered && out.Value.kind == hedged, out.Value.setup)
	}
	if answered {
		switch out.Value.kind {
		case hedged:
			c.count.hedgeWins.Add(1)
			out.Value.from.wins.Add(1)
		case resent:
			c.count.resendWins.Add(1)
		}
		return out.Value, out.Started, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.soft != nil {
		return won{reply: reply{answer: x.soft}, from: x.from}, out.Started, nil
	}
	return won{from: group[0]}, out.Started, out.Err
}

// plan decides when attempts besides the primary are due.
func (x *exchange) plan(ctx context.Context) {
	if x.q.raw != nil {
		return // not known to be safe to repeat
	}
	x.start = time.Now()
	first := x.group[0]
	h := &x.c.conf.Hedge
	var setup time.Duration
	if !first.transport.ready() {
		setup = first.setupTime()
	}
	x.c.bucket.Earn()
	first.bucket.Earn()
	var due [race.MaxHedges]time.Duration
	n := 0
	asked := engine.OverridesFrom(ctx)
	switch {
	case h.Off || asked.Never || asked.Hedge > 0:
	case h.Fixed > 0:
		due[0], n = h.Fixed, 1
	default:
		x.key = first.key
		x.call.Begin(ctx, x.key, 0)
		x.cold = first.slow.Load() == 0
		loss := first.lossDelay()
		due[0] = max(first.slowDelay(), loss) + setup
		// A hedge is given as long as it takes to tell that it is lost as well, and
		// the next twice that.
		for n = 1; n < cmp.Or(h.MaxHedges, defaultHedges); n++ {
			due[n] = due[n-1] + loss<<(n-1)
		}
	}
	x.delays = make([]time.Duration, 0, len(x.stages))
	for i, j := 0, 0; i < n || j < len(resends); {
		s, at := stage{hedged, i}, time.Duration(0)
		if i < n && (j == len(resends) || due[i] <= resends[j]+setup) {
			at = due[i]
			i++
		} else {
			s, at = stage{resent, j}, resends[j]+setup
			j++
		}
		x.stages[len(x.delays)] = s
		x.delays = append(x.delays, at)
	}
}

// Admit decides whether a hedge or a resend starts. A hedge needs the budget, and
// so does a resend to a server that is silent altogether: an outage must not
// double the load.
func (x *exchange) Admit(n int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tries > race.MaxHedges {
		return false
	}
	s := x.stages[n]
	to := x.group[x.pick()]
	if late := time.Since(x.start) - x.delays[n]; s.kind == hedged && late > stalled {
		// It is not the network that was slow, but this process or machine: the
		// answer may have been here for a while. The next stage will tell.
		x.c.count.denied.Add(1)
		return false
	}
	switch {
	case s.kind == resent:
		if s.n == 0 {
			x.miss()
		}
		if to.silent() && !x.c.spend() {
			return false
		}
		x.c.count.resends.Add(1)
	case x.key == nil: // a fixed delay
		x.c.count.hedges.Add(1)
		to.hedges.Add(1)
	case x.cold && len(x.group) == 1 && x.group[0].fired.Load() >= coldHedges:
		x.c.count.denied.Add(1)
		return false
	default:
		if !x.c.admit(&x.call, s.n, x.group[0]) {
			return false
		}
		x.group[0].fired.Add(1)
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

// miss counts the queries that had no answer in a second. The caller holds mu.
func (x *exchange) miss() {
	now := time.Now()
	for i, s := range x.group {
		if x.uses[i] > 0 && now.Sub(x.asked[i]) >= s.lossDelay() {
			s.missed(x.asked[i])
		}
	}
}

// pick chooses the server for another attempt: the first that has not been
// asked, else the one asked least, those that are silent last. The caller holds mu.
func (x *exchange) pick() int {
	best, rank := 0, -1
	for i, s := range x.group {
		r := 2 * x.uses[i]
		if s.silent() {
			r += 2*maxDatagrams + 1
		}
		if rank < 0 || r < rank {
			best, rank = i, r
		}
	}
	return best
}

// take counts a query to a server. The caller holds mu.
func (x *exchange) take(i int) {
	x.uses[i]++
	x.asked[i] = time.Now()
}

// Attempt asks one server, and if that cannot answer, at once the next.
func (x *exchange) Attempt(a *race.Attempt, n int) (won, error) {
	x.mu.Lock()
	k := x.kinds[n]
	i := 0
	if n > 0 {
		i = x.pick()
	}
	use := x.uses[i]
	x.take(i)
	x.mu.Unlock()
	for {
		s := x.group[i]
		start := time.Now()
		x.c.trace(a, x.q, s, n, k)
		r, err := s.exchange(a, x.q, use)
		x.c.traceDone(a, x.q, s, n, k, time.Since(start), err)
		if err == nil {
			s.spoke()
			if x.q.raw != nil || outcome(r.answer, x.q) != failed {
				return won{r, s, k}, nil
			}
			err = errSoft
		} else if a.Err() != nil {
			// Out of time, or beaten by an attempt that started later.
			if time.Since(start) >= s.lossDelay() {
				s.missed(start)
			}
			return won{from: s}, err
		} else {
			s.missed(start)
		}
		var ok bool
		if i, ok = x.failover(s, r.answer); !ok {
			return won{from: s}, err
		}
		use = 0
	}
}

// failover holds what a server answered that could not answer the question, and
// finds another that has not been asked. That costs no budget, for it replaces a
// query and adds none, unless the other is known to be silent.
func (x *exchange) failover(from *server, a *answer) (int, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.soft == nil && a != nil {
		x.soft, x.from = a, from
	}
	i := x.pick()
	if x.q.raw != nil || x.uses[i] > 0 || x.group[i].silent() && !x.c.spend() {
		return 0, false
	}
	x.take(i)
	x.c.count.failovers.Add(1)
	return i, true
}

// Discard has nothing to release.
func (x *exchange) Discard(won, error) {}

// spend takes a token from the client's bucket.
func (c *core) spend() bool {
	c.spending.Lock()
	defer c.spending.Unlock()
	return c.bucket.Spend()
}

// admit asks the client's bucket and the server's for one hedge.
func (c *core) admit(call *engine.Call, stage int, s *server) bool {
	c.spending.Lock()
	defer c.spending.Unlock()
	denial := engine.None
	if c.bucket.Tokens() < 1 || s.bucket.Tokens() < 1 {
		denial = engine.Budget
	}
	if !call.AdmitUnless(stage, denial) {
		c.count.denied.Add(1)
		return false
	}
	for _, b := range [...]*engine.Bucket{c.bucket, s.bucket} {
		b.Spend()
		b.Earn() // for it is a query as well
	}
	c.count.hedges.Add(1)
	return true
}

// order returns the servers by preference: those that answer, by their smoothed
// round trip time, roughly, and else as they were given. Silent ones come last,
// first among them who was not asked for longest: when all are silent, they take
// turns, and callers' own queries find out who is back. If explore, a caller is not
// waiting, and any may come first.
func order(group []*server, now time.Time, explore bool) []*server {
	if len(group) < 2 {
		return group
	}
	type ranked struct {
		s    *server
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
	out := make([]*server, len(group))
	for i, r := range all {
		out[i] = r.s
	}
	if explore {
		n := int(randomID()) % len(out)
		out[0], out[n] = out[n], out[0]
	}
	return out
}

// allSilent reports whether no server answers.
func allSilent(group []*server) bool {
	return !slices.ContainsFunc(group, func(s *server) bool { return !s.silent() })
}
